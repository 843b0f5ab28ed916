"""Attention whose keys have a rotary part that all heads share: its pieces are behind those of each head."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from typing_extensions import override

from arch_configs.spec import ArchSpec
from compiler.builder import Builder, Range, Tensor
from compiler.ir.graph import Node, TensorType
from compiler.ir.layout import ROW_MAJOR, feature_blocked
from compiler.isa import Access, Affine
from compiler.kernels.attention import Group, Prefill
from compiler.kernels.flash import Chunk, Lane, Source, Start
from compiler.kernels.kv import Resident
from compiler.kernels.site import Site, head_block
from compiler.kernels.wants import Fixed, Kernel, Want
from compiler.ops.latent import SharedKeyAttention


def _wants(node: Node, types: Mapping[str, TensorType], arch: ArchSpec) -> tuple[Want, ...]:
    op = node.op
    assert isinstance(op, SharedKeyAttention)
    heads = Fixed(feature_blocked(head_block(arch, op.head_dim)))
    rotary = Fixed(feature_blocked(head_block(arch, op.rope)))
    return heads, heads, Fixed(ROW_MAJOR), rotary, rotary, heads


@dataclass(frozen=True, slots=True)
class _Keys:
    """Keys and values of a head, and the rotary keys [block, blocks, seq]."""

    own: Resident
    rotary: Tensor

    def chunk(self, start: Start, width: int) -> Chunk:
        """A window of the tiles."""
        own, blocks = self.own.chunk(start, width), self.own.keys.shape[1]

        def keys(head: int, h: int, at: int, size: int) -> Access:
            if h < blocks:
                return own.keys(head, h, at, size)
            return self.rotary[:, h - blocks, (start + at, size)]

        return Chunk(keys, own.values)


class _Queries(Group):
    """Query rows with their rotary parts."""

    def __init__(
        self, prefill: _SharedKeyPrefill, batch: Affine, rows: Range, heads: list[tuple[Affine, Source]]
    ) -> None:
        """Load both."""
        sizes, extras = prefill.sizes, prefill.extras
        super().__init__(prefill.b, prefill.site, sizes, extras, batch, rows, prefill.seq, heads)
        columns = (self.start, rows.size)
        self.rotary = [prefill.rotary(3, head * prefill.blocks, columns) for head, _ in heads]

    @override
    def lane(self, i: int, q: Range) -> Lane:
        blocks, rotary = self.sizes.head_blocks, self.rotary[i]
        columns = (q.start, q.size)

        def query(h: int) -> Access:
            return self.queries[i][:, h, columns] if h < blocks else rotary[:, h - blocks, columns]

        return Lane(0, q.size, query, pieces=blocks + rotary.shape[1])


class _SharedKeyPrefill(Prefill):
    """The loops of attention, with rotary parts loaded beside queries and keys."""

    def __init__(self, b: Builder, site: Site, op: SharedKeyAttention) -> None:
        """Choose tile sizes."""
        super().__init__(b, site, op)
        self.blocks = op.rope // site.inputs[3].block  # of the rotary part of a head

    def rotary(self, operand: int, first: Affine | int, columns: tuple[Start, int]) -> Tensor:
        """Rotary parts of queries (3) or keys (4), [block, blocks, rows], from block `first` on."""
        port = self.site.inputs[operand]
        shape = (port.block, self.blocks, columns[1])
        tile = self.b.scratch(shape, self.sizes.dtype, slots=self.site.slots, name="r")
        self.b.dma(tile[:], port.tensor[:, (first, self.blocks), columns])
        return tile

    @override
    def load(self, batch: Affine, head: Affine, start: Start, length: int) -> Source:
        own = super().load(batch, head, start, length)
        assert isinstance(own, Resident)
        return _Keys(own, self.rotary(4, 0, (batch * self.seq + start, length)))

    @override
    def open(self, batch: Affine, heads: list[tuple[Affine, Source]], rows: Range) -> Group:
        return _Queries(self, batch, rows, heads)


def shared_key_attention(b: Builder, site: Site) -> None:
    """Lower a `SharedKeyAttention` op."""
    assert isinstance(site.op, SharedKeyAttention)
    _SharedKeyPrefill(b, site, site.op).run()


KERNEL = Kernel(_wants, shared_key_attention)
