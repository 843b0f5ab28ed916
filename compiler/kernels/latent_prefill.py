"""Attention whose keys have a rotary part that all heads share: its pieces are behind those of each head."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial

from typing_extensions import override

from arch_configs.spec import ArchSpec
from compiler.builder import Builder, Range, Tensor
from compiler.ir.graph import Node, TensorType
from compiler.ir.layout import feature_blocked
from compiler.isa import Access, Affine
from compiler.kernels.attention import Group, Prefill, bands
from compiler.kernels.flash import Chunk, Lane, Source, Start
from compiler.kernels.kv import Load, Resident
from compiler.kernels.site import Site, head_block
from compiler.kernels.wants import PLAIN, Fixed, Kernel, Want
from compiler.ops.latent import SharedKeyAttention


def _wants(node: Node, types: Mapping[str, TensorType], arch: ArchSpec) -> tuple[Want, ...]:
    op = node.op
    assert isinstance(op, SharedKeyAttention)
    heads = Fixed(feature_blocked(head_block(arch, op.head_dim)))
    rotary = Fixed(feature_blocked(head_block(arch, op.rope)))
    return heads, heads, PLAIN, rotary, rotary, heads


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
        op = prefill.op
        assert isinstance(op, SharedKeyAttention)
        blocks = op.rope // prefill.site.inputs[3].block
        self.rotary = [_rotary(prefill.b, prefill.site, 3, head * blocks, columns) for head, _ in heads]

    @override
    def lane(self, i: int, q: Range) -> Lane:
        blocks, rotary = self.sizes.head_blocks, self.rotary[i]
        columns = (q.start, q.size)

        def query(h: int) -> Access:
            return self.queries[i][:, h, columns] if h < blocks else rotary[:, h - blocks, columns]

        return Lane(0, q.size, query, pieces=blocks + rotary.shape[1])


def _rotary(b: Builder, site: Site, operand: int, first: Affine | int, columns: tuple[Start, int]) -> Tensor:
    """Rotary parts of a head's queries (3) or of keys (4), [block, blocks, rows], from block `first` on."""
    op, port = site.op, site.inputs[operand]
    assert isinstance(op, SharedKeyAttention)
    blocks = op.rope // port.block
    tile = b.scratch((port.block, blocks, columns[1]), port.type.dtype, slots=site.slots, name="r")
    b.dma(tile[:], port.tensor[:, (first, blocks), columns])
    return tile


def _with_rotary(b: Builder, site: Site, keys: int, load: Load) -> Load:
    """`load`, and the rotary keys of the same positions, of `keys` a sequence."""

    def both(batch: Affine, head: Affine, start: Start, width: int) -> Source:
        own = load(batch, head, start, width)
        assert isinstance(own, Resident)
        return _Keys(own, _rotary(b, site, 4, 0, (batch * keys + start, width)))

    return both


class _SharedKeyPrefill(Prefill):
    """The loops of attention, with rotary parts loaded beside queries and keys."""

    @override
    def load(self, batch: Affine, head: Affine, start: Start, length: int) -> Source:
        return _with_rotary(self.b, self.site, self.keys, super().load)(batch, head, start, length)

    @override
    def open(self, batch: Affine, heads: list[tuple[Affine, Source]], rows: Range) -> Group:
        return _Queries(self, batch, rows, heads)


def shared_key_attention(b: Builder, site: Site) -> None:
    """Lower a `SharedKeyAttention` op."""
    op = site.op
    assert isinstance(op, SharedKeyAttention)
    queries, keys = (site.inputs[i].type.shape[0] // op.batch for i in (0, 1))
    if not op.window and (not op.causal or (not op.offset and queries == keys)):
        _SharedKeyPrefill(b, site, op).run()
        return
    blocks = op.rope // site.inputs[3].block
    bands(
        b,
        site,
        op,
        wrap=partial(_with_rotary, b, site, keys),
        more=lambda head, columns: _rotary(b, site, 3, head * blocks, columns),
    )


KERNEL = Kernel(_wants, shared_key_attention)
