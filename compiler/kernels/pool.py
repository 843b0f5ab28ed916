"""Pooling with channels on partitions: windows are shifted views of a padded tile, one axis at a time."""

from __future__ import annotations

from compiler.builder import Builder, Tensor
from compiler.ir.dtype import dtype_bytes
from compiler.isa import Access, Affine
from compiler.kernels.image import (
    Block,
    Channels,
    Window,
    block_sizes,
    blocks,
    load_block,
    store_channels,
)
from compiler.kernels.site import Site
from compiler.kernels.strips import LONG_RUN, blocked, common_pieces, tile_counts
from compiler.kernels.wants import Features, Kernel, Same, always, features_wants
from compiler.ops.conv import Pool2d

_LOWEST = {"fp16": -65504.0, "fp8e4": -240.0, "fp8e5": -57344.0, "int8": -128.0}
LOWEST = -3.0e38  # fp32 and bf16; padding of a maximum: below all that is finite, and still a number


def pool(b: Builder, site: Site) -> None:
    """Lower `Pool2d`: channel block by channel block, block of rows by block of rows."""
    op, x, out = site.op, site.inputs[0], site.outputs[0]
    assert isinstance(op, Pool2d)
    (n, c, h, w), (ho, wo) = x.type.shape, out.type.shape[2:]
    window = Window(op.kernel, op.kernel, op.stride, op.padding, h, w, ho, wo)
    fill = _LOWEST.get(x.type.dtype, LOWEST) if op.func == "max" else 0.0
    plan = block_sizes(site, window, n, c // x.block)
    for first, count, size in tile_counts(c, x.block):
        for f in b.tiles(count, min(plan.tiles, count), "c"):
            channels = Channels(0, (f.size - 1) * x.block + size, size, f.start + first)
            for block in blocks(b, window, n, plan.images, plan.rows):
                tile = load_block(b, site, x, window, block, channels, fill)
                _pool_block(b, site, op, tile, window, block, channels)


def _pool_block(
    b: Builder,
    site: Site,
    op: Pool2d,
    tile: Tensor,
    window: Window,
    block: Block,
    channels: Channels,
) -> None:
    """Combine columns of the window, then rows: 2k instead of k * k passes."""
    n, height, out = block.images, tile.shape[3], site.outputs[0]
    combine = "max" if op.func == "max" else "add"
    dtype = out.type.dtype if op.func == "max" else "fp32"
    dims = (channels.rows, channels.tiles, n.size)
    line = b.scratch((*dims, height, window.wo), dtype, slots=site.slots, name="line")
    columns = [tile[:, :, :, :, (s, window.wo, op.stride)] for s in range(window.s)]
    _fold(b, line[:], columns, combine)
    result = b.scratch((*dims, block.rows, window.wo), out.type.dtype, slots=site.slots, name="out")
    total = result
    if op.func != "max":
        total = b.scratch((*dims, block.rows, window.wo), "fp32", slots=site.slots, name="total")
    rows = [line[:, :, :, (r, block.rows, op.stride)] for r in range(window.r)]
    _fold(b, total[:], rows, combine)
    if op.func != "max":
        b.tensor_scalar(result[:], total[:], "multiply", 1.0 / op.kernel**2)
    with b.stage(1):
        store_channels(b, result, out, channels, n, (block.first, block.rows))


def _fold(b: Builder, dst: Access, views: list[Access], operation: str) -> None:
    """`dst` = all views combined."""
    if len(views) == 1:
        b.copy(dst, views[0])
        return
    b.tensor_tensor(dst, views[0], views[1], operation)
    for view in views[2:]:
        b.tensor_tensor(dst, dst, view, operation)


def global_avg_pool(b: Builder, site: Site) -> None:
    """Lower `GlobalAvgPool`: sums over the free axes."""
    x, out = site.inputs[0], site.outputs[0]
    n, c, h, w = x.type.shape
    source, target = blocked(x).split(2, h * w), blocked(out)  # [block, blocks, images(, pixels)]
    run = h * w * dtype_bytes(x.type.dtype)
    room = site.room // (2 * site.slots) - 64
    pixels = max(1, min(h * w, room // dtype_bytes(x.type.dtype)))
    for p in common_pieces(c, x.block, out.block):
        for f in b.tiles(p.count, max(1, min(p.count, min(room, LONG_RUN) // run)), "f"):
            for i in b.tiles(n, max(1, min(n, min(room, LONG_RUN) // (f.size * run))), "i"):
                where = ((p.source, p.size), (f.start + p.block, f.size), (i.start, i.size))
                total = b.scratch((p.size, f.size, i.size), "fp32", slots=site.slots, name="total")
                _sum_pixels(b, site, total, source, where, pixels)
                mean = b.scratch(
                    (p.size, f.size, i.size),
                    out.type.dtype,
                    slots=site.slots,
                    name="mean",
                )
                b.tensor_scalar(mean[:], total[:], "multiply", 1.0 / (h * w))
                place = ((p.target, p.size), (f.start + p.target_block, f.size), (i.start, i.size))
                with b.stage(1):
                    b.dma(target[place], mean[:], "output")


def _sum_pixels(
    b: Builder,
    site: Site,
    total: Tensor,
    source: Tensor,
    where: tuple[tuple[int | Affine, int], ...],
    pixels: int,
) -> None:
    """`total` = the sum over the last axis of `source`, `pixels` at a time."""
    if pixels < source.shape[3]:
        b.memset(total[:], 0.0)
    for t in b.tiles(source.shape[3], pixels, "p"):
        tile = b.scratch((*total.shape, t.size), source.dtype, slots=site.slots, name="x")
        b.dma(tile[:], source[(*where, (t.start, t.size))], "input")
        if t.size == source.shape[3]:
            b.reduce(total[:], tile[:], "add")
            continue
        part = b.scratch(total.shape, "fp32", slots=site.slots, name="part")
        b.reduce(part[:], tile[:], "add")
        b.tensor_tensor(total[:], total[:], part[:], "add")


POOL = Kernel(always(Features(), Same(0)), pool)
GLOBAL_AVG_POOL = Kernel(features_wants, global_avg_pool)
