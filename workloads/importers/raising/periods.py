"""Layers of graphs whose nodes have no module paths: found as the longest run that repeats."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from compiler.ir.graph import Graph, Node

SHORTEST = 6  # nodes of a layer; assumed: less is no layer


def with_periods(graph: Graph, paths: Mapping[str, str]) -> Mapping[str, str]:
    """`paths`, with `layers.i` for the nodes of repeated parts if no node has a path."""
    if any(paths.get(node.name) for node, _ in graph.walk()):
        return paths
    nodes = [node for node in graph.nodes if isinstance(node, Node)]
    values = graph.value_map()
    signs = [(node.op, tuple((values[n].type, values[n].kind) for n in node.inputs)) for node in nodes]
    numbers: dict[object, int] = {}
    start, period, count = _longest([numbers.setdefault(sign, len(numbers)) for sign in signs])
    found = dict(paths)
    for first in range(start, start + period):
        rounds = (start + period * count - first) // period
        if rounds > 1 and _hands_on_one(nodes, first, period):
            for i in range(first, first + period * rounds):
                found[nodes[i].name] = f"layers.{(i - first) // period}"
            break
    return found


def _hands_on_one(nodes: Sequence[Node], first: int, period: int) -> bool:
    """Whether of all values made up to the second layer, it and those after read one of the first layer."""
    made = {name for node in nodes[first : first + period] for name in node.outputs}
    return len({name for node in nodes[first + period :] for name in node.inputs} & made) == 1


def _longest(signs: Sequence[int]) -> tuple[int, int, int]:
    """(start, period, count) of the run that covers most, the one of the shortest period among equals."""
    best, covered = (0, 0, 0), 0
    for period in range(SHORTEST, len(signs) // 2 + 1):
        length = 0
        for i in range(len(signs) - period):
            length = length + 1 if signs[i] == signs[i + period] else 0
            count = length // period + 1
            if count > 1 and period * count > covered:
                # NOTE: the run may start before the layer does; what is handed on decides that.
                best, covered = (i - length + 1, period, count), period * count
    return best
