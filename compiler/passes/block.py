"""How passes rewrite: one block (the graph's own nodes, or those of a region) at a time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace

from compiler.ir.graph import Graph, Node, Repeat, Value


class Block:
    """The nodes of one scope under rewriting. Nodes of other scopes count only as readers."""

    def __init__(
        self, nodes: tuple[Node | Repeat, ...], values: dict[str, Value], outside: Counter[str]
    ) -> None:
        """Take `nodes`; `outside` counts the reads of each value from elsewhere, outputs and carries."""
        self.nodes = list(nodes)
        self.values = values
        self._outside = outside
        self._index()

    def _index(self) -> None:
        self._makers: dict[str, Node] = {}
        self._readers: dict[str, list[Node]] = {}
        for node in self.ops():
            for name in dict.fromkeys(node.inputs):
                self._readers.setdefault(name, []).append(node)
            for name in node.outputs:
                if self.values[name].kind == "activation":
                    self._makers[name] = node

    def ops(self) -> list[Node]:
        """The plain nodes, in order."""
        return [node for node in self.nodes if isinstance(node, Node)]

    def maker(self, name: str) -> Node | None:
        """The node of this block that makes the activation `name`, if it may be moved to its reader."""
        node = self._makers.get(name)
        return None if node is None or self.reads_state(node) else node

    def reads_state(self, node: Node) -> bool:
        """Whether `node` would read something else behind an update of a state."""
        return any(self.values[name].kind == "state" for name in node.inputs)

    def readers(self, name: str) -> list[Node]:
        """The nodes of this block that read `name`, each once."""
        return self._readers.get(name, [])

    def escapes(self, name: str) -> bool:
        """Whether `name` is read outside this block, or is an output or carried."""
        return self._outside[name] > 0

    def is_read_once(self, name: str) -> bool:
        """Whether just one operand of one node reads `name`, and nothing else does."""
        readers = self.readers(name)
        return len(readers) == 1 and readers[0].inputs.count(name) == 1 and not self.escapes(name)

    def replace(self, old: Node, new: Node) -> None:
        """Put `new` in the place of `old`."""
        self.nodes[self.nodes.index(old)] = new
        self._index()

    def put(self, nodes: tuple[Node | Repeat, ...]) -> None:
        """Hold these nodes instead, in this order."""
        self.nodes = list(nodes)
        self._index()

    def remove(self, *nodes: Node) -> None:
        """Take nodes out."""
        self.nodes = [node for node in self.nodes if node not in nodes]
        self._index()

    def rename_reads(self, old: str, new: str) -> None:
        """Let the nodes of this block that read `old` read `new`."""
        for node in self.readers(old):
            inputs = tuple(new if name == old else name for name in node.inputs)
            self.nodes[self.nodes.index(node)] = replace(node, inputs=inputs)
        self._index()


def rewrite_blocks(graph: Graph, step: Callable[[Block], bool]) -> Graph:
    """Apply `step`, which makes one change and tells whether it did, to each block until it does not."""
    values = graph.value_map()
    reads = _all_reads(graph)

    def rewritten(nodes: tuple[Node | Repeat, ...]) -> tuple[Node | Repeat, ...]:
        inside = Counter(name for node in nodes if isinstance(node, Node) for name in node.inputs)
        block = Block(nodes, values, reads - inside)
        while step(block):
            pass
        return tuple(block.nodes)

    top: list[Node | Repeat] = []
    for node in rewritten(graph.nodes):
        if isinstance(node, Repeat):
            inner = tuple(n for n in rewritten(node.nodes) if isinstance(n, Node))
            top.append(replace(node, nodes=inner))
        else:
            top.append(node)
    return graph.with_nodes(tuple(top))


def _all_reads(graph: Graph) -> Counter[str]:
    """How often each value is read: by nodes, as an output of the graph, and by carries."""
    reads = Counter(graph.outputs)
    for node, _ in graph.walk():
        reads.update(node.inputs)
    for region in graph.nodes:
        if isinstance(region, Repeat):
            reads.update(name for carry in region.carries for name in (carry.init, carry.final))
    return reads
