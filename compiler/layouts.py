"""Which axis order every value has in DRAM, chosen over the whole graph.

Kernels state what they need of each operand: a fixed layout, features on partitions in blocks of any
size, or the same layout as another operand. Values tied together form a group; a group takes the fixed
layout one of its kernels names, else features on partitions. Weights follow from the layers they feed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from arch_configs.spec import ArchSpec
from compiler.errors import CompileError
from compiler.ir.graph import Graph, Node, Repeat, TensorType
from compiler.ir.layout import ROW_MAJOR, Layout, channel_blocked, feature_blocked
from compiler.kernels import KERNELS
from compiler.kernels.site import base_block
from compiler.kernels.wants import Features, Fixed, Follows, Same


@dataclass(slots=True)
class _Groups:
    """Values that must lie alike (union-find) and what each group was asked for."""

    parent: dict[str, str]
    fixed: dict[str, tuple[Layout, str]]

    def root(self, name: str) -> str:
        while self.parent.setdefault(name, name) != name:
            name = self.parent[name]
        return name

    def tie(self, one: str, other: str) -> None:
        a, b = self.root(one), self.root(other)
        if a == b:
            return
        first, second = min(a, b), max(a, b)
        self.parent[second] = first
        if second in self.fixed:
            self.fix(first, *self.fixed.pop(second))

    def fix(self, name: str, layout: Layout, by: str) -> None:
        root = self.root(name)
        old = self.fixed.get(root)
        if old is not None and old[0] != layout:
            raise CompileError(
                f"{by}: wants {name} as {layout}, but {old[1]} wants it as {old[0]}; put a transpose between"
            )
        self.fixed[root] = (layout, by)


def assign_layouts(graph: Graph, arch: ArchSpec) -> dict[str, Layout]:
    """The layout of every value. Raises CompileError where two ops cannot agree."""
    types = {value.name: value.type for value in graph.values}
    groups = _Groups({}, {})
    follows: list[tuple[str, Follows, Node]] = []
    features: list[tuple[str, str]] = []
    for node, _ in graph.walk():
        _ask(node, types, arch, groups, follows, features)
    for region in graph.nodes:
        if isinstance(region, Repeat):
            for carry in region.carries:
                for name in (carry.inner, carry.final, carry.result):
                    groups.tie(carry.init, name)
    blocked = {groups.root(name) for name in (*(name for name, _ in features), *_by_array(graph, types))}
    followers = {name for name, _, _ in follows}
    layouts = {
        name: _chosen(name, types[name], arch, groups, blocked)
        for name in types
        if name not in followers or groups.root(name) in groups.fixed
    }
    for name, by in features:
        if not layouts[name].splits:
            raise CompileError(
                f"{by}: wants features of {name} on partitions, but rows are; insert a transpose"
            )
    for name, want, node in follows:
        layout = want.rule({n: layouts[n] for n in (*node.inputs, *node.outputs) if n in layouts}, node)
        if layouts.setdefault(name, layout) != layout:
            raise CompileError(
                f"{node.name}: {name} is used twice with different layouts; give each its own copy"
            )
    return layouts


def _by_array(graph: Graph, types: Mapping[str, TensorType]) -> list[str]:
    """Values that an op with contractions reads or makes."""
    return [
        name
        for node, _ in graph.walk()
        if node.op.macs(tuple(types[name] for name in node.inputs))
        for name in (*node.inputs, *node.outputs)
    ]


def _chosen(name: str, kind: TensorType, arch: ArchSpec, groups: _Groups, blocked: set[str]) -> Layout:
    """What one of the kernels fixed, else features on partitions.

    On a grid only if the array works on the value or a kernel asks for it: cores take rows of what is left,
    which then lie in one piece.
    """
    root = groups.root(name)
    if root in groups.fixed:
        return groups.fixed[root][0]
    return ROW_MAJOR if arch.grid and root not in blocked else _default(kind, arch)


def _ask(
    node: Node,
    types: Mapping[str, TensorType],
    arch: ArchSpec,
    groups: _Groups,
    follows: list[tuple[str, Follows, Node]],
    features: list[tuple[str, str]],
) -> None:
    names = (*node.inputs, *node.outputs)
    wants = KERNELS[node.op.kind].wants(node, types, arch)
    for name, want in zip(names, wants, strict=True):
        if isinstance(want, Fixed):
            groups.fix(name, want.layout, node.name)
        elif isinstance(want, Same):
            groups.tie(name, names[want.other])
        elif isinstance(want, Follows):
            follows.append((name, want, node))
        elif isinstance(want, Features):
            features.append((name, node.name))


def _default(kind: TensorType, arch: ArchSpec) -> Layout:
    if len(kind.shape) == 2:
        return feature_blocked(min(base_block(arch), kind.shape[1]))
    if len(kind.shape) == 4:
        return channel_blocked(min(base_block(arch), kind.shape[1]))
    return ROW_MAJOR
