"""Kernels of users in whole models: the option `kernels`, such as `attention=mine.py:flash`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from compiler.errors import CompileError
from compiler.ir.graph import Graph, Node, Repeat, TensorType
from compiler.kernels.custom import bound_sizes
from compiler.ops.custom import Custom
from dse.digest import digest_text
from dse.errors import SpaceError, did_you_mean
from dse.kernel_files import load_kernel, split_target


def with_kernels(graph: Graph, texts: Sequence[str]) -> Graph:
    """`graph` with the ops that `texts` name, by kind or by name, lowered by kernels of the user.

    This comes before the passes, which leave such an op alone. Raises SpaceError with all problems.
    """
    if not texts:
        return graph
    problems: list[str] = []
    chosen: dict[str, Custom] = {}
    nodes = [node for node, _ in graph.walk()]
    known = {name: None for node in nodes for name in (node.op.kind, node.name)}
    for text in texts:
        target, equals, place = text.partition("=")
        where = f"kernels: {text}"
        if not equals or not place:
            problems.append(f"{where}: got no '=', want OP=FILE.py:NAME")
        elif target not in known:
            kinds = ", ".join(sorted({node.op.kind for node in nodes}))
            close = did_you_mean(target, known)
            problems.append(f"{where}: got no op {target!r} in the model{close}; kinds: {kinds}")
        else:
            try:
                chosen |= _chosen(graph, target, place)
            except SpaceError as error:
                problems += [f"kernels: {line}" for line in error.problems]
    if problems:
        raise SpaceError(problems)
    return replace(graph, nodes=tuple(_replaced(node, chosen) for node in graph.nodes))


def _chosen(graph: Graph, target: str, place: str) -> dict[str, Custom]:
    """The op of each node that `target` means."""
    kernel = load_kernel(place)
    digest = digest_text(Path(split_target(place)[0]).read_text(encoding="utf-8"))
    types: Mapping[str, TensorType] = {value.name: value.type for value in graph.values}
    found, problems = {}, []
    for node, _ in graph.walk():
        if target not in (node.op.kind, node.name):
            continue
        try:
            bound_sizes(kernel, node.op, [types[n] for n in node.inputs], [types[n] for n in node.outputs])
        except CompileError as error:
            problems.append(f"{place}: {node.name}: {error}")
        found[node.name] = Custom(node.op, kernel.name, digest, kernel)
    if problems:
        raise SpaceError(problems)
    return found


def _replaced(node: Node | Repeat, chosen: Mapping[str, Custom]) -> Node | Repeat:
    if isinstance(node, Repeat):
        inner = tuple(replace(n, op=chosen[n.name]) if n.name in chosen else n for n in node.nodes)
        return replace(node, nodes=inner)
    return replace(node, op=chosen[node.name]) if node.name in chosen else node
