"""ONNX files: what is recognised, that the numbers are onnxruntime's, and what is said of wrong files."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from arch_configs import load_arch
from compiler import compile_graph
from compiler.ir.graph import Repeat
from compiler.ir.interpret import run_program
from compiler.ir.reference import random_feeds, run_graph
from workloads import WorkloadError, build

onnx = pytest.importorskip("onnx")
from workloads.importers.onnx_model import import_model  # noqa: E402

FILES = Path(__file__).parent / "exported"
BOUND = {"conv_net": {}, "encoder": {"batch": 2, "seq": 9}}


def imported(name):
    """The graph, what to feed it, and what onnxruntime gave."""
    saved = np.load(FILES / f"{name}.onnx.npz")
    model = import_model(FILES / f"{name}.onnx", BOUND[name])
    feeds = {**random_feeds(model.graph, 0), **model.weights}
    feeds |= {n: saved[n].reshape(feeds[n].shape) for n in saved if n in feeds}
    return model.graph, feeds, saved["out"]


@pytest.mark.parametrize("name", BOUND)
def test_the_graph_computes_what_onnxruntime_does(name):
    graph, feeds, want = imported(name)
    (got,) = run_graph(graph, feeds).values()
    np.testing.assert_allclose(got.reshape(want.shape), want, atol=5e-6)


@pytest.mark.parametrize("arch", ["trn1", "trn2", "tpu-v5e"])
@pytest.mark.parametrize("name", BOUND)
def test_the_program_computes_what_onnxruntime_does(name, arch):
    graph, feeds, want = imported(name)
    program = compile_graph(graph, load_arch(arch))
    (got,) = run_program(program, load_arch(arch), feeds).values()
    np.testing.assert_allclose(got.reshape(want.shape), want, atol=5e-5)


def test_attention_and_layers_are_recognised():
    graph = build(f"{FILES}/encoder.onnx:batch=2,seq=9")
    (region,) = (node for node in graph.nodes if isinstance(node, Repeat))
    assert region.count == 3
    (op,) = (node.op for node in region.nodes if node.op.kind == "attention")
    assert any(node.op.kind == "unary" and node.op.func == "gelu_erf" for node in region.nodes)
    assert (op.batch, op.heads, op.causal, op.scale) == (2, 3, True, pytest.approx(8**-0.5))


def problem(text):
    with pytest.raises(WorkloadError) as error:
        build(text)
    return str(error.value)


def test_unbound_and_unknown_sizes_are_named():
    """U058: dimensions that the file leaves open are listed by name."""
    message = problem(f"{FILES}/encoder.onnx")
    assert "symbolic sizes batch (axis 0 of ids), seq (axis 1 of ids): want each bound" in message
    assert "sec: unknown key; did you mean 'seq'?" in problem(f"{FILES}/encoder.onnx:batch=1,sec=2")


def test_all_unknown_operators_are_told_at_once(tmp_path):
    model = onnx.load(FILES / "conv_net.onnx")
    for node in model.graph.node:
        if node.op_type in ("HardSwish", "HardSigmoid"):
            node.op_type = f"My{node.op_type}"
    path = tmp_path / "strange.onnx"
    path.write_bytes(model.SerializeToString())
    message = problem(str(path))
    assert "2 operations cannot be translated" in message
    assert "MyHardSwish: 1 times" in message
    assert "MyHardSigmoid: 1 times" in message
    graph = build(f"{path}:opaque=MyHardSwish+MyHardSigmoid")
    assert sum(node.op.kind == "opaque" for node, _ in graph.walk()) == 2


def test_files_that_are_no_models(tmp_path):
    path = tmp_path / "broken.onnx"
    path.write_bytes(b"not a model")
    assert "not an ONNX model" in problem(str(path))
    assert "No such file" in problem(str(tmp_path / "missing.onnx"))
