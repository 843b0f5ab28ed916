"""Attention over latents in the cheaper of two ways: weights absorbed, or keys and values made."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from typing_extensions import override

from arch_configs.spec import ArchSpec
from compiler.ir.graph import Graph, Node, Repeat, Value
from compiler.ops.base import Op
from compiler.ops.latent import CacheRows, HeadLinear, LatentAttention, LatentDecode, SharedKeyAttention
from compiler.ops.matmul import Linear
from compiler.passes.base import Pass

FEW = 16  # new tokens of a sequence up to which each may have query tiles of its own; assumed


@dataclass(frozen=True, slots=True)
class AbsorbLatent(Pass):
    """`q . (c w_k) = (q w_k^T) . c` and `p (c w_v) = (p c) w_v`: weights move to queries and results.

    The cache is then both keys and values. Source: DeepSeek-V2, arXiv:2405.04434, section 2.1.2. Where there
    are so many queries that it is cheaper to make the keys and values of all positions, they are made.
    """

    name: ClassVar[str] = "absorb-latent"

    @override
    def run(self, graph: Graph, arch: ArchSpec) -> Graph:
        writer = _Writer(graph)
        top: list[Node | Repeat] = []
        for node in graph.nodes:
            if isinstance(node, Repeat):
                inner = tuple(new for old in node.nodes for new in writer.rewritten(old))
                top.append(replace(node, nodes=inner))
            else:
                top += writer.rewritten(node)
        return replace(graph, values=tuple(writer.values.values())).with_nodes(tuple(top))


class _Writer:
    """The values of a graph, and nodes in place of others."""

    def __init__(self, graph: Graph) -> None:
        self.values = graph.value_map()

    def rewritten(self, node: Node) -> list[Node]:
        """The nodes in place of `node`."""
        op = node.op
        if not isinstance(op, LatentAttention):
            return [node]
        types = tuple(self.values[name].type for name in node.inputs)
        absorbed, made = op.ways(types)
        can_make = types[4].shape[1] == types[5].shape[1]
        if can_make and (made < absorbed or op.queries > FEW):
            return self._made(node, op)
        return self._absorbed(node, op)

    def _step(self, node: Node, name: str, op: Op, *inputs: str) -> Node:
        """A node in front of the last one, and its value."""
        (kind,) = op.infer(tuple(self.values[i].type for i in inputs))
        full = f"{node.name}.{name}"
        self.values[full] = Value(full, kind)
        return Node(full, op, inputs, (full,))

    def _absorbed(self, node: Node, op: LatentAttention) -> list[Node]:
        q, q_rope, latents, keys, w_k, w_v = node.inputs
        decode = LatentDecode(op.batch, op.heads, op.rope, op.length, op.scale, op.queries)
        query = self._step(node, "query", HeadLinear(op.heads, turned=True), q, w_k)
        mixed = self._step(node, "mixed", decode, query.name, q_rope, latents, keys)
        return [query, mixed, Node(node.name, HeadLinear(op.heads), (mixed.name, w_v), node.outputs)]

    def _made(self, node: Node, op: LatentAttention) -> list[Node]:
        q, q_rope, latents, keys, w_k, w_v = node.inputs
        rows = self._step(node, "latents", CacheRows(op.length), latents)
        k_rope = self._step(node, "k_rope", CacheRows(op.length), keys)
        k = self._step(node, "k", Linear(), rows.name, w_k)
        v = self._step(node, "v", Linear(), rows.name, w_v)
        sizes = (op.batch, op.heads, op.heads, self.values[w_k].type.shape[1] // op.heads)
        offset = op.length - op.queries
        attend = SharedKeyAttention(*sizes, causal=True, scale=op.scale, rope=op.rope, offset=offset)
        operands = (q, k.name, v.name, q_rope, k_rope.name)
        return [rows, k_rope, k, v, Node(node.name, attend, operands, node.outputs)]
