"""Transfers between DRAM layouts and tiles that several kernels share."""

from __future__ import annotations

from collections.abc import Iterator

from compiler.builder import Builder, Range, Tensor
from compiler.ir.dtype import dtype_bytes
from compiler.isa import Access, Affine
from compiler.kernels.site import Port

WHOLE = Affine()
TURN_PS = 3_000_000  # about what a turn on the array takes from load to copy; assumed


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


def _is_turned(b: Builder, tiles: int, rows: int, dtype: str) -> bool:
    """Whether the array can turn [tiles, rows], and a load of single elements would take longer."""
    arch, size = b.arch, dtype_bytes(dtype)
    fits = tiles <= min(arch.array.rows, arch.array.moving_max) and rows <= arch.array.cols
    fits = fits and tiles * size <= arch.bank_bytes(arch.accumulator) and dtype in arch.array.passes
    wasted = tiles * rows * max(0, arch.dma.descriptor_bytes - size)
    return fits and b.cost.transfer_ps(wasted) > TURN_PS


def load_vector(b: Builder, port: Port, length: int, rows: int, name: str) -> Tensor:
    """A DRAM vector with consecutive elements on partitions: [rows, tiles].

    A long one comes as it lies, in runs, and turns on the array: element by element each would cost a run.
    """
    tiles, rest = divmod(length, rows)
    tile = b.scratch((min(rows, length), max(1, -(-length // rows))), port.type.dtype, name=name)
    view = port.tensor.split(0, rows).permute(1, 0)
    if tiles and _is_turned(b, tiles, rows, port.type.dtype):
        raw = b.scratch((tiles, rows), port.type.dtype, name=f"{name}.rows")
        b.dma(raw[:], port.tensor.split(0, rows)[(0, tiles), :], "aux")
        turned = b.accumulator((rows, tiles), dtype=port.type.dtype, name=f"{name}.turned")
        b.transpose(turned[:], raw[:])
        b.copy(tile[(0, rows), (0, tiles)], turned[:])
    elif tiles:
        b.dma(tile[(0, rows), (0, tiles)], view[(0, rows), (0, tiles)], "aux")
    if rest:
        b.dma(tile[(0, rest), (tiles, 1)], view[(0, rest), (tiles, 1)], "aux")
    return tile
