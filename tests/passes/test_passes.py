"""Each pass keeps the meaning and does what it is named for; passes read back from their text."""

from dataclasses import replace

import numpy as np
import pytest

import workloads
from arch_configs import load_arch
from compiler.errors import CompileError, VerifyError
from compiler.ir.graph import Graph, Node, TensorType
from compiler.ir.reference import random_feeds, run_graph
from compiler.ir.verify_graph import verify_graph
from compiler.ops import (
    Binary,
    Conv2d,
    ElementwiseGroup,
    KvWrite,
    LayerNorm,
    Linear,
    RmsNorm,
    Scalar,
    TakeRows,
    Transpose2d,
    Unary,
)
from compiler.passes import PASSES, Pass, parse_pass, run_pipeline
from workloads.blocks import GraphBuilder

ALL = ("canonicalize", "dce", "fuse-norm", "fuse-gate", "fuse-epilogue", "fuse-elementwise")
MODELS = (
    "llama-tiny:prefill,batch=2,seq=7",
    "llama-tiny:decode,batch=2,context=5",
    "vit-tiny:batch=2",
    "bert-tiny:batch=2,seq=11",
    "resnet-tiny:batch=2",
)


@pytest.fixture(scope="module")
def arch():
    return load_arch("edge-npu")


def run(graph, arch, *names):
    return run_pipeline(graph, [parse_pass(name) for name in names], arch)


def same(before, after):
    """Both graphs give the same results, storage rounding aside."""
    feeds = random_feeds(before)
    want, got = (run_graph(g, feeds, round_storage=False) for g in (before, after))
    assert set(got) == set(want)
    for name, array in want.items():
        np.testing.assert_allclose(got[name], array, rtol=1e-5, atol=1e-5, err_msg=name)


def ops(graph):
    return [node.op for node, _ in graph.walk()]


@pytest.mark.parametrize("model", MODELS)
def test_models_mean_the_same_after_every_prefix_of_the_pipeline(model, arch):
    graph = workloads.build(model)
    for end in range(1, len(ALL) + 1):
        fused = run(graph, arch, *ALL[:end])
        same(graph, fused)
        assert fused.macs == graph.macs
        assert fused.parameters == graph.parameters
        assert fused.kind_bytes("state") == graph.kind_bytes("state")


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("name", PASSES)
def test_every_variant_of_every_pass_keeps_the_meaning_alone(model, name, arch):
    graph = workloads.build(model)
    for variant in PASSES[name].space(arch):
        after = run_pipeline(graph, [variant], arch)
        assert after.macs == graph.macs
        same(graph, after)
        assert run_pipeline(after, [variant], arch) == after  # nothing is left to do


def test_llama_layer_is_fully_fused(arch):
    fused = run(workloads.build("llama3-8b:prefill,seq=8"), arch, *ALL)
    kinds = [op.kind for op in ops(fused)]
    assert kinds == [
        "embedding", "linear", "rope", "linear", "rope", "linear", "attention",
        "linear", "linear", "linear", "take-rows", "linear",
    ]  # fmt: skip
    linears = [op for op in ops(fused) if isinstance(op, Linear)]
    assert [op.norm for op in linears] == ["rms", "rms", "rms", None, "rms", None, "rms"]
    assert [op.gated for op in linears] == [False, False, False, False, True, False, False]
    assert [op.residual for op in linears] == [False, False, False, True, False, True, False]


def test_resnet_blocks_are_fully_fused(arch):
    kinds = {op.kind for op in ops(run(workloads.build("resnet50"), arch, *ALL))}
    assert kinds == {"conv2d", "pool2d", "global-avg-pool", "linear"}


def test_bert_keeps_norms_whose_result_is_also_a_residual(arch):
    fused = run(workloads.build("bert-tiny"), arch, *ALL)
    assert sum(isinstance(op, LayerNorm) for op in ops(fused)) == 3


def builder():
    return GraphBuilder("g", "fp32")


def finish(b, *outputs):
    return b.build(outputs, {})


def test_canonicalize_reads_through_identities(arch):
    b = builder()
    x = b.op("same", Unary("identity"), b.input("x", 4, 3))
    x = b.op("rows", TakeRows(1, -1), x)
    x = b.op("back", Transpose2d(), b.op("turn", Transpose2d(), x))
    graph = finish(b, b.op("y", Unary("exp"), x), b.op("kept", Unary("identity"), x))
    after = run(graph, arch, "canonicalize", "dce")
    same(graph, after)
    assert [node.name for node in after.nodes] == ["y", "kept"]  # an output keeps its own name
    assert after.nodes[0].inputs == ("x",)


def test_dce_removes_chains_but_not_state_updates(arch):
    b = builder()
    x = b.input("x", 4, 3)
    b.op("unread2", Unary("exp"), b.op("unread1", Linear(), x, b.weight("w", 3, 3)))
    graph = finish(b, b.op("y", Unary("exp"), x))
    after = run(graph, arch, "dce")
    assert [v.name for v in after.values] == ["x", "y"]
    decode = workloads.build("llama-tiny:decode,context=2")
    assert run(decode, arch, "dce") == decode


def test_nothing_moves_behind_the_update_of_a_state_it_reads(arch):
    b = builder()
    new = b.input("new", 2, 3)
    cache = b.state("cache", 2, 1, 3, 1)
    before = b.op("before", Unary("identity"), cache)
    b.update("write", KvWrite(0, axis_k=True), cache, new)
    graph = finish(b, b.op("y", Binary("sub"), cache, before))
    after = run(graph, arch, *ALL)
    same(graph, after)
    assert ops(after) == ops(graph)


def norm_graph(readers, *, other_reader=False, op=None):
    b = builder()
    x = b.input("x", 4, 6)
    normed = b.op("n", op or RmsNorm(1e-3), x, b.weight("gain", 6 // getattr(op, "heads", 1)))
    outs = [b.op(f"y{i}", Linear(), normed, b.weight(f"w{i}", 6, 2 + i)) for i in range(readers)]
    if other_reader:
        outs.append(b.op("z", Unary("exp"), normed))
    return finish(b, *outs)


@pytest.mark.parametrize(
    ("readers", "limit", "fuses"), [(1, 8, True), (3, 3, True), (3, 2, False), (1, 0, False)]
)
def test_fuse_norm_obeys_its_limit(readers, limit, fuses, arch):
    graph = norm_graph(readers)
    after = run(graph, arch, f"fuse-norm{{max_readers={limit}}}")
    same(graph, after)
    assert (RmsNorm(1e-3) not in ops(after)) == fuses


def test_fuse_norm_leaves_what_others_read_or_what_is_not_a_row_norm(arch):
    for graph in (norm_graph(2, other_reader=True), norm_graph(1, op=RmsNorm(1e-3, heads=2))):
        assert run(graph, arch, "fuse-norm") == graph
    escaping = replace(norm_graph(1), outputs=("y0", "n"))
    assert run(escaping, arch, "fuse-norm") == escaping


def gate_graph(*, order=("act", "up"), other_input=False, leak=()):
    b = builder()
    x = b.input("x", 4, 6)
    gate = b.op("gate", Linear(), x, b.weight("wg", 6, 5))
    b.op("act", Unary("gelu"), gate)
    b.op("up", Linear(), b.input("z", 4, 6) if other_input else x, b.weight("wu", 6, 5))
    return finish(b, b.op("y", Binary("mul"), *order), *leak)


@pytest.mark.parametrize("order", [("act", "up"), ("up", "act")])
def test_fuse_gate_in_either_order(order, arch):
    graph = gate_graph(order=order)
    after = run(graph, arch, "fuse-gate")
    same(graph, after)
    assert after.nodes == (Node("y", Linear(activation="gelu", gated=True), ("x", "wg", "wu"), ("y",)),)


@pytest.mark.parametrize(
    "changes", [{"other_input": True}, {"leak": ("gate",)}, {"leak": ("up",)}, {"leak": ("act",)}]
)
def test_fuse_gate_leaves_other_shapes(changes, arch):
    graph = gate_graph(**changes)
    assert run(graph, arch, "fuse-gate") == graph


def test_fuse_gate_works_on_normed_products(arch):
    b = builder()
    x = b.input("x", 4, 6)
    normed = b.op("n", LayerNorm(), x, b.weight("gain", 6), b.weight("beta", 6))
    gate = b.op("act", Unary("silu"), b.op("gate", Linear(), normed, b.weight("wg", 6, 5)))
    graph = finish(b, b.op("y", Binary("mul"), gate, b.op("up", Linear(), normed, b.weight("wu", 6, 5))))
    for order in (("fuse-norm", "fuse-gate"), ("fuse-gate", "fuse-norm")):
        after = run(graph, arch, *order)
        same(graph, after)
        (node,) = after.nodes
        assert node.op == Linear(norm="layer", activation="silu", gated=True)
        assert node.inputs == ("x", "wg", "wu", "gain", "beta")


def epilogue_graph():
    b = builder()
    product = b.op("p", Linear(), b.input("x", 4, 6), b.weight("w", 6, 5))
    biased = b.op("b", Binary("add"), product, b.weight("bias", 5))
    active = b.op("a", Unary("relu"), biased)
    return finish(b, b.op("y", Binary("add"), b.input("r", 4, 5), active))


EPILOGUES = {
    "fuse-epilogue": [Linear(activation="relu", bias=True, residual=True)],
    "fuse-epilogue{residual=false}": [Linear(activation="relu", bias=True), Binary("add")],
    "fuse-epilogue{activation=false}": [Linear(bias=True), Unary("relu"), Binary("add")],
    "fuse-epilogue{bias=false,activation=false,residual=false}": ops(epilogue_graph()),
}


@pytest.mark.parametrize("text", EPILOGUES)
def test_fuse_epilogue_of_linear(text, arch):
    graph = epilogue_graph()
    after = run(graph, arch, text)
    same(graph, after)
    assert ops(after) == EPILOGUES[text]


def test_fuse_epilogue_keeps_the_order_of_operations(arch):
    """A residual before the activation, or a bias after it, is another function: not fused for Linear."""
    b = builder()
    x = b.input("x", 4, 6)
    p = b.op("p", Linear(), x, b.weight("w", 6, 6))
    early = b.op("early", Unary("relu"), b.op("sum", Binary("add"), p, x))
    q = b.op("q", Unary("relu"), b.op("q.p", Linear(), early, b.weight("w2", 6, 6)))
    graph = finish(b, b.op("y", Binary("add"), q, b.weight("bias", 6)))
    after = run(graph, arch, "fuse-epilogue")
    same(graph, after)
    assert ops(after) == [Linear(residual=True), Unary("relu"), Linear(activation="relu"), Binary("add")]


def test_fuse_epilogue_leaves_products_that_others_read(arch):
    b = builder()
    p = b.op("p", Linear(), b.input("x", 4, 6), b.weight("w", 6, 6))
    graph = finish(b, b.op("y", Unary("relu"), p), b.op("twice", Binary("add"), p, p))
    assert run(graph, arch, "fuse-epilogue") == graph


def test_fuse_epilogue_of_two_products_takes_one(arch):
    b = builder()
    x = b.input("x", 4, 6)
    p, q = (b.op(n, Linear(), x, b.weight(f"{n}.w", 6, 6)) for n in "pq")
    graph = finish(b, b.op("y", Binary("add"), p, q))
    after = run(graph, arch, "fuse-epilogue")
    same(graph, after)
    assert ops(after) == [Linear(), Linear(residual=True)]


def test_fuse_epilogue_of_conv_adds_before_the_activation(arch):
    b = builder()
    x = b.input("x", 2, 3, 5, 5)
    p = b.op("p", Conv2d(padding=1, bias=True), x, b.weight("w", 3, 3, 3, 3), b.weight("b", 3))
    y = b.op("y", Unary("relu"), b.op("sum", Binary("add"), p, x))
    graph = finish(b, b.op("late", Binary("add"), y, x))
    after = run(graph, arch, "fuse-epilogue")
    same(graph, after)
    assert ops(after) == [Conv2d(padding=1, bias=True, activation="relu", residual=True), Binary("add")]


def test_fuse_elementwise_keeps_what_others_read_as_results(arch):
    b = builder()
    x, z = b.input("x", 4, 6), b.input("z", 4, 6)
    shared = b.op("shared", Binary("add"), x, z)
    inner = b.op("inner", Unary("exp"), shared)
    other = b.op("other", Linear(), shared, b.weight("w", 6, 5))
    graph = finish(b, b.op("y", Binary("mul"), inner, shared), other)
    after = run(graph, arch, "fuse-elementwise")
    same(graph, after)
    assert [node.outputs for node in after.nodes] == [("shared", "y"), ("other",)]
    assert len(after.nodes[0].op.body) == 3
    limited = run(graph, arch, "fuse-elementwise{max_ops=2}")
    same(graph, limited)
    assert len(limited.nodes) == 3
    assert run(graph, arch, "fuse-elementwise{max_ops=0}") == graph


def test_fuse_elementwise_makes_no_cycle(arch):
    """What a product between two ops reads of the first and gives the second cannot be in one group."""
    b = builder()
    x = b.input("x", 4, 6)
    first = b.op("first", Unary("exp"), x)
    product = b.op("p", Linear(), first, b.weight("w", 6, 6))
    graph = finish(b, b.op("y", Binary("mul"), first, product))
    assert run(graph, arch, "fuse-elementwise") == graph


def test_fuse_elementwise_leaves_other_shapes_and_rounded_comparisons(arch):
    b = GraphBuilder("g", "bf16")
    x = b.input("x", 4, 6)
    wide = b.op("wide", Binary("add"), b.op("row", Unary("exp"), b.input("r", 6)), x)
    graph = finish(b, b.op("y", Scalar("less", 0.5), wide))
    after = run(graph, arch, "fuse-elementwise")
    assert not any(isinstance(op, ElementwiseGroup) for op in ops(after))


@pytest.mark.parametrize("name", PASSES)
def test_passes_read_back_from_their_text(name, arch):
    variants = list(PASSES[name].space(arch))
    assert variants[0] == PASSES[name]() == parse_pass(name)
    assert len(set(variants)) == len(variants)
    for variant in variants:
        assert parse_pass(str(variant)) == variant


def test_pass_text():
    assert str(parse_pass("dce")) == "dce"
    assert str(parse_pass(" fuse-norm { max_readers = 3 } ")) == "fuse-norm{max_readers=3}"


WRONG = {
    "fuse-nrom": "pass: got 'fuse-nrom', want one of: canonicalize, dce,",
    "fuse-norm{": "want name or name{option=value,...}",
    "fuse-norm{max_reader=1}": "pass fuse-norm: got 'max_reader', want one of: max_readers; did you mean",
    "dce{x=1}": "pass dce: got 'x', want no options",
    "fuse-norm{max_readers=-1}": "max_readers: got '-1', want a whole number, 0 or more",
    "fuse-norm{max_readers=1,max_readers=2}": "max_readers: given twice",
    "fuse-epilogue{bias=1}": "pass fuse-epilogue: bias: got '1', want true or false",
}


@pytest.mark.parametrize("text", WRONG)
def test_wrong_pass_texts(text):
    with pytest.raises(CompileError) as error:
        parse_pass(text)
    assert WRONG[text] in str(error.value)


def test_a_pass_that_breaks_the_graph_is_named(arch):
    class Breaks(Pass):
        name = "breaks"

        def run(self, graph: Graph, arch) -> Graph:
            wrong = replace(graph.values[-1], type=TensorType((1,), "fp32"))
            return replace(graph, values=(*graph.values[:-1], wrong))

    with pytest.raises(VerifyError) as error:
        run_pipeline(epilogue_graph(), [parse_pass("dce"), Breaks()], arch)
    assert error.value.__notes__ == ["after pass breaks"]


def test_pipeline_refuses_an_illegal_graph(arch):
    graph = replace(epilogue_graph(), outputs=("nothing",))
    with pytest.raises(VerifyError):
        run(graph, arch)
    verify_graph(epilogue_graph())
