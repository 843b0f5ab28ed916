"""Online-softmax attention over chunks of keys, for a tile of query rows.

For each chunk: scores = q k^T; running row maximum; p = exp(scale * (scores - maximum)) with its row
sums; p is transposed through the array; o += p v, rescaled when the maximum moved (Milakov and
Gimelshein 2018; Dao 2022). The steps of one chunk run at three pipeline stages, so that the array
works on the next chunk's scores while the vector engines finish this one's softmax.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from compiler.builder import Builder, Tensor
from compiler.ir.dtype import dtype_bytes
from compiler.isa import Access, Affine
from compiler.kernels.site import Site, base_block

Start = Affine | int
SKEW = 2  # stages between a chunk's softmax and its share of the output
MASKED = -1.0e9  # added to scores that must not count; exp of it is 0 in every dtype


@dataclass(frozen=True, slots=True)
class Chunk:
    """Keys and values of one chunk on chip.

    `keys(head, h, at, width)` is [head block, width] of key/value head `head` (counted within the
    source), piece `h` of the head dimension; `values(head, tile, rows, columns)` is [rows, columns]: some of the head dimension.
    """

    keys: Callable[[int, int, int, int], Access]
    values: Callable[[int, int, int, tuple[int, int]], Access]


class Source(Protocol):
    """Where keys and values come from: resident tiles, or loads."""

    def chunk(self, start: Start, width: int) -> Chunk:
        """The chunk of keys `start .. start + width`, loaded if it has to be."""
        ...


@dataclass(frozen=True, slots=True)
class Lane:
    """Query rows that share one key/value head, at partitions `first .. first + rows`.

    `query(h)` is [head block, rows]; `head` is which of the source's heads they look at.
    """

    first: int
    rows: int
    query: Callable[[int], Access]
    head: int = 0


@dataclass(frozen=True, slots=True)
class Work:
    """A tile of query rows, its lanes, and where their keys and values come from."""

    tile: FlashTile
    lanes: tuple[Lane, ...]
    source: Source


@dataclass(frozen=True, slots=True)
class Sizes:
    """Extents of a flash tile."""

    head_dim: int
    head_block: int
    key_tile: int  # keys on partitions in the second product
    chunk: int
    scale: float
    dtype: str
    copies: int  # slots of each accumulator tile

    @property
    def head_blocks(self) -> int:
        """Pieces of the head dimension."""
        return self.head_dim // self.head_block


def copies(site: Site, ways: int) -> int:
    """Slots of an accumulator tile: one where another tile fills the gaps, else two."""
    return 1 if ways > 1 else site.slots


def choose_chunk(site: Site, rows: int, head_dim: int, length: int, dtype: str, ways: int) -> int:
    """Keys a chunk: as many as the accumulators hold for `ways` tiles, `copies(site, ways)` times over."""
    arch = site.arch
    key_tile = base_block(arch)
    memory = arch.accumulator
    bank, total = max(1, arch.bank_bytes(memory)), arch.partition_bytes(memory)
    chunk = key_tile
    while chunk < min(length, 8 * key_tile):
        wide = chunk * 2
        parts = (wide * 4, wide // key_tile * rows * dtype_bytes(dtype), head_dim * 4)
        if sum(-(-p // bank) * bank if p >= bank else p for p in parts) * copies(site, ways) * ways > total:
            break
        chunk = wide
    return chunk


class FlashTile:
    """The running state of one tile of query rows.

    `shift` is -scale times the running maximum, `total` the sum of the exponentials, `out` the output
    before it is divided by `total`.
    """

    def __init__(self, b: Builder, site: Site, sizes: Sizes, rows: int) -> None:
        """State tiles live in the innermost loop that is open now."""
        self.b, self.site, self.sizes, self.rows = b, site, sizes, rows
        self.shift = b.scratch((rows, 1), "fp32", slots=site.slots, name="shift")
        self.total = b.scratch((rows, 1), "fp32", slots=SKEW + 1, need=SKEW + 1, name="sum")
        self.out = b.scratch((rows, sizes.head_dim), "fp32", slots=site.slots, name="o")
        arch = site.arch
        self.piece = min(arch.array.moving_max, arch.bank_bytes(arch.accumulator) // 4)  # columns a matmul
        self._scores: Tensor | None = None
        self._weights: Tensor | None = None
        self._alpha: Tensor | None = None

    # ---- stage 0 ---------------------------------------------------------------------------------
    def scores(self, lanes: Sequence[Lane], chunk: Chunk, width: int) -> None:
        """q k^T of a chunk."""
        b, sizes, piece = self.b, self.sizes, self.piece
        self._scores = b.accumulator((self.rows, width), slots=sizes.copies, name="scores")
        for lane in lanes:
            for at in range(0, width, piece):
                size = min(piece, width - at)
                for h in range(sizes.head_blocks):
                    b.matmul(
                        self._scores[(lane.first, lane.rows), (at, size)],
                        lane.query(h),
                        chunk.keys(lane.head, h, at, size),
                        reset=None if h else (),
                    )

    def softmax(self, width: int, mask: Access | None, *, first: bool) -> None:
        """Running shift, exponentials and sums; `mask` is added to the last columns of the scores."""
        b, sizes, rows = self.b, self.sizes, self.rows
        assert self._scores is not None
        scores = self._scores
        if mask is not None:
            columns = mask.free_elements
            part = scores[:, (width - columns, columns)]
            b.tensor_tensor(part, part, mask, "add")
        shift = b.scratch((rows, 1), "fp32", slots=self.site.slots, name="new")
        if first:
            b.reduce(shift[:], scores[:], "max")
            b.tensor_scalar(self.shift[:], shift[:], "multiply", -sizes.scale)
            shift = self.shift
        else:
            peak = b.scratch((rows, 1), "fp32", slots=self.site.slots, name="peak")
            b.reduce(peak[:], scores[:], "max")
            b.tensor_scalar(shift[:], peak[:], "multiply", -sizes.scale, "min", self.shift[:])
            self._alpha = b.scratch((rows, 1), "fp32", slots=SKEW + 1, need=SKEW + 1, name="alpha")
            b.activate(self._alpha[:], self.shift[:], "exp", scale=-1.0, bias=shift[:])
            b.copy(self.shift[:], shift[:])
        self._weights = b.scratch((rows, width), sizes.dtype, slots=self.site.slots, name="p")
        target = self.total if first else b.scratch((rows, 1), "fp32", slots=self.site.slots, name="part")
        b.activate(self._weights[:], scores[:], "exp", scale=sizes.scale, bias=shift[:], accumulate=target[:])
        if not first:
            assert self._alpha is not None
            b.tensor_scalar(self.total[:], self.total[:], "multiply", self._alpha[:], "add", target[:])

    # ---- stages 1 and 2 --------------------------------------------------------------------------
    def transpose(self, width: int) -> Tensor:
        """p^T: keys on partitions, [key tile, tiles, rows]."""
        b, sizes = self.b, self.sizes
        assert self._weights is not None
        tiles = -(-width // sizes.key_tile)
        moved = b.accumulator(
            (sizes.key_tile, tiles, self.rows), slots=sizes.copies, dtype=sizes.dtype, name="p.t"
        )
        kept = b.scratch((sizes.key_tile, tiles, self.rows), sizes.dtype, slots=self.site.slots, name="pt")
        for j in range(tiles):
            size = min(sizes.key_tile, width - j * sizes.key_tile)
            b.transpose(moved[(0, size), j], self._weights[:, (j * sizes.key_tile, size)])
        whole, rest = divmod(width, sizes.key_tile)
        if whole:
            b.copy(kept[:, (0, whole)], moved[:, (0, whole)])
        if rest:
            b.copy(kept[(0, rest), whole], moved[(0, rest), whole])
        return kept

    def accumulate(
        self, lanes: Sequence[Lane], chunk: Chunk, kept: Tensor, width: int, *, first: bool
    ) -> None:
        """o = o * alpha + p v."""
        b, sizes = self.b, self.sizes
        product = b.accumulator((self.rows, sizes.head_dim), slots=sizes.copies, name="pv")
        for lane in lanes:
            for at in range(0, sizes.head_dim, self.piece):
                columns = (at, min(self.piece, sizes.head_dim - at))
                for j in range(kept.shape[1]):
                    size = min(sizes.key_tile, width - j * sizes.key_tile)
                    b.matmul(
                        product[(lane.first, lane.rows), columns],
                        kept[(0, size), j, (lane.first, lane.rows)],
                        chunk.values(lane.head, j, size, columns),
                        reset=None if j else (),
                    )
        if first:
            b.copy(self.out[:], product[:])
            return
        assert self._alpha is not None
        b.tensor_tensor(self.out[:], self.out[:], product[:], "add", scale=self._alpha[:])

    def finish(self, stage: int) -> Tensor:
        """The result, head dimension on partitions, in the accumulators: [head block, blocks, rows].

        `stage` is what `all_chunks` returned.
        """
        b, sizes = self.b, self.sizes
        final = b.scratch((self.rows, sizes.head_dim), sizes.dtype, slots=self.site.slots, name="o.n")
        shape = (sizes.head_block, sizes.head_blocks, self.rows)
        turned = b.accumulator(shape, slots=sizes.copies, dtype=sizes.dtype, name="o.t")
        with b.stage(stage):
            b.tensor_scalar(final[:], self.out[:], "divide", self.total[:])
            for h in range(sizes.head_blocks):
                b.transpose(turned[:, h], final[:, (h * sizes.head_block, sizes.head_block)])
        return turned


def chunk_step(
    b: Builder,
    work: Sequence[Work],
    start: Start,
    width: int,
    *,
    mask: Access | None = None,
    first: bool = False,
    pipelined: bool = False,
) -> None:
    """One chunk of keys for several independent tiles, interleaved so that one fills the other's gaps.

    `pipelined`: the steps run at stages 0, 1 and 2 of the innermost loop.
    """
    sources: list[Source] = []
    chunks: list[Chunk] = []
    for item in work:  # tiles may share a source: load it once
        known = next((c for s, c in zip(sources, chunks, strict=True) if s is item.source), None)
        sources.append(item.source)
        chunks.append(known or item.source.chunk(start, width))
    for item, chunk in zip(work, chunks, strict=True):
        item.tile.scores(item.lanes, chunk, width)
    for item in work:
        item.tile.softmax(width, mask, first=first)
    with b.stage(SKEW // 2 if pipelined else 0):
        kept = [item.tile.transpose(width) for item in work]
    with b.stage(SKEW if pipelined else 0):
        for item, chunk, turned in zip(work, chunks, kept, strict=True):
            item.tile.accumulate(item.lanes, chunk, turned, width, first=first)


def all_chunks(b: Builder, work: Sequence[Work], sizes: Sizes, length: int) -> int:
    """Every chunk of `length` keys; the first one starts the running state. Return the stage it ends at.

    A single chunk is pipelined over the loop around it, several over their own loop.
    """
    if length <= sizes.chunk:
        chunk_step(b, work, 0, length, first=True, pipelined=True)
        return SKEW
    chunk_step(b, work, 0, sizes.chunk, first=True)
    whole, rest = divmod(length - sizes.chunk, sizes.chunk)
    if whole:
        with b.loop(whole, "c") as c:
            chunk_step(b, work, (c + 1) * sizes.chunk, sizes.chunk, pipelined=whole > 1)
    if rest:
        chunk_step(b, work, length - rest, rest)
    return 0
