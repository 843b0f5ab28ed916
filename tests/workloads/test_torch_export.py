"""Exported programs: what is recognised, that the numbers are torch's, and what is said of wrong files."""

from __future__ import annotations

import gzip
import json
import zipfile
from pathlib import Path

import numpy as np
import pytest

from arch_configs import load_arch
from compiler import compile_graph
from compiler.ir.graph import Repeat
from compiler.ir.interpret import run_program
from compiler.ir.reference import random_feeds, run_graph
from workloads import WorkloadError, build
from workloads.importers.flat import ImportedModel
from workloads.importers.torch_export import import_program

FILES = Path(__file__).parent / "exported"
BOUND = {"decoder": {"s27": 7}, "classifier": {}}


def imported(name: str) -> tuple[ImportedModel, dict[str, np.ndarray], np.ndarray]:
    """The model with its weights, what to feed it, and what torch gave."""
    saved = np.load(FILES / f"{name}.npz")
    arrays = {key[2:]: saved[key] for key in saved if key.startswith("w:")}
    model = import_program(FILES / f"{name}.json.gz", BOUND[name], (), arrays)
    feeds = {**random_feeds(model.graph, 0), **model.weights}
    inputs = [value.name for value in model.graph.values if value.kind == "input"]
    feeds |= {n: saved[f"in:{i}"].reshape(feeds[n].shape) for i, n in enumerate(inputs)}
    return model, feeds, saved["out"]


@pytest.mark.parametrize("name", BOUND)
def test_the_graph_computes_what_torch_does(name):
    model, feeds, want = imported(name)
    (got,) = run_graph(model.graph, feeds).values()
    np.testing.assert_allclose(got.reshape(want.shape), want, atol=2e-6)


@pytest.mark.parametrize("arch", ["trn1", "trn2", "tpu-v5e"])
@pytest.mark.parametrize("name", BOUND)
def test_the_program_computes_what_torch_does(name, arch):
    model, feeds, want = imported(name)
    program = compile_graph(model.graph, load_arch(arch))
    (got,) = run_program(program, load_arch(arch), feeds).values()
    np.testing.assert_allclose(got.reshape(want.shape), want, atol=2e-5)


def test_norms_rotary_positions_attention_and_layers_are_recognised():
    graph = build(f"{FILES}/decoder.json.gz:s27=7")
    (region,) = (node for node in graph.nodes if isinstance(node, Repeat))
    kinds = [node.op.kind for node in region.nodes]
    assert region.count == 3
    assert kinds.count("rms-norm") == kinds.count("rope") == 2
    assert kinds.count("attention") == 1
    (attention,) = (node.op for node in region.nodes if node.op.kind == "attention")
    assert (attention.heads, attention.kv_heads, attention.causal) == (4, 2, True)
    assert not {"permute", "expand", "batch-matmul", "concat"} & set(kinds)


def test_sizes_follow_what_is_bound():
    graphs = [build(f"{FILES}/decoder.json.gz:s27={size}") for size in (7, 64)]
    assert graphs[0].parameters == graphs[1].parameters
    assert graphs[1].macs > 9 * graphs[0].macs


def problem(text: str) -> str:
    with pytest.raises(WorkloadError) as error:
        build(text)
    return str(error.value)


def test_unbound_and_unknown_sizes_are_named():
    assert "symbolic sizes s27 (axis 1 of ids): want each bound" in problem(f"{FILES}/decoder.json.gz")
    assert "sq27: unknown key" in problem(f"{FILES}/decoder.json.gz:s27=7,sq27=7")
    assert "all sizes are fixed in the file" in problem(f"{FILES}/classifier.json.gz:seq=7")


def changed(tmp_path: Path, old: str, new: str) -> Path:
    """The classifier with a piece of its text replaced."""
    text = gzip.decompress((FILES / "classifier.json.gz").read_bytes()).decode()
    assert old in text
    path = tmp_path / "changed.pt2"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("changed/models/model.json", text.replace(old, new))
    return path


def test_all_unknown_operators_are_told_at_once(tmp_path):
    path = changed(tmp_path, "aten.relu.default", "aten.strange.default")
    message = problem(str(path))
    assert "1 operations cannot be translated" in message
    assert "aten.strange.default: 1 times (relu)" in message
    graph = build(f"{path}:opaque=strange")
    assert any(node.op.kind == "opaque" for node, _ in graph.walk())


def test_files_that_are_no_programs(tmp_path):
    other = changed(tmp_path, '"major": 8', '"major": 9')
    assert "want major 8" in problem(str(other))
    empty = tmp_path / "empty.pt2"
    empty.write_bytes(b"")
    assert "not a torch.export program" in problem(str(empty))
    assert "No such file" in problem(str(tmp_path / "missing.pt2"))
    broken = tmp_path / "broken.pt2"
    broken.write_text(json.dumps({"graph_module": {}, "schema_version": {"major": 8, "minor": 1}}))
    assert "not laid out as schema 8 says" in problem(str(broken))
