"""Where two ops want one value in different orders, put a `relayout` between them.

Nodes are asked in program order. A value lies as the first op that cares wants it; a later one that
wants it otherwise reads a copy, which later ones of the same mind share.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from arch_configs.spec import ArchSpec
from compiler.ir.graph import Graph, Node, Repeat, TensorType, Value
from compiler.ir.layout import Layout
from compiler.kernels import KERNELS
from compiler.kernels.wants import Features, Fixed, Same, Want
from compiler.ops.tensor import Relayout


def with_relayouts(graph: Graph, arch: ArchSpec) -> Graph:
    """`graph` with every disagreement about layouts resolved."""
    return _Agreement(graph, arch).resolved()


@dataclass(slots=True)
class _Group:
    """What is known of values that lie alike."""

    fixed: Layout | None = None
    features: bool = False  # features must be on partitions

    def allows(self, want: _Group) -> bool:
        """Whether both can be had at once."""
        if self.fixed is not None and want.fixed is not None:
            return self.fixed == want.fixed
        rows = any(g.fixed is not None and not g.fixed.splits for g in (self, want))
        return not (rows and (self.features or want.features))

    def take(self, want: _Group) -> None:
        """Both."""
        self.fixed = self.fixed or want.fixed
        self.features = self.features or want.features


@dataclass(slots=True)
class _Agreement:
    graph: Graph
    arch: ArchSpec
    parent: dict[str, str] = field(default_factory=dict)
    groups: dict[str, _Group] = field(default_factory=dict)
    types: dict[str, TensorType] = field(default_factory=dict)
    made: list[Value] = field(default_factory=list)

    def resolved(self) -> Graph:
        """Ask all nodes in order."""
        self.types = {value.name: value.type for value in self.graph.values}
        for region in self.graph.nodes:
            for carry in region.carries if isinstance(region, Repeat) else ():
                for name in (carry.inner, carry.final, carry.result):
                    self._tie(carry.init, name)
        nodes: list[Node | Repeat] = []
        top: dict[tuple[str, str], str] = {}
        for node in self.graph.nodes:
            if isinstance(node, Repeat):
                copies: dict[tuple[str, str], str] = {}
                inner = tuple(n for part in node.nodes for n in self._node(part, copies))
                nodes.append(replace(node, nodes=inner))
            else:
                nodes += self._node(node, top)
        if not self.made:
            return self.graph
        return replace(self.graph, values=(*self.graph.values, *self.made), nodes=tuple(nodes))

    def _node(self, node: Node, copies: dict[tuple[str, str], str]) -> Iterable[Node]:
        """The node with relayouts in front of and behind it."""
        names = [*node.inputs, *node.outputs]
        wants = KERNELS[node.op.kind].wants(node, self.types, self.arch)
        before: list[Node] = []
        after: list[Node] = []
        # An operand that shall lie like another comes when it is known how that one lies.
        for i, want in sorted(enumerate(wants), key=lambda item: isinstance(item[1], Same)):
            asked = self._asked(want, names)
            root = self._root(names[i])
            if asked is None or self.groups[root].allows(asked):
                if isinstance(want, Same):
                    self._tie(names[i], names[want.other])
                elif asked is not None:
                    self.groups[root].take(asked)
                continue
            old = names[i]
            if i < len(node.inputs):
                key = (old, f"{asked.fixed}{asked.features}")
                if key not in copies or isinstance(want, Same):
                    copies[key] = self._fresh(old)
                    before.append(_relayout(old, copies[key]))
                names[i] = copies[key]
            else:
                names[i] = self._fresh(old)
                after.append(_relayout(names[i], old))
            self.groups[self._root(names[i])].take(asked)
            if isinstance(want, Same):
                self._tie(names[i], names[want.other])
        split = len(node.inputs)
        changed = replace(node, inputs=tuple(names[:split]), outputs=tuple(names[split:]))
        return (*before, changed, *after)

    def _asked(self, want: Want, names: list[str]) -> _Group | None:
        if isinstance(want, Fixed):
            return _Group(want.layout)
        if isinstance(want, Features):
            return _Group(features=True)
        return self.groups[self._root(names[want.other])] if isinstance(want, Same) else None

    def _fresh(self, name: str) -> str:
        """A new value like `name`."""
        new = next(n for i in range(1, len(self.types) + 2) if (n := f"{name}.relayout{i}") not in self.types)
        self.types[new] = self.types[name]
        self.made.append(Value(new, self.types[name]))
        return new

    def _root(self, name: str) -> str:
        while self.parent.setdefault(name, name) != name:
            name = self.parent[name]
        self.groups.setdefault(name, _Group())
        return name

    def _tie(self, one: str, other: str) -> None:
        a, b = self._root(one), self._root(other)
        if a != b:
            self.parent[b] = a
            self.groups[a].take(self.groups[b])


def _relayout(source: str, target: str) -> Node:
    return Node(f"{target} from {source}", Relayout(), (source,), (target,))
