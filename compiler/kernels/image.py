"""Blocks of images on chip, with their padding: what convolution and pooling share."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import groupby

from compiler.builder import Builder, Range, Tensor
from compiler.ir.dtype import dtype_bytes
from compiler.isa import Affine
from compiler.kernels.site import Port, Site
from compiler.kernels.strips import LONG_RUN, channel_pieces, tile_counts

ORIGIN = Affine()


@dataclass(frozen=True, slots=True)
class Window:
    """The sliding window: kernel r x s over h x w images, giving ho x wo."""

    r: int
    s: int
    stride: int
    padding: int
    h: int
    w: int
    ho: int
    wo: int

    def in_rows(self, rows: int) -> int:
        """Input rows, padding included, under `rows` output rows."""
        return (rows - 1) * self.stride + self.r

    @property
    def padded_width(self) -> int:
        """Width of a padded row."""
        return self.w + 2 * self.padding


@dataclass(frozen=True, slots=True)
class Block:
    """Output rows of some images, and the input rows below them."""

    images: Range
    first: Affine  # output row
    rows: int
    start: Affine  # input row of the first row in the image
    top: int  # rows of padding above it
    valid: int  # rows in the image
    bottom: int


def blocks(b: Builder, window: Window, images: int, n_block: int, rows: int) -> Iterator[Block]:
    """Loops over all blocks of `n_block` images and `rows` output rows.

    Blocks that need other padding are written apart. The body runs once for each kind of block.
    """
    for n in b.tiles(images, n_block, "n"):
        for (size, top, valid, bottom), same in groupby(
            range(0, window.ho, rows), lambda first: _extent(window, first, rows)
        ):
            starts = list(same)
            if len(starts) == 1:
                yield _block(window, n, Affine(starts[0]), size, top, valid, bottom)
                continue
            with b.loop(len(starts), "row") as i:
                yield _block(window, n, i * rows + starts[0], size, top, valid, bottom)


def _extent(window: Window, first: int, rows: int) -> tuple[int, int, int, int]:
    """(output rows, padding rows above, image rows, padding rows below) of the block from row `first`."""
    size = min(rows, window.ho - first)
    start = first * window.stride - window.padding
    end = start + window.in_rows(size)
    top = min(max(0, -start), end - start)
    valid = max(0, min(end, window.h) - max(start, 0))
    return size, top, valid, end - start - top - valid


def _block(
    window: Window, images: Range, first: Affine, rows: int, top: int, valid: int, bottom: int
) -> Block:
    start = first * window.stride + (top - window.padding)
    return Block(images, first, rows, start, top, valid, bottom)


def is_staged(site: Site, window: Window, dtype: str) -> bool:
    """Whether images go through an unpadded tile: rows alone would be too short for transfers."""
    row = window.w * dtype_bytes(dtype)
    return bool(window.padding) and 2 * row <= site.arch.dma.descriptor_bytes


def image_bytes(site: Site, window: Window, dtype: str, n: int, rows: int) -> int:
    """Bytes a partition that one channel tile of a loaded block takes, in one slot."""
    size = dtype_bytes(dtype)
    staged = n * window.in_rows(rows) * window.w * size if is_staged(site, window, dtype) else 0
    return staged + n * window.in_rows(rows) * window.padded_width * size


@dataclass(frozen=True, slots=True)
class Channels:
    """A range of channels and the partitions a tile of them takes.

    The range starts at channel `start` of DRAM block `block`, which may depend on loops.
    """

    start: int
    count: int
    rows: int
    block: Affine = ORIGIN

    @property
    def tiles(self) -> int:
        """Number of tiles, the last may be short."""
        return -(-self.count // self.rows)


def load_block(
    b: Builder, site: Site, port: Port, window: Window, block: Block, channels: Channels, fill: float
) -> Tensor:
    """The input under `block` as [rows, channel tiles, images, input rows, padded width]."""
    dtype, n, slots = port.type.dtype, block.images, site.slots
    height = block.top + block.valid + block.bottom
    dims = (channels.rows, channels.tiles, n.size)
    tile = b.scratch((*dims, height, window.padded_width), dtype, slots=slots, name="image")
    inner = ((block.top, block.valid), (window.padding, window.w))
    engines = _filler(b)
    if window.padding:
        with b.on(engines):
            _fill_border(b, tile, window, block, channels, fill)
    if not block.valid:
        return tile
    if not is_staged(site, window, dtype):
        load_channels(b, tile, port, channels, n, (block.start, block.valid), inner)
        return tile
    flat = b.scratch((*dims, block.valid, window.w), dtype, slots=slots, name="rows")
    load_channels(b, flat, port, channels, n, (block.start, block.valid), ())
    for first, count, rows in tile_counts(channels.count, channels.rows):
        part = ((0, rows), (first, count), slice(None))
        with b.on(engines):
            b.copy(tile[(*part, *inner)], flat[part])
    return tile


def _filler(b: Builder) -> tuple[str, ...]:
    """The engine that fills a tile: several would wait for each other, as all write the same bytes."""
    able = [name for name, spec in b.arch.vectors.items() if {"copy", "memset"} <= set(spec.ops)]
    return (min(able, key=lambda name: b.load[name]),) if able else ()


def load_channels(
    b: Builder,
    tile: Tensor,
    port: Port,
    channels: Channels,
    images: Range,
    rows: tuple[Affine, int],
    inner: tuple[tuple[int, int], ...],
    role: str = "input",
) -> None:
    """Fill `tile` [rows, channel tiles, images, *inner] with image rows from DRAM."""
    for p in channel_pieces(port.block, channels.rows, channels.start, channels.count):
        source = port.tensor[
            (p.source, p.size), (channels.block + p.block, p.count, p.step), (images.start, images.size), rows
        ]
        b.dma(tile[((p.partition, p.size), (p.tile, p.count), slice(None), *inner)], source, role)


def store_channels(
    b: Builder, tile: Tensor, port: Port, channels: Channels, images: Range, rows: tuple[Affine, int]
) -> None:
    """Write `tile` [rows, channel tiles, images, image rows, width] to DRAM."""
    for p in channel_pieces(port.block, channels.rows, channels.start, channels.count):
        target = port.tensor[
            (p.source, p.size), (channels.block + p.block, p.count, p.step), (images.start, images.size), rows
        ]
        b.dma(target, tile[(p.partition, p.size), (p.tile, p.count)], "output")


def _fill_border(
    b: Builder, tile: Tensor, window: Window, block: Block, channels: Channels, fill: float
) -> None:
    """Set the padding around the image rows: whole rows above and below, columns left and right."""
    p, width = window.padding, window.padded_width
    end = block.top + block.valid
    strips = [
        ((0, block.top), (0, width)),
        ((end, block.bottom), (0, width)),
        ((block.top, block.valid), (0, p)),
        ((block.top, block.valid), (p + window.w, p)),
    ]
    for first, count, rows in tile_counts(channels.count, channels.rows):
        for height, columns in strips:
            if height[1] and columns[1]:
                b.memset(tile[(0, rows), (first, count), :, height, columns], fill)


def load_folded(
    b: Builder, site: Site, port: Port, window: Window, block: Block, *, channels: int, taps: int
) -> Tensor:
    """The input under `block` with `taps` rows of the window on partitions.

    [taps * c, tiles, images, rows, width]: partition `j * channels + c` of tile `t` holds, for each
    output row, the input row that tap row `t * taps + j` needs.
    """
    n, slots, dtype = block.images, site.slots, port.type.dtype
    dims = (taps * channels, -(-window.r // taps), n.size, block.rows)
    tile = b.scratch((*dims, window.padded_width), dtype, slots=slots, name="image")
    staged = is_staged(site, window, dtype)
    target = b.scratch((*dims, window.w), dtype, slots=slots, name="rows") if staged else tile
    reach = [_tap_rows(window, block, r) for r in range(window.r)]
    parts = [((0, rows), (first, count)) for first, count, rows in tile_counts(window.r * channels, dims[0])]
    is_whole = all(count == block.rows for _, count in reach)
    engines = _filler(b)
    if not is_whole:
        for part in parts:
            with b.on(engines):
                b.memset(target[part], 0.0)
    if window.padding and (is_whole or staged):
        for part in parts:
            for column in (0, window.padding + window.w):
                with b.on(engines):
                    b.memset(tile[(*part, slice(None), slice(None), (column, window.padding))], 0.0)
    inner = slice(None) if staged else (window.padding, window.w)
    for r, (first, count) in enumerate(reach):
        if count:
            start = block.start + (first * window.stride + r - block.top)
            source = port.tensor[(0, channels), (0, 1), (n.start, n.size), (start, count, window.stride)]
            place = ((r % taps * channels, channels), (r // taps, 1), slice(None), (first, count), inner)
            b.dma(target[place], source, "input")
    if staged:
        for part in parts:
            inside = (*part, slice(None), slice(None), (window.padding, window.w))
            with b.on(engines):
                b.copy(tile[inside], target[part])
    return tile


def _tap_rows(window: Window, block: Block, r: int) -> tuple[int, int]:
    """(first, how many) output rows of the block for which tap row `r` lies in the image."""
    first = max(0, -(-(block.top - r) // window.stride))
    end = min(block.rows, (block.top + block.valid - 1 - r) // window.stride + 1)
    return first, max(0, end - first)


@dataclass(frozen=True, slots=True)
class Sizes:
    """What is worked on at once."""

    tiles: int  # channel blocks
    images: int
    rows: int  # output rows


def block_sizes(site: Site, window: Window, images: int, tiles: int) -> Sizes:
    """Enough at once for full transfers, no more than fits; for kernels that keep two fp32 results."""
    sizes = Sizes(max(1, tiles), images, window.ho)
    while _is_large(site, window, sizes) or _run(site, window, sizes) > 4 * LONG_RUN:
        if sizes.tiles > 1:
            sizes = replace(sizes, tiles=-(-sizes.tiles // 2))
        elif sizes.images > 1:
            sizes = replace(sizes, images=-(-sizes.images // 2))
        elif sizes.rows > 1:
            sizes = replace(sizes, rows=-(-sizes.rows // 2))
        else:
            break
    return sizes


def _run(site: Site, window: Window, sizes: Sizes) -> int:
    """Bytes a partition of one transfer."""
    size = dtype_bytes(site.inputs[0].type.dtype)
    return sizes.tiles * sizes.images * window.in_rows(sizes.rows) * window.w * size


def _is_large(site: Site, window: Window, sizes: Sizes) -> bool:
    dtype = site.inputs[0].type.dtype
    many = sizes.tiles * sizes.images
    middle = many * window.wo * (window.in_rows(sizes.rows) + sizes.rows) * 4
    out = many * sizes.rows * window.wo * dtype_bytes(dtype)
    need = image_bytes(site, window, dtype, many, sizes.rows) + middle + out + 6 * 64
    kinds = min(3, -(-window.ho // sizes.rows))  # blocks at both edges have buffers of their own
    return need * kinds * site.slots > site.room
