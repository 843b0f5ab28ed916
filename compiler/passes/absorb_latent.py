"""Attention over latents without making keys and values of every position."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from typing_extensions import override

from arch_configs.spec import ArchSpec
from compiler.ir.graph import Graph, Node, Repeat, Value
from compiler.ops.latent import HeadLinear, LatentAttention, LatentDecode
from compiler.passes.base import Pass


@dataclass(frozen=True, slots=True)
class AbsorbLatent(Pass):
    """`q . (c w_k) = (q w_k^T) . c` and `p (c w_v) = (p c) w_v`: weights move to queries and results.

    Source: DeepSeek-V2, arXiv:2405.04434, section 2.1.2. The cache is then both keys and values.
    """

    name: ClassVar[str] = "absorb-latent"

    @override
    def run(self, graph: Graph, arch: ArchSpec) -> Graph:
        fresh: list[Value] = []
        top: list[Node | Repeat] = []
        for node in graph.nodes:
            if isinstance(node, Repeat):
                inner = tuple(new for old in node.nodes for new in _absorbed(graph, old, fresh))
                top.append(replace(node, nodes=inner))
            else:
                top += _absorbed(graph, node, fresh)
        return replace(graph, values=(*graph.values, *fresh)).with_nodes(tuple(top))


def _absorbed(graph: Graph, node: Node, fresh: list[Value]) -> list[Node]:
    """The nodes in place of `node`; their values are added to `fresh`."""
    op = node.op
    if not isinstance(op, LatentAttention):
        return [node]
    values = graph.value_map()
    q, q_rope, latents, keys, w_k, w_v = node.inputs
    inward, outward = HeadLinear(op.heads, turned=True), HeadLinear(op.heads)
    decode = LatentDecode(op.batch, op.heads, op.rope, op.length, op.scale, op.queries)
    (kind,) = inward.infer((values[q].type, values[w_k].type))
    query, mixed = f"{node.name}.query", f"{node.name}.mixed"
    fresh += [Value(query, kind), Value(mixed, kind)]
    return [
        Node(query, inward, (q, w_k), (query,)),
        Node(mixed, decode, (query, q_rope, latents, keys), (mixed,)),
        Node(node.name, outward, (mixed, w_v), node.outputs),
    ]
