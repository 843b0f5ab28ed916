"""Transfers between DRAM layouts and tiles that several kernels share."""

from __future__ import annotations

from collections.abc import Iterator

from compiler.builder import Builder, Range, Tensor
from compiler.isa import Access, Affine
from compiler.kernels.site import Port

WHOLE = Affine()


def whole(extent: int) -> Range:
    """All of an axis."""
    return Range(WHOLE, extent, WHOLE)


def feature_pairs(
    tile: Tensor, port: Port, features: Range, columns: Range
) -> Iterator[tuple[Access, Access]]:
    """(tile part, DRAM part) pairs that move `features` x `columns`.

    `tile` is [rows, feature tiles, columns] with consecutive features on its partitions; in DRAM they lie in
    blocks, [block, blocks, columns]. Several blocks can share a tile; a short last block moves by itself.
    """
    block, rows = port.block, tile.shape[0]
    per_tile = rows // block
    dram = port.tensor
    cols = (columns.start, columns.size)
    first = features.start // block
    tiles, rest = divmod(features.size, per_tile * block)
    if tiles:
        for j in range(per_tile):
            yield (
                tile[(j * block, block), (0, tiles), (0, columns.size)],
                dram[(0, block), (first + j, tiles, per_tile), cols],
            )
    for j in range(-(-rest // block)):
        size = min(block, rest - j * block)
        yield (
            tile[(j * block, size), (tiles, 1), (0, columns.size)],
            dram[(0, size), (first + tiles * per_tile + j, 1), cols],
        )


def load_features(
    b: Builder, tile: Tensor, port: Port, features: Range, columns: Range, role: str = "input"
) -> None:
    """Fill `tile` from DRAM."""
    for inside, outside in feature_pairs(tile, port, features, columns):
        b.dma(inside, outside, role)


def store_features(
    b: Builder, tile: Tensor, port: Port, features: Range, columns: Range, role: str = "output"
) -> None:
    """Write `tile` back to DRAM."""
    for inside, outside in feature_pairs(tile, port, features, columns):
        b.dma(outside, inside, role)


def row_pairs(tile: Tensor, dram: Tensor, rows: Range, columns: Range) -> Iterator[tuple[Access, Access]]:
    """(tile part, DRAM part) pairs of a row-major tensor; `tile` is [rows, row tiles, columns]."""
    size = tile.shape[0]
    view = dram.split(0, size).permute(1, 0, 2)
    cols = (columns.start, columns.size)
    tiles, rest = divmod(rows.size, size)
    first = rows.start // size
    if tiles:
        yield tile[(0, size), (0, tiles), (0, columns.size)], view[(0, size), (first, tiles), cols]
    if rest:
        yield tile[(0, rest), (tiles, 1), (0, columns.size)], view[(0, rest), (first + tiles, 1), cols]


def load_vector(b: Builder, port: Port, length: int, rows: int, name: str) -> Tensor:
    """A DRAM vector with consecutive elements on partitions: [rows, tiles]."""
    tiles, rest = divmod(length, rows)
    tile = b.scratch((min(rows, length), max(1, -(-length // rows))), port.type.dtype, name=name)
    view = port.tensor.split(0, rows).permute(1, 0)
    if tiles:
        b.dma(tile[(0, rows), (0, tiles)], view[(0, rows), (0, tiles)], "aux")
    if rest:
        b.dma(tile[(0, rest), (tiles, 1)], view[(0, rest), (tiles, 1)], "aux")
    return tile
