"""Checks and errors that are shown to users: what they say, and that they can fail."""

from __future__ import annotations

import csv
import json
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from arch_configs import load_arch
from compiler import compile_graph
from compiler.ir.dtype import numpy_dtype
from compiler.ir.rules import RULES
from compiler.ir.text import print_program
from compiler.isa import Loop, Matmul, Node, Program, Sync
from dse.numerics import OpError, first_diverging, last_place, op_errors
from dse.point import Point
from dse.proofs import Proof, prove
from dse.rule_checks import OF_THE_RUN, SUBJECTS, rule_checks
from dse.verify import Check, _attributed, _conserved, verify_point
from tests.dse.test_cli import dse
from workloads import build

LLAMA = Point("trn2", "llama-tiny:prefill,seq=33")


def test_each_op_has_its_error_beside_that_of_rounding_alone() -> None:
    found = op_errors(LLAMA)
    assert [item.op for item in found if item.op.startswith("layer.")][-1] == "layer.mlp_add"
    assert found[-1].op == "head"
    for item in found:
        assert 0 < item.relative <= item.tolerance
        assert 0 < item.rounding < 0.02
        assert item.ulp < 4


def test_an_error_of_one_op_is_found_and_named(monkeypatch: pytest.MonkeyPatch) -> None:
    import dse.numerics as module

    run = module.run_program

    def wrong(*args: object, **options: object) -> dict[str, np.ndarray]:
        got = run(*args, **options)  # type: ignore[arg-type]
        return {**got, "layer.gated": got["layer.gated"] * 1.5} if "layer.gated" in got else got

    monkeypatch.setattr(module, "run_program", wrong)
    found = op_errors(LLAMA)
    first = first_diverging(found)
    assert first is not None
    assert first.op == "layer.gated"
    assert not Proof((), found, ()).passed


@pytest.mark.parametrize("dtype", ["fp32", "bf16", "fp16", "fp8e4", "fp8e5"])
@pytest.mark.parametrize("value", [1.0, 3.3, 0.07])
def test_last_place_is_the_distance_to_the_next_number(dtype: str, value: float) -> None:
    start = np.asarray(value, numpy_dtype(dtype))
    above = np.nextafter(start, np.asarray(np.inf, numpy_dtype(dtype)))
    assert last_place(value, dtype) == float(above) - float(start)
    assert last_place(value, "int8") == 1.0


def test_nan_fails_and_is_null_in_json() -> None:
    nan = float("nan")
    proof = Proof((), (OpError("a", "linear", "bf16", nan, nan, nan, 0.0, 0.04),), ())
    assert not proof.passed
    assert proof.record()["ops"][0]["relative"] is None


def test_every_check_is_listed_with_what_it_looked_at() -> None:
    found = verify_point(LLAMA)
    names = {item.name for item in found}
    assert [item.name for item in found[:2]] == ["graph", "graph after passes"]
    assert set(RULES) | {"deadlock"} == set(SUBJECTS) | set(OF_THE_RUN) == {i.name for i in found if i.rule}
    assert {"work: MACs of each op", "audit of the simulation", "numbers", "numbers of uneven sizes"} <= names
    assert all(item.passed and item.looked_at for item in found)


def checks_of(program: Program) -> dict[str, Check]:
    return {item.name: item for item in rule_checks(program, load_arch("trn2"))}


def test_counts_are_those_of_the_text_and_what_is_behind_a_broken_rule_is_left_out() -> None:
    program = compile_graph(build("softmax:rows=300,cols=48"), load_arch("trn2"))
    text, found = print_program(program), checks_of(program)
    instructions = len(re.findall(r"^ +[A-Z]", text, re.M))
    waits = sum(len(tokens.split(",")) for tokens in re.findall(r"wait\(([^)]*)\)", text))
    assert found["engine-op"].looked_at == f"{instructions} instructions"
    assert found["channel-consumer"].looked_at == f"{waits} waits"
    assert found["loop-count"].looked_at == f"{len(re.findall('^ *loop ', text, re.M))} loops"
    assert found["buffer-size"].looked_at == f"{len(re.findall('^buffer ', text, re.M))} buffers"
    far = tuple(replace(b, address=1 << 40) if b.partitions else b for b in program.buffers)
    found = checks_of(replace(program, buffers=far))
    assert found["memory-capacity"].passed is False
    assert "ends at byte" in found["memory-capacity"].found
    assert found["buffer-size"].passed is None
    assert found["buffer-size"].looked_at.endswith("left out, as memory-capacity is broken")


def test_a_deadlock_is_a_broken_rule() -> None:
    program = compile_graph(build("softmax:rows=300,cols=48"), load_arch("trn2"))
    late = next(c for c in program.channels if c.initial)
    reverse = {name: (*nodes, Sync(signals=((late.name, late.initial),))) for name, nodes in program.streams}
    streams = tuple((n, reverse[n] if n == late.producer else nodes) for n, nodes in program.streams)
    channels = tuple(replace(c, initial=0) if c is late else c for c in program.channels)
    found = checks_of(replace(program, streams=streams, channels=channels))
    assert found["token-balance"].passed
    assert found["deadlock"].passed is False
    assert "op 'y'" in found["deadlock"].found
    assert found["race"].passed is None


def test_a_lost_matmul_and_a_strange_op_are_found() -> None:
    graph, arch = build("gemm:m=64,k=256,n=64"), load_arch("trn2")
    program = compile_graph(graph, arch)
    assert _conserved(graph, program).passed
    assert _attributed(graph, program).passed

    def changed(**fields: object) -> Program:
        def inside(nodes: tuple[Node, ...]) -> tuple[Node, ...]:
            return tuple(
                replace(node, body=inside(node.body))
                if isinstance(node, Loop)
                else replace(node, **fields)  # type: ignore[arg-type]
                if isinstance(node, Matmul)
                else node
                for node in nodes
            )

        return replace(program, streams=tuple((name, inside(nodes)) for name, nodes in program.streams))

    assert _conserved(graph, changed(model=False)).passed is False
    assert _attributed(graph, changed(op="nobody")).found == "not in the graph: nobody"


def test_a_check_that_is_left_out_says_why() -> None:
    found = {item.name: item for item in verify_point(Point("trn2", "gemm:m=2048,k=2048,n=1024"))}
    assert found["race"].passed
    assert found["numbers"].passed is None
    assert found["numbers of uneven sizes"].passed is None
    for item in found.values():
        assert (item.passed is None) == ("left out" in item.looked_at)


def test_a_failed_check_fails_the_proof_but_one_left_out_does_not() -> None:
    assert Proof((Check("a", "b", None),), (), ()).passed
    assert not Proof((Check("a", "b", passed=False),), (), ()).passed
    assert prove(Point("trn1", "softmax:rows=70,cols=100"), verify=True, numbers=False).outputs == ()


def test_verify_and_numerics_of_the_command_line(tmp_path: Path) -> None:
    folder = tmp_path / "report"
    code, out, _ = dse(
        "compile", "edge-npu", "bert-tiny", "--verify", "--numerics", "--report", str(folder), "--json", "-"
    )
    data = json.loads(out)
    assert code == 0, data
    assert set(data) == {"checks", "ops", "outputs"}
    with (folder / "numerics.csv").open() as file:
        assert [row["op"] for row in csv.DictReader(file)] == [item["op"] for item in data["ops"]]
    assert (folder / "numerics.png").stat().st_size > 10_000


def test_report_without_numerics_is_refused(tmp_path: Path) -> None:
    code, _, err = dse("compile", "trn1", "bert-tiny", "--report", str(tmp_path / "r"))
    assert code == 2
    assert "--numerics" in err
