"""Equal consecutive layers become one region with a count."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from itertools import groupby

import numpy as np

from compiler.ir.graph import Carry, Graph, Node, Repeat, Value
from compiler.ops import Reshape
from compiler.ops.base import Array

_LAYER = re.compile(r"^(.*?)\.(\d+)(?:\.|$)")


@dataclass(frozen=True, slots=True)
class Rolled:
    """A graph with regions, and the arrays of its weights, stacked where the weights are."""

    graph: Graph
    weights: Mapping[str, Array]


def roll(graph: Graph, paths: Mapping[str, str], weights: Mapping[str, Array]) -> Rolled:
    """Group the nodes of each list of modules `prefix.0`, `prefix.1`, ... that do the same on other weights.

    `paths` gives the dotted module path of each node. Layers between which more than one value is handed on,
    or that differ in anything but their weights and states, stay as they are.
    """
    arrays = dict(weights)
    nodes: list[Node | Repeat] = []
    values = graph.value_map()
    paths = _without_ends(graph, paths)
    for key, run in groupby(_ordered(graph.nodes, paths), lambda n: _layer_of(paths.get(n.name, ""))[0]):
        members = [n for n in run if isinstance(n, Node)]
        if not key:
            nodes += members
            continue
        layers = [list(part) for _, part in groupby(members, lambda n: _layer_of(paths.get(n.name, ""))[1])]
        nodes += _runs(key, layers, values, arrays, graph)
    used: set[str] = set(graph.outputs)
    for node in nodes:
        if isinstance(node, Repeat):
            used.update(n for c in node.carries for n in (c.init, c.inner, c.final, c.result))
        for inner in node.nodes if isinstance(node, Repeat) else (node,):
            used.update((*inner.inputs, *inner.outputs))
    kept = tuple(value for value in values.values() if value.name in used)
    return Rolled(
        replace(graph, values=kept, nodes=tuple(nodes)), {n: a for n, a in arrays.items() if n in used}
    )


def _without_ends(graph: Graph, paths: Mapping[str, str]) -> dict[str, str]:
    """Reshapes that only others than their layer read belong to none."""
    readers: dict[str, set[str]] = {}
    for node, _ in graph.walk():
        for name in node.inputs:
            readers.setdefault(name, set()).add(_layer_of(paths.get(node.name, ""))[0])
    found = dict(paths)
    for node, _ in graph.walk():
        if isinstance(node.op, Reshape) and readers.get(node.outputs[0], {""}) == {""}:
            found[node.name] = ""
    return found


def _layer_of(path: str) -> tuple[str, int]:
    """The list of modules a path goes through first, and which of them; ("", 0) if through none."""
    found = _LAYER.match(path)
    return (found[1], int(found[2])) if found else ("", 0)


def _ordered(nodes: Iterable[Node | Repeat], paths: Mapping[str, str]) -> list[Node]:
    """Nodes outside of layers as early as they can stand, so that they do not part two layers."""
    flat = [n for n in nodes if isinstance(n, Node)]
    inside = {name for n in flat if _layer_of(paths.get(n.name, ""))[0] for name in n.outputs}
    late: set[str] = set(inside)
    early: list[Node] = []
    later: list[Node] = []
    for node in flat:
        if not late.intersection(node.inputs) and not late.intersection(node.outputs):
            early.append(node)
        else:
            late.update(node.outputs)
            later.append(node)
    return early + later


def _runs(
    key: str, layers: list[list[Node]], values: dict[str, Value], arrays: dict[str, Array], graph: Graph
) -> list[Node | Repeat]:
    """Maximal runs of equal layers as regions, everything else as it is."""
    found: list[Node | Repeat] = []
    at = 0
    while at < len(layers):
        end = at + 1
        while end < len(layers) and _matches(layers[at], layers[end], values):
            end += 1
        region = _region(f"{key}.{at}", layers[at:end], values, arrays, graph) if end - at > 1 else None
        found += [region] if region else [n for layer in layers[at:end] for n in layer]
        at = end
    return found


def _own(name: str, values: Mapping[str, Value]) -> bool:
    return values[name].kind in ("weight", "state")


def _signature(layer: list[Node], values: Mapping[str, Value]) -> list[object]:
    """What a layer does, with its inner values by position."""
    place = {name: f"%{i}.{j}" for i, node in enumerate(layer) for j, name in enumerate(node.outputs)}
    rows: list[object] = []
    seen: dict[str, str] = {}
    for node in layer:
        operands = []
        for name in node.inputs:
            if _own(name, values):
                seen.setdefault(name, f"w{len(seen)}")
                operands.append((seen[name], values[name].type, values[name].kind))
            else:
                operands.append((place.get(name, "outer"), values[name].type, values[name].kind))
        rows.append((node.op, tuple(operands), tuple(values[name].type for name in node.outputs)))
    return rows


def _matches(one: list[Node], other: list[Node], values: Mapping[str, Value]) -> bool:
    return len(one) == len(other) and _signature(one, values) == _signature(other, values)


def _region(
    name: str, layers: list[list[Node]], values: dict[str, Value], arrays: dict[str, Array], graph: Graph
) -> Repeat | None:
    """The region, or None if not exactly one value goes from each layer to the next."""
    carried = _handed_on(layers, values, graph)
    if carried is None:
        return None
    init, finals = carried
    first = layers[0]
    inner = f"{name}.in"
    result = finals[-1]
    values[inner] = replace(values[init], name=inner, kind="activation")
    inside = {node.name for layer in layers for node in layer}
    elsewhere = {n for node, _ in graph.walk() if node.name not in inside for n in node.inputs}
    renamed = {init: inner}
    for position, node in enumerate(first):
        for slot, weight in enumerate(node.inputs):
            copies = [layer[position].inputs[slot] for layer in layers]
            if not _own(weight, values) or len(set(copies)) == 1 or weight in renamed:
                continue
            # One that is read outside of the layers too stays there, and the layers have a copy.
            stack = f"{weight}.layers" if elsewhere.intersection(copies) else weight
            renamed[weight] = stack
            values[stack] = replace(values[weight], name=stack, stacked=len(layers))
            if all(copy in arrays for copy in copies):
                arrays[stack] = np.stack([arrays[copy] for copy in copies])
    final = finals[0]
    nodes = tuple(
        replace(
            node,
            inputs=tuple(renamed.get(n, n) for n in node.inputs),
            outputs=tuple(renamed.get(n, n) for n in node.outputs),
        )
        for node in first
    )
    return Repeat(name, len(layers), nodes, (Carry(init, inner, final, result),))


def _handed_on(
    layers: list[list[Node]], values: Mapping[str, Value], graph: Graph
) -> tuple[str, list[str]] | None:
    """The outer value that enters the first layer, and the value each layer hands on."""
    made = [{name for node in layer for name in node.outputs} for layer in layers]
    finals: list[str] = []
    places: set[tuple[tuple[int, int], ...]] = set()
    for layer, before, earlier in zip(layers[1:], made, _unions(made), strict=False):
        entered = {name for node in layer for name in node.inputs if name in earlier}
        if len(entered) != 1 or not entered <= before:
            return None
        finals.append(entered.pop())
        places.add(_reads(layer, finals[-1]))
    spots = next(iter(places))
    entering = {layers[0][p].inputs[s] for p, s in spots}
    init = next(iter(entering))
    if len(places) != 1 or len(entering) != 1 or _reads(layers[0], init) != spots:
        return None
    if values[init].kind != "activation":
        return None
    node = next(p for p, n in enumerate(layers[0]) if finals[0] in n.outputs)
    last = layers[-1][node].outputs[layers[0][node].outputs.index(finals[0])]
    inside = {n.name for layer in layers for n in layer}
    read = {
        n for node in graph.nodes if isinstance(node, Node) and node.name not in inside for n in node.inputs
    }
    hidden = set().union(*made) - {last}
    if hidden & (read | set(graph.outputs)):
        return None
    return init, [*finals, last]


def _unions(sets: list[set[str]]) -> Iterable[set[str]]:
    """All that was made up to each layer."""
    total: set[str] = set()
    for part in sets:
        total = total | part
        yield total


def _reads(layer: list[Node], name: str) -> tuple[tuple[int, int], ...]:
    return tuple((p, s) for p, node in enumerate(layer) for s, n in enumerate(node.inputs) if n == name)
