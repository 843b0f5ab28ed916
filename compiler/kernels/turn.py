"""A plane of a DRAM value, rows for columns, through the array."""

from __future__ import annotations

from compiler.builder import Builder, Range, Tensor
from compiler.ir.dtype import dtype_bytes
from compiler.kernels.site import Site
from compiler.kernels.strips import LONG_RUN, tile_counts


def rows_at_once(site: Site, dtype: str) -> int:
    """Rows the array transposes at once; 0 if it cannot take the type."""
    arch = site.arch
    if dtype not in arch.array.passes:
        return 0
    bank = arch.bank_bytes(arch.accumulator) // dtype_bytes(dtype)
    return min(arch.array.rows, arch.array.moving_max, bank, arch.partitions(arch.scratchpad))


def columns_at_once(site: Site) -> int:
    """Columns the array transposes at once: they become partitions."""
    arch = site.arch
    return min(arch.array.cols, arch.partitions(arch.accumulator), arch.partitions(arch.scratchpad))


def turn_plane(b: Builder, site: Site, dst: Tensor, src: Tensor) -> None:
    """`dst[c, r] = src[r, c]`, in DRAM, last axes contiguous: strips of rows in, strips of columns out."""
    rows, columns = src.shape
    step = rows_at_once(site, src.dtype)
    if not step:  # the array does not take the type: element by element, slow but right
        b.dma(dst[:], src.permute(1, 0)[:], "aux")
        return
    size, slots = dtype_bytes(src.dtype), site.slots
    room = site.room // slots - 256
    wide = columns_at_once(site)
    at_once = max(1, min(-(-rows // step), LONG_RUN // (step * size), room // ((step + wide) * size)))
    for r in b.tiles(rows, min(rows, step * at_once), "r"):
        pieces = tile_counts(r.size, step)
        for c in b.tiles(columns, min(columns, wide), "c"):
            y = b.scratch((c.size, r.size), dst.dtype, slots=slots, name="y")
            for first, count, height in pieces:
                for t in b.tiles(count, 1, "t"):
                    at = t.start * step + first * step
                    tile = b.scratch((height, c.size), src.dtype, slots=slots, name="x")
                    b.dma(tile[:], src[(r.start + at, height), (c.start, c.size)], "input")
                    _turn(b, site, y, tile, height, Range(at, height, at))
            with b.stage(1):
                b.dma(dst[(c.start, c.size), (r.start, r.size)], y[:], "output")


def _turn(b: Builder, site: Site, dst: Tensor, src: Tensor, rows: int, out: Range) -> None:
    """`dst[:, out] = src[rows]^T` through the accumulators, without changing the type."""
    turned = b.accumulator((dst.shape[0], rows), dtype=src.dtype, slots=site.slots, name="turned")
    b.transpose(turned[:], src[(0, rows), (0, dst.shape[0])])
    b.copy(dst[:, (out.start, out.size)], turned[:])
