"""Views of whole values for kernels that do not care which element is which: strips and channel pieces."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from compiler.builder import Tensor
from compiler.isa import Access, Affine
from compiler.kernels.site import Port, Site

AT_ONCE = 8192  # bytes of a partition that are worked on at once; assumed
LONG_RUN = 4096  # bytes of a partition from which a transfer reaches the full rate; assumed
FEW = 8  # tiles a value is cut in where it fits at once, so that transfers and work overlap; assumed


@dataclass(frozen=True, slots=True)
class Strip:
    """A part of a DRAM value as [partitions, length], each partition's elements contiguous."""

    tensor: Tensor
    partitions: int
    length: int
    pitch: int  # elements between partitions
    offset: int

    def __call__(self, start: Affine | int, size: int) -> Access:
        """Elements `start .. start + size` of each partition."""
        dims = ((self.pitch, self.partitions), (1, size))
        at = self.tensor.offset + self.offset + start
        return Access(self.tensor.name, self.tensor.dtype, dims, at, slot=self.tensor.slot)


def strips(port: Port, partitions: int) -> list[Strip]:
    """All true elements of a dense value as one or two strips, alike for all of one layout and shape."""
    assert port.tensor.is_dense, port.tensor
    if not port.block:
        return _flat_strips(port, partitions)
    block, features = port.block, port.type.shape[1]
    columns = port.type.elements // features
    whole, rest = divmod(features, block)
    pitch = -(-features // block) * columns
    found = []
    if whole:
        found.append(Strip(port.tensor, block, whole * columns, pitch, 0))
    if rest:
        found.append(Strip(port.tensor, rest, columns, pitch, whole * columns))
    return found


def _flat_strips(port: Port, partitions: int) -> list[Strip]:
    each, rest = divmod(port.type.elements, partitions)
    found = []
    if each:
        found.append(Strip(port.tensor, partitions, each, each, 0))
    if rest:
        found.append(Strip(port.tensor, rest, 1, 1, partitions * each))
    return found


def strip_block(site: Site, length: int, item_bytes: int, reserve: int = 0) -> int:
    """Elements of a strip to work on at once, where each takes `item_bytes` over all tiles.

    A few tiles a strip, long enough for full transfers, and within the scratchpad (tiles are aligned to
    64 B, and there are four at most).
    """
    room = site.room
    room -= min(reserve, room // 2)
    fits = max(1, (room // site.slots - 4 * 64) // item_bytes, room // (2 * item_bytes * site.slots))
    wanted = max(LONG_RUN // item_bytes, -(-length // FEW), 1)
    return min(length, fits, wanted)


@dataclass(frozen=True, slots=True)
class Piece:
    """Channels that move together: `count` tiles of `size` partitions, from as many blocks of DRAM."""

    partition: int  # first partition in the tiles
    size: int
    tile: int  # first tile
    count: int
    source: int  # first partition in the DRAM blocks
    block: int  # first DRAM block
    step: int  # DRAM blocks from tile to tile


def channel_pieces(block: int, rows: int, start: int, size: int) -> Iterator[Piece]:
    """Channels `start .. start + size`, in blocks of `block` in DRAM, onto tiles of `rows` partitions."""
    if start % block == 0 and rows % block == 0:
        yield from _aligned_pieces(block, rows, start // block, size)
        return
    done = 0
    while done < size:
        tile, partition = divmod(done, rows)
        at, source = divmod(start + done, block)
        count = min(size - done, rows - partition, block - source)
        yield Piece(partition, count, tile, 1, source, at, 1)
        done += count


def _aligned_pieces(block: int, rows: int, first: int, size: int) -> Iterator[Piece]:
    per_tile = rows // block
    tiles, rest = divmod(size, rows)
    if tiles:
        for j in range(per_tile):
            yield Piece(j * block, block, 0, tiles, 0, first + j, per_tile)
    for j in range(-(-rest // block)):
        yield Piece(j * block, min(block, rest - j * block), tiles, 1, 0, first + tiles * per_tile + j, 1)


def blocked(port: Port) -> Tensor:
    """A feature- or channel-blocked value as [block, blocks, columns]."""
    tensor = port.tensor
    while len(tensor.shape) > 3:
        tensor = tensor.merge(2)
    return tensor


def regular(port: Port) -> list[Tensor]:
    """All true elements of a value as views, alike for all values of one layout and shape."""
    if not port.block:
        return [port.tensor]
    view, (whole, rest) = blocked(port), divmod(port.type.shape[1], port.block)
    found = [view.part(1, 0, whole)] if whole else []
    return [*found, view.part(1, whole, 1).part(0, 0, rest)] if rest else found


def tile_counts(extent: int, rows: int) -> list[tuple[int, int, int]]:
    """(first tile, tiles, rows of each) of the whole tiles and of the short last one."""
    whole, rest = divmod(extent, rows)
    return [p for p in ((0, whole, rows), (whole, 1, rest)) if p[1] and p[2]]


@dataclass(frozen=True, slots=True)
class Pair:
    """Features that two values hold on `size` partitions, in `count` consecutive blocks of each."""

    size: int
    count: int
    source: int  # first partition in the blocks of the one
    block: int  # its first block
    target: int  # the same of the other
    target_block: int


def common_pieces(features: int, source: int, target: int) -> Iterator[Pair]:
    """All features, where one value has blocks of `source` and the other of `target`."""
    if source == target:
        for first, count, size in tile_counts(features, source):
            yield Pair(size, count, 0, first, 0, first)
        return
    done = 0
    while done < features:
        size = min(features - done, source - done % source, target - done % target)
        yield Pair(size, 1, done % source, done // source, done % target, done // target)
        done += size
