"""StableHLO text: what is recognised, that the numbers are jax's, and what is said of wrong files."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from arch_configs import load_arch
from compiler import compile_graph
from compiler.ir.graph import Repeat
from compiler.ir.interpret import run_program
from compiler.ir.reference import random_feeds, run_graph
from workloads import WorkloadError, build
from workloads.importers.stablehlo import import_module
from workloads.importers.stablehlo.reader import Type, dense

FILES = Path(__file__).parent / "exported"
BOUND = {"prefill": {}, "prefill_bf16": {}, "scan": {}, "decode": {"position": 7}, "image_net": {}}
TOLERANCE = {"prefill_bf16": 0.1}  # outputs reach 5.6; jax rounds each step to bf16, the reference none
KINDS = {"embedding", "rms-norm", "linear", "rope", "attention", "binary", "unary", "reshape"}


def fed(graph, name, saved):
    """What the host gives, from what jax was given: caches as the program keeps them, channels first."""
    value = graph.value_map()[name]
    if name.endswith(".nchw"):
        return saved[name.removesuffix(".nchw")].transpose(0, 3, 1, 2)
    if name.endswith(".cache"):
        which = int(name.split(".")[1])
        order = (0, 2, 1, 3) if which else (0, 2, 3, 1)
        layers = [saved[f"{i}.{which}"].transpose(order) for i in range(value.stacked or 1)]
        return np.stack(layers) if value.stacked else layers[0]
    return saved[name].reshape(value.type.shape)


def imported(name):
    """The graph, what to feed it, and what jax gave."""
    saved = dict(np.load(FILES / f"{name}.mlir.npz"))
    want = saved.pop("out")
    model = import_module(FILES / f"{name}.mlir", BOUND[name], arrays=saved)
    feeds = {**random_feeds(model.graph, 0), **model.weights}
    given = [v.name for v in model.graph.values if v.kind in ("input", "state")]
    return model.graph, feeds | {n: fed(model.graph, n, saved) for n in given}, want


@pytest.mark.parametrize("name", BOUND)
def test_the_graph_computes_what_jax_does(name):
    graph, feeds, want = imported(name)
    got = run_graph(graph, feeds)[graph.outputs[0]]
    slack = TOLERANCE.get(name, 2e-5)
    np.testing.assert_allclose(got.reshape(want.shape), want, atol=slack, rtol=slack)


@pytest.mark.parametrize(("name", "arch"), [
    ("prefill", "trn2"), ("prefill_bf16", "trn2"), ("scan", "tpu-v5e"), ("decode", "trn2"),
    ("decode", "trn1"), ("image_net", "trn2"),
])  # fmt: skip
def test_the_program_computes_what_jax_does(name, arch):
    graph, feeds, want = imported(name)
    program = compile_graph(graph, load_arch(arch))
    got = run_program(program, load_arch(arch), feeds)[graph.outputs[0]]
    slack = TOLERANCE.get(name, 2e-4)
    np.testing.assert_allclose(got.reshape(want.shape), want, atol=slack, rtol=slack)


@pytest.mark.parametrize("name", ["prefill", "scan"])
def test_layers_are_recognised_written_out_and_as_a_loop(name):
    graph = build(f"{FILES}/{name}.mlir")
    (region,) = (node for node in graph.nodes if isinstance(node, Repeat))
    assert region.count == 3
    assert {node.op.kind for node, _ in graph.walk()} == KINDS
    (op,) = (node.op for node in region.nodes if node.op.kind == "attention")
    assert (op.batch, op.heads, op.kv_heads, op.causal) == (2, 4, 2, True)
    assert any(node.op.kind == "unary" and node.op.func == "silu" for node in region.nodes)


def test_steps_in_float32_of_bf16_values_are_recognised():
    graph = build(f"{FILES}/prefill_bf16.mlir")
    assert {node.op.kind for node, _ in graph.walk()} == KINDS
    assert {value.type.dtype for value in graph.values} == {"bf16", "int32"}


def test_an_order_that_is_undone_after_a_change_of_type_is_none(tmp_path):
    path = written(tmp_path, [
        "%0 = stablehlo.transpose %arg0, dims = [1, 0] : (tensor<4x8xf32>) -> tensor<8x4xf32>",
        "%1 = stablehlo.convert %0 : (tensor<8x4xf32>) -> tensor<8x4xbf16>",
        "%2 = stablehlo.transpose %1, dims = [1, 0] : (tensor<8x4xbf16>) -> tensor<4x8xbf16>",
        "%3 = stablehlo.tanh %2 : tensor<4x8xbf16>",
        "return %3 : tensor<4x8xbf16>",
    ])  # fmt: skip
    assert [node.op.kind for node, _ in build(str(path)).walk()] == ["cast", "unary"]


def test_layers_are_found_without_locations(tmp_path):
    lines = (FILES / "prefill.mlir").read_text().splitlines()
    bare = [re.sub(r' loc\((#loc\d*|"[^"]*")\)', "", line) for line in lines if not line.startswith("#")]
    path = tmp_path / "bare.mlir"
    path.write_text("\n".join(bare))
    graph, known = build(str(path)), build(f"{FILES}/prefill.mlir")
    (region,) = (node for node in graph.nodes if isinstance(node, Repeat))
    assert region.count == 3
    assert [n.op for n, _ in graph.walk()] == [n.op for n, _ in known.walk()]


def test_a_decode_step_writes_and_reads_its_caches():
    graph = build(f"{FILES}/decode.mlir")
    kinds = [node.op.kind for node, _ in graph.walk()]
    assert kinds.count("kv-write") == 2
    (op,) = (node.op for node, _ in graph.walk() if node.op.kind == "decode-attention")
    assert op.length == 12  # at the last position unless bound
    (op,) = (
        n.op for n, _ in build(f"{FILES}/decode.mlir:position=4").walk() if n.op.kind == "decode-attention"
    )
    assert op.length == 5
    assert "got position 12, want 0 to 11" in problem(f"{FILES}/decode.mlir:position=12")


def test_norms_activations_and_fused_projections_are_recognised():
    graph = build(f"{FILES}/image_net.mlir")
    kinds = [node.op.kind for node, _ in graph.walk()]
    assert kinds.count("linear") == 6  # three of them from one product for queries, keys and values
    assert {"layer-norm", "attention", "softmax", "pool2d"} <= set(kinds)
    assert "slice" not in kinds


def problem(text):
    with pytest.raises(WorkloadError) as error:
        build(str(text))
    return str(error.value)


def written(tmp_path, body, arguments="%arg0: tensor<4x8xf32>", result="tensor<4x8xf32>"):
    path = tmp_path / "some.mlir"
    lines = [
        f"  func.func public @main({arguments}) -> {result} {{",
        *(f"    {line}" for line in body),
        "  }",
    ]
    path.write_text("\n".join(["module @m {", *lines, "}"]))
    return path


def test_all_unknown_operations_are_told_at_once(tmp_path):
    path = written(tmp_path, [
        "%0 = stablehlo.cbrt %arg0 : tensor<4x8xf32>",
        '%1 = "stablehlo.custom_call"(%0) <{call_target_name = "f"}> : (tensor<4x8xf32>) -> tensor<4x8xf32>',
        "%2 = stablehlo.cbrt %1 : tensor<4x8xf32>",
        "return %2 : tensor<4x8xf32>",
    ])  # fmt: skip
    message = problem(path)
    assert "custom_call: 1 times" in message
    assert "cbrt: 2 times" in message
    graph = build(f"{path}:opaque=cbrt+custom_call")
    assert sum(node.op.kind == "opaque" for node, _ in graph.walk()) == 3


def test_files_that_are_no_modules(tmp_path):
    path = tmp_path / "broken.mlir"
    path.write_text("not a module")
    assert "not StableHLO text" in problem(path)
    assert "No such file" in problem(tmp_path / "missing.mlir")
    path.write_text('"func.func"() ({ "stablehlo.add" })')
    assert "generic form" in problem(path)
    assert "position: unknown key" in problem(f"{FILES}/prefill.mlir:position=3")
    cut = "\n".join((FILES / "image_net.mlir").read_text().splitlines()[:60])
    path.write_text(cut)
    assert "inside a block" in problem(path)


@pytest.mark.parametrize(("text", "kind", "want"), [
    ("dense<0xFF800000>", Type((), "f32"), -np.inf),
    ("dense<[[1, 2], [3, -4]]>", Type((2, 2), "i32"), [[1, 2], [3, -4]]),
    ('dense<"0x0000803F00000040">', Type((2,), "f32"), [1.0, 2.0]),
    ("dense<[true, false]>", Type((2,), "i1"), [True, False]),
    ("dense<1.5>", Type((2,), "bf16"), [1.5, 1.5]),
])  # fmt: skip
def test_constants(text, kind, want):
    np.testing.assert_array_equal(dense("here", text, kind), np.asarray(want))


def test_a_cache_that_nothing_known_reads_is_told(tmp_path):
    path = written(
        tmp_path,
        [
            "%c = stablehlo.constant dense<0> : tensor<i32>",
            "%0 = stablehlo.dynamic_update_slice %arg0, %arg1, %c, %c, %c, %c : (tensor<2x6x2x4xf32>, "
            "tensor<2x1x2x4xf32>, tensor<i32>, tensor<i32>, tensor<i32>, tensor<i32>) -> tensor<2x6x2x4xf32>",
            "%1 = stablehlo.tanh %0 : tensor<2x6x2x4xf32>",
            "return %1 : tensor<2x6x2x4xf32>",
        ],
        "%arg0: tensor<2x6x2x4xf32>, %arg1: tensor<2x1x2x4xf32>",
        "tensor<2x6x2x4xf32>",
    )
    assert "of a cache that no known attention reads" in problem(path)


def test_arithmetic_on_given_indices_is_the_hosts_work(tmp_path):
    path = written(
        tmp_path,
        [
            "%c = stablehlo.constant dense<3> : tensor<5xi32>",
            "%0 = stablehlo.compare LT, %arg1, %c, SIGNED : (tensor<5xi32>, tensor<5xi32>) -> tensor<5xi1>",
            "%1 = stablehlo.add %arg1, %c : tensor<5xi32>",
            "%2 = stablehlo.select %0, %1, %arg1 : tensor<5xi1>, tensor<5xi32>",
            "%3 = stablehlo.reshape %2 : (tensor<5xi32>) -> tensor<5x1xi32>",
            '%4 = "stablehlo.gather"(%arg0, %3) <{dimension_numbers = #stablehlo.gather<offset_dims = [1], '
            "collapsed_slice_dims = [0], start_index_map = [0], index_vector_dim = 1>, slice_sizes = "
            "array<i64: 1, 8>}> : (tensor<9x8xf32>, tensor<5x1xi32>) -> tensor<5x8xf32>",
            "return %4 : tensor<5x8xf32>",
        ],
        "%arg0: tensor<9x8xf32>, %arg1: tensor<5xi32>",
        "tensor<5x8xf32>",
    )
    graph = build(str(path))
    (given,) = (value.name for value in graph.values if value.kind == "input")
    assert given != "arg1"
    assert [node.op.kind for node, _ in graph.walk()][-1] == "embedding"
