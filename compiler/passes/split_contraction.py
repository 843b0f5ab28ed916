"""Where an op has fewer tiles than a grid has cores: its contraction in parts, joined by a second op."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import ClassVar

from typing_extensions import override

from arch_configs.spec import ArchSpec
from compiler.ir.graph import Graph, Node, Repeat, TensorType, Value
from compiler.kernels.site import base_block
from compiler.ops.attention import DecodeAttention
from compiler.ops.base import Op
from compiler.ops.matmul import Linear
from compiler.ops.split import JoinParts, PartialDecode, PartialLinear, SumParts
from compiler.passes.base import Pass

PLAIN = Linear()
ROWS, COLUMNS = 128, 64  # of the tile that a core takes of a linear layer; assumed
LEAST_KEYS = 256  # positions of a part, below which its fixed costs show; assumed


@dataclass(frozen=True, slots=True)
class SplitContraction(Pass):
    """Split-K for linear layers and flash decoding for attention over a cache, in at most `most` parts.

    Only on a grid, and only where a second launch costs less than the idle cores.
    """

    name: ClassVar[str] = "split-contraction"
    most: int = 32

    @override
    def run(self, graph: Graph, arch: ArchSpec) -> Graph:
        if arch.grid is None:
            return graph
        values = graph.value_map()
        top: list[Node | Repeat] = []
        for node in graph.nodes:
            if isinstance(node, Repeat):
                inner = tuple(new for old in node.nodes for new in self._split(old, values, arch))
                top.append(replace(node, nodes=inner))
            else:
                top += self._split(node, values, arch)
        return replace(graph, values=tuple(values.values())).with_nodes(tuple(top))

    @classmethod
    @override
    def space(cls, arch: ArchSpec) -> Iterator[SplitContraction]:
        yield from (cls(most=n) for n in (32, 8, 1))

    def _split(self, node: Node, values: dict[str, Value], arch: ArchSpec) -> list[Node]:
        types = tuple(values[name].type for name in node.inputs)
        found = self._halves(node.op, types, arch)
        if found is None:
            return [node]
        partial, join = found
        kinds = partial.infer(types)
        names = tuple(f"{node.name}.{part}" for part in ("parts", "sums"))[: len(kinds)]
        values.update({name: Value(name, kind) for name, kind in zip(names, kinds, strict=True)})
        return [Node(names[0], partial, node.inputs, names), Node(node.name, join, names, node.outputs)]

    def _halves(self, op: Op, types: tuple[TensorType, ...], arch: ArchSpec) -> tuple[Op, Op] | None:
        """The op in parts and the op that joins them; None if it is better whole."""
        if isinstance(op, DecodeAttention) and _sees_all(op):
            parts = self._parts_of_cache(op, arch)
            return (_partial(op, parts), JoinParts()) if parts > 1 else None
        if isinstance(op, Linear) and replace(op, out_dtype=None) == PLAIN:
            parts = self._parts_of_linear(types, arch)
            made = SumParts(op.infer(types)[0].dtype)
            return (PartialLinear(parts), made) if parts > 1 else None
        return None

    def _parts_of_cache(self, op: DecodeAttention, arch: ArchSpec) -> int:
        """As many as give each core a piece, while parts are whole blocks and long enough."""
        least, parts = max(LEAST_KEYS, base_block(arch)), 1
        while (
            2 * parts <= self.most
            and op.batch * op.kv_heads * parts < arch.cores
            and op.length % (2 * parts * base_block(arch)) == 0
            and op.length // (2 * parts) >= least
        ):
            parts *= 2
        return parts

    def _parts_of_linear(self, types: tuple[TensorType, ...], arch: ArchSpec) -> int:
        """The number of parts with the least time: operands into the cores, sums out and in again."""
        (t, k), n = types[0].shape, types[1].shape[1]
        assert arch.grid is not None
        tiles = -(-t // ROWS) * -(-n // COLUMNS)
        best, choice = 0.0, 1
        for parts in (1 << i for i in range(self.most.bit_length())):
            if (
                parts > self.most
                or k % (parts * arch.array.rows)
                or (parts > 1 and tiles * parts > arch.cores)
            ):
                break
            rate = min(arch.dram_sustained, tiles * parts * arch.dma_bandwidth)
            sums = 2 * 4 * parts * t * n / (arch.cores * arch.dma_bandwidth) if parts > 1 else 0
            starts = 2 * (arch.dma.issue + arch.dma.latency + arch.dma.completion) + arch.grid.launch
            time = (types[0].nbytes + types[1].nbytes) / rate + sums + starts * (parts > 1) / 10**12
            if parts == 1 or time < best:
                best, choice = time, parts
        return choice


def _sees_all(op: DecodeAttention) -> bool:
    return op.queries == 1 and not (op.window or op.bias or op.sinks) and type(op) is DecodeAttention


def _partial(op: DecodeAttention, parts: int) -> PartialDecode:
    return PartialDecode(
        op.batch, op.heads, op.kv_heads, op.head_dim, op.scale, op.length,
        causal=False, value_dim=op.value_dim, softcap=op.softcap, parts=parts,
    )  # fmt: skip
