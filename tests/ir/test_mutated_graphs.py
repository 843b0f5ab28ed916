"""Every rule of the graph level can fail: graphs of real models with one thing wrong, each named."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from sites import missed

import workloads
from compiler.errors import VerifyError
from compiler.ir import verify_graph as checker
from compiler.ir.graph import Graph, Node, Repeat, TensorType

DECODE = workloads.build("llama-tiny:decode,context=40")
CONV = workloads.build("resnet-tiny")
Change = Callable[[Graph], Graph]


def region(graph: Graph) -> Repeat:
    return next(node for node in graph.nodes if isinstance(node, Repeat))


def with_region(**changes: object) -> Change:
    return lambda graph: replace(
        graph,
        nodes=tuple(replace(n, **changes) if isinstance(n, Repeat) else n for n in graph.nodes),  # type: ignore[arg-type]
    )


def with_node(name: str, change: Callable[[Node], Node | None]) -> Change:
    """Another node of a name, inside a region or out; None drops it."""

    def inside(nodes: tuple[Node | Repeat, ...]) -> tuple[Node | Repeat, ...]:
        out: list[Node | Repeat] = []
        for node in nodes:
            if isinstance(node, Repeat):
                out.append(replace(node, nodes=inside(node.nodes)))  # type: ignore[arg-type]
            else:
                changed = change(node) if node.name == name else node
                out += [changed] if changed else []
        return tuple(out)

    return lambda graph: replace(graph, nodes=inside(graph.nodes))


def with_value(name: str, **changes: object) -> Change:
    return lambda graph: replace(
        graph,
        values=tuple(replace(v, **changes) if v.name == name else v for v in graph.values),  # type: ignore[arg-type]
    )


INNER = region(DECODE).nodes[0]
LAST = DECODE.nodes[-1]
CARRY = region(DECODE).carries[0]
STATE = next(v for v in DECODE.values if v.kind == "state")
WEIGHT = next(v for v in DECODE.values if v.kind == "weight" and v.stacked)
USER = next(n for n in region(DECODE).nodes if WEIGHT.name in n.inputs)
WRITER = next(n for n in region(DECODE).nodes if STATE.name in n.outputs)
OTHER_STATE = next(v for v in DECODE.values if v.kind == "state" and v.name != STATE.name)
FIRST, SECOND = [n for n in CONV.nodes if isinstance(n, Node)][:2]
assert isinstance(LAST, Node)

MUTATIONS: dict[str, tuple[Graph, Change, str]] = {
    "a value twice": (CONV, lambda g: replace(g, values=(*g.values, g.values[0])), CONV.values[0].name),
    "another kind": (CONV, with_value(CONV.values[0].name, kind="constant"), CONV.values[0].name),
    "an empty shape": (
        CONV, with_value(CONV.values[0].name, type=TensorType((0, 4), "bf16")), CONV.values[0].name),
    "copies of an activation": (CONV, with_value(FIRST.outputs[0], stacked=2), FIRST.outputs[0]),
    "an input that is not there": (
        CONV, with_node(FIRST.name, lambda n: replace(n, inputs=("none", *n.inputs[1:]))), FIRST.name),
    "an op dropped": (CONV, with_node(FIRST.name, lambda n: None), SECOND.name),
    "an output that nothing makes": (CONV, lambda g: replace(g, outputs=("none",)), "output"),
    "a weight made": (
        CONV, with_node(FIRST.name, lambda n: replace(n, outputs=(FIRST.inputs[1],))), FIRST.name),
    "made twice": (
        CONV, with_node(SECOND.name, lambda n: replace(n, outputs=FIRST.outputs)), SECOND.name),
    "two nodes of a name": (
        CONV, with_node(SECOND.name, lambda n: replace(n, name=FIRST.name)), FIRST.name),
    "a weight transposed": (
        DECODE, with_value(WEIGHT.name, type=TensorType((3, 5, 7, 11), "bf16")), USER.name),
    "a result too many": (
        CONV, with_node(FIRST.name, lambda n: replace(n, outputs=(*n.outputs, "more"))), FIRST.name),
    "a result of another type": (
        CONV, with_value(FIRST.outputs[0], type=TensorType((1, 2, 3, 4), "bf16")), FIRST.name),
    "a state updated unread": (
        DECODE, with_node(WRITER.name, lambda n: replace(n, outputs=(OTHER_STATE.name,))), WRITER.name),
    "a copy too few": (DECODE, with_value(WEIGHT.name, stacked=1), USER.name),
    "one state for all layers": (DECODE, with_value(STATE.name, stacked=0), WRITER.name),
    "no repeat": (DECODE, with_region(count=0), region(DECODE).name),
    "more repeats than weights": (DECODE, with_region(count=3), INNER.name),
    "an inner value outside": (
        DECODE, with_node(LAST.name, lambda n: replace(n, inputs=(CARRY.final, *n.inputs[1:]))), LAST.name),
    "an outer value carried": (
        DECODE, with_region(carries=(replace(CARRY, final=CARRY.init),)), region(DECODE).name),
    "another type carried": (
        DECODE, with_region(carries=(replace(CARRY, final=WRITER.inputs[1]),)), region(DECODE).name),
    "another type handed out": (
        DECODE, with_value(CARRY.result, type=TensorType((9, 9), "bf16")), region(DECODE).name),
}  # fmt: skip


def error_of(name: str) -> VerifyError:
    graph, change, _ = MUTATIONS[name]
    checker.verify_graph(graph)
    with pytest.raises(VerifyError) as caught:
        checker.verify_graph(change(graph))
    return caught.value


@pytest.mark.parametrize("name", MUTATIONS)
def test_the_rule_fails_and_names_the_node(name: str) -> None:
    assert MUTATIONS[name][2] in str(error_of(name))


def test_every_place_that_reports_a_rule_is_reached() -> None:
    assert not missed(checker, [error_of(name) for name in MUTATIONS])
