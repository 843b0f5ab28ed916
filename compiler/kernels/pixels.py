"""Moves and sums of images with channels on partitions: upsampling, joins of channels, values a channel."""

from __future__ import annotations

from dataclasses import replace
from math import prod

from compiler.builder import Builder, Tensor
from compiler.ir.dtype import dtype_bytes
from compiler.kernels.site import Port, Site
from compiler.kernels.strips import AT_ONCE, blocked, common_pieces
from compiler.kernels.wants import Features, Kernel, Same, always, features_wants
from compiler.ops.image import Upsample


def upsample(b: Builder, site: Site) -> None:
    """Lower `Upsample`: rows of pixels in, each read several times by one copy, rows out."""
    op, x, out = site.op, site.inputs[0], site.outputs[0]
    assert isinstance(op, Upsample)
    n, c, h, w = x.type.shape
    f, item = op.factor, dtype_bytes(x.type.dtype)
    fits = max(1, (site.room // site.slots - 256) // (item * w * (1 + f * f)))
    rows = max(1, min(h, fits, AT_ONCE // (item * w * f) or 1))
    source, target = blocked(x).split(2, h * w).split(3, w), blocked(out).split(2, h * f * w * f)
    for p in common_pieces(c, x.block, out.block):
        for k in b.tiles(p.count, 1, "k"):
            for i in b.tiles(n, 1, "i"):
                for r in b.tiles(h, rows, "r"):
                    tile = b.scratch((p.size, r.size, w), x.type.dtype, slots=site.slots, name="x")
                    at = ((p.source, p.size), k.start + p.block, i.start, (r.start, r.size))
                    b.dma(tile[:], source[at], "input")
                    y = b.scratch((p.size, r.size, f, w, f), x.type.dtype, slots=site.slots, name="y")
                    spread = replace(tile, shape=y.shape, strides=(0, w, 0, 1, 0))
                    b.copy(y[:], spread[:])
                    size = r.size * f * w * f
                    place = (
                        (p.target, p.size),
                        k.start + p.target_block,
                        i.start,
                        (r.start * (f * w * f), size),
                    )
                    with b.stage(1):
                        b.dma(target[place], _dense(y, size)[:], "output")


def _dense(tile: Tensor, size: int) -> Tensor:
    """A dense tile as [partitions, size]."""
    return replace(tile, shape=(tile.shape[0], size), strides=(0, 1))


def join_channels(b: Builder, site: Site) -> None:
    """Lower `Concat` of channels or features: block by block, in DRAM."""
    out, at = site.outputs[0], 0
    for port in site.inputs:
        for source, block, target, target_block, size in _stretches(port, out, at):
            b.dma(blocked(out)[(target, size), target_block], blocked(port)[(source, size), block], "input")
        at += port.type.shape[1]


def _stretches(port: Port, out: Port, offset: int) -> list[tuple[int, int, int, int, int]]:
    """Channels that lie in one block of both: partition and block here, the same there, how many."""
    found, done, channels = [], 0, port.type.shape[1]
    while done < channels:
        block, source = divmod(done, port.block)
        target_block, target = divmod(offset + done, out.block)
        size = min(channels - done, port.block - source, out.block - target)
        found.append((source, block, target, target_block, size))
        done += size
    return found


def channel_add(b: Builder, site: Site) -> None:
    """Lower `ChannelAdd`: one value a partition, for all pixels of an image."""
    x, v, out = *site.inputs, site.outputs[0]
    n, c, *size = x.type.shape
    pixels = prod(size)
    item = dtype_bytes(x.type.dtype)
    step = max(1, min(pixels, AT_ONCE // item, (site.room // site.slots - 256) // (2 * item)))
    source, target = (blocked(port).split(2, pixels) for port in (x, out))
    for p in common_pieces(c, x.block, v.block):
        for k in b.tiles(p.count, 1, "k"):
            values = b.scratch((p.size, n), v.type.dtype, slots=site.slots, name="v")
            b.dma(values[:], blocked(v)[(p.target, p.size), k.start + p.target_block], "aux")
            for i in b.tiles(n, 1, "i"):
                for t in b.tiles(pixels, step, "t"):
                    where = ((p.source, p.size), k.start + p.block, i.start, (t.start, t.size))
                    tile = b.scratch((p.size, t.size), x.type.dtype, slots=site.slots, name="x")
                    y = b.scratch((p.size, t.size), x.type.dtype, slots=site.slots, name="y")
                    b.dma(tile[:], source[where], "input")
                    b.tensor_scalar(y[:], tile[:], "add", values[:, (i.start, 1)])
                    with b.stage(1):
                        b.dma(target[where], y[:], "output")


def move_blocks(b: Builder, site: Site) -> None:
    """Lower `Tokens` and `Pixels` where they are no views: the same columns in other blocks."""
    x, out = site.inputs[0], site.outputs[0]
    for p in common_pieces(x.type.shape[1], x.block, out.block):
        source = blocked(x)[(p.source, p.size), (p.block, p.count)]
        b.dma(blocked(out)[(p.target, p.size), (p.target_block, p.count)], source, "input")


UPSAMPLE = Kernel(features_wants, upsample)
CHANNEL_ADD = Kernel(always(Features(), Features(), Same(0)), channel_add)
BLOCKS = Kernel(features_wants, move_blocks)
