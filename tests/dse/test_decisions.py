"""`--dump decisions`: what was chosen is what the program does, and what came next is a plan that was not."""

from __future__ import annotations

import re

import pytest

from compiler import optimise, tile_graph
from compiler.decisions import decide
from dse.costs import LawCost
from dse.dump import dump_point
from dse.evaluation import resolve
from dse.point import Point


def test_the_runner_up_is_the_fastest_that_reads_otherwise() -> None:
    found = decide("op", "tiles", [(10, "a"), (11, "a"), (13, "c"), (12, "b")], (10, "a"), 9, str)
    assert (found.runner_up, found.runner_up_ps, found.reason) == ("b", 12, "least time")
    assert (found.considered, found.fitting) == (9, 4)
    alone = decide("op", "tiles", [(10, "a")], (10, "a"), 1, str)
    assert alone.runner_up == ""
    assert "10.0% over" in decide("op", "tiles", [(10, "a"), (11, "b")], (11, "b"), 2, str).reason


def test_every_linear_layer_has_its_plan_and_rivals() -> None:
    arch, graph, options = resolve(Point("trn2", "llama3-8b:prefill,seq=2048,layers=2"))
    lowered, _ = tile_graph(optimise(graph, arch, options), arch, options, LawCost(arch))
    by_op = {decision.op: decision for decision in lowered.tiles.decisions}
    linears = [n.name for n, _ in optimise(graph, arch, options).walk() if n.op.kind == "linear"]
    assert set(linears) < set(by_op)
    for name in linears:
        assert by_op[name].considered >= by_op[name].fitting > 1
        assert by_op[name].runner_up not in ("", by_op[name].chosen)
        assert by_op[name].time_ps > 0


@pytest.mark.parametrize(
    ("arch", "workload"),
    [
        ("trn2", "llama-tiny:decode"),
        ("edge-npu", "resnet-tiny"),
        ("trn1", "moe-tiny"),
        ("tpu-v5e", "unet-tiny"),
    ],
)
def test_the_text_names_every_op_once_as_chosen_or_as_a_rule(arch: str, workload: str) -> None:
    point = Point(arch, workload)
    text = dump_point(point, "decisions")
    spec, graph, options = resolve(point)
    rule = re.search(r"by rule, without a choice: (.*)", text)
    by_rule = set(rule.group(1).split(", ")) if rule else set()
    chosen = set(re.findall(r"^  ([\w./-]+): (?:tiles|norm)", text, re.MULTILINE))
    assert by_rule | chosen == {node.name for node, _ in optimise(graph, spec, options).walk()}
    assert not by_rule & chosen


def test_the_weight_given_to_traffic_is_told() -> None:
    gemm = "gemm:m=4096,k=4096,n=4096"
    assert "least time;" in dump_point(Point("trn2", gemm, options=(("traffic_slack", 0.0),)), "decisions")
    assert "0.7% over the least time, moves fewer" in dump_point(Point("trn2", gemm), "decisions")


def test_ops_that_were_made_smaller_are_listed() -> None:
    small = Point("trn1", "llama3-8b:prefill,seq=512,layers=1", (("memories.sbuf.capacity", "3 MiB"),))
    text = dump_point(small, "decisions")
    assert "of the scratchpad" in text.partition("made smaller")[2]
