"""Rotary position embedding with the head dimension on partitions.

out = x * cos + partner * sin, where the partner of feature i is i +- half a head, with the sign of the
first half turned in the sine table. Partners sit on other partitions, so they come by their own transfer.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from arch_configs.spec import ArchSpec
from compiler.builder import Builder, Range, Tensor
from compiler.ir.dtype import dtype_bytes
from compiler.ir.graph import Node, TensorType
from compiler.ir.layout import Layout, feature_blocked
from compiler.isa import Access
from compiler.kernels.site import Site, head_block
from compiler.kernels.wants import Fixed, Kernel, Want
from compiler.ops.attention import Rope

FEATURES_FIRST = Layout((), (1, 0))


def _wants(node: Node, types: Mapping[str, TensorType], arch: ArchSpec) -> tuple[Want, ...]:
    op = node.op
    assert isinstance(op, Rope)
    heads = Fixed(feature_blocked(head_block(arch, op.head_dim)))
    return heads, Fixed(FEATURES_FIRST), Fixed(FEATURES_FIRST), heads


@dataclass(frozen=True, slots=True)
class _Piece:
    """Partitions `first .. first + size` of block `block`, and the feature of a head that goes there."""

    block: int
    first: int
    size: int
    feature: int


def _pieces(head_dim: int, block: int, shift: int, period: int) -> Iterator[_Piece]:
    """Where feature `(f + shift) % period` of each feature f of a head lies, in contiguous pieces."""
    feature = 0
    while feature < head_dim:
        source = (feature + shift) % period
        room = min(block - feature % block, period - source)
        yield _Piece(feature // block, feature % block, room, source)
        feature += room


def rope(b: Builder, site: Site) -> None:
    """Lower a `Rope` op."""
    op = site.op
    assert isinstance(op, Rope)
    x, out = site.inputs[0], site.outputs[0]
    block = x.block
    blocks = op.head_dim // block
    batch = x.type.shape[0] // op.seq
    heads, rows, sequences = _sizes(site, op, blocks, batch)
    for s in b.tiles(op.seq, rows, "s"):
        cos, sin = _tables(b, site, op, block, s)
        for n in b.tiles(batch, sequences, "b"):
            for h in b.tiles(op.heads, heads, "h"):
                shape = (block, h.size, blocks, n.size, s.size)
                tile = b.scratch(shape, x.type.dtype, slots=site.slots, name="x")
                partner = b.scratch(shape, x.type.dtype, slots=site.slots, name="partner")
                _load(b, tile, x.tensor, op, (h, n, s), 0)
                _load(b, partner, x.tensor, op, (h, n, s), op.head_dim // 2)
                b.tensor_tensor(tile[:], tile[:], _over(cos, h.size, n.size), "multiply")
                b.tensor_tensor(partner[:], partner[:], _over(sin, h.size, n.size), "multiply")
                b.tensor_tensor(tile[:], tile[:], partner[:], "add")
                with b.stage(1):
                    where = (h.start, h.size), slice(None), (n.start, n.size), (s.start, s.size)
                    b.dma(_window(out.tensor, op)[(0, block), *where], tile[:], "output")


def _sizes(site: Site, op: Rope, blocks: int, batch: int) -> tuple[int, int, int]:
    """(heads, positions, sequences) a tile: about 4 KiB a partition and operand, and what fits."""
    arch = site.arch
    room = arch.partition_bytes(arch.scratchpad) // (2 * site.slots + 4)
    elements = max(1, min(4096, room) // dtype_bytes(site.inputs[0].type.dtype) // blocks)
    rows = min(op.seq, elements)
    sequences = min(batch, elements) if op.seq == 1 else 1
    return max(1, min(op.heads, elements // (rows * sequences))), rows, sequences


def _window(tensor: Tensor, op: Rope) -> Tensor:
    """[block, heads, blocks, sequences, positions] of a stored [block, all blocks, tokens]."""
    return tensor.split(1, op.head_dim // tensor.shape[0]).split(3, op.seq)


def _load(
    b: Builder, tile: Tensor, x: Tensor, op: Rope, where: tuple[Range, Range, Range], shift: int
) -> None:
    """Load heads x sequences x positions, each feature from `shift` further on in its head."""
    h, n, s = where
    block = tile.shape[0]
    view = _window(x, op)
    for piece in _pieces(op.head_dim, block, shift, op.head_dim):
        source, offset = divmod(piece.feature, block)
        done = 0
        while done < piece.size:  # a source piece may straddle two blocks
            size = min(piece.size - done, block - offset)
            b.dma(
                tile[(piece.first + done, size), :, piece.block],
                view[(offset, size), (h.start, h.size), source, (n.start, n.size), (s.start, s.size)],
            )
            done, source, offset = done + size, source + 1, 0


def _tables(b: Builder, site: Site, op: Rope, block: int, s: Range) -> tuple[Tensor, Tensor]:
    """Cosines, and sines with the first half's sign turned: [block, blocks of a head, positions]."""
    half = op.head_dim // 2
    tables = []
    for port, name in zip(site.inputs[1:], ("cos", "sin"), strict=True):
        raw = b.scratch((block, op.head_dim // block, s.size), port.type.dtype, slots=site.slots, name=name)
        for piece in _pieces(op.head_dim, block, 0, half):
            b.dma(
                raw[(piece.first, piece.size), piece.block],
                port.tensor[(piece.feature, piece.size), (s.start, s.size)],
                "aux",
            )
        tables.append(raw)
    cos, sin = tables
    for piece in _pieces(half, block, 0, half):
        part = sin[(piece.first, piece.size), piece.block]
        b.tensor_scalar(part, part, "multiply", -1.0)
    return cos, sin


def _over(table: Tensor, heads: int, sequences: int) -> Access:
    """The table repeated for each head and sequence."""
    return table.repeat(2, sequences).repeat(1, heads)[:]


KERNEL = Kernel(_wants, rope)
