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
from compiler.kernels.site import Site, bank_pitch, base_block

Start = Affine | int
Masked = tuple[int, Access]  # first column, and what is added from there on
SKEW = 2  # stages between a chunk's softmax and its share of the output
MASKED = -1.0e9  # added to scores that must not count; exp of it is 0 in every dtype


@dataclass(frozen=True, slots=True)
class Chunk:
    """Keys and values of one chunk on chip.

    `keys(head, h, at, width)` is [head block, width] of key/value head `head` (counted within the source),
    piece `h` of the head dimension; `values(head, tile, rows, columns)` is [rows, columns] of it.
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

    `query(h)` is [head block, rows]; `head` is which of the source's heads they look at; `bias(start, width)`
    is what is added to their scaled scores for these keys, in DRAM, [rows, width] in row-major order.
    `pieces` of queries and keys may be more than those of the head dimension: what is behind them counts for
    scores only.
    """

    first: int
    rows: int
    query: Callable[[int], Access]
    head: int = 0
    bias: Callable[[Start, int], Access] | None = None
    pieces: int = 0  # 0: those of the head dimension


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
    slots: int  # slots of each scratchpad tile; one where every step has tiles of its own
    value_dim: int  # width of a head's values and results
    value_block: int
    softcap: float = 0.0

    @property
    def head_blocks(self) -> int:
        """Pieces of the head dimension."""
        return self.head_dim // self.head_block

    @property
    def value_blocks(self) -> int:
        """Pieces of the results."""
        return self.value_dim // self.value_block

    @property
    def factor(self) -> float:
        """What finished scores are multiplied with: scaled ones went through the soft cap."""
        return self.softcap or self.scale


def row_limit(site: Site, dtype: str) -> int:
    """Query rows a tile can have: they become the columns of a transpose within one accumulator bank."""
    arch = site.arch
    bank = arch.bank_bytes(arch.accumulator) // dtype_bytes(dtype)
    return max(1, min(base_block(arch), arch.array.moving_max, bank))


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
        under_way = (SKEW + 1) * ways * 2 * wide * dtype_bytes(dtype)  # p and its transpose
        if 2 * under_way > site.room:
            break
        chunk = wide
    return chunk


@dataclass(frozen=True, slots=True)
class Weights:
    """The exponentials of a chunk; behind the first, the factor for the output so far, and their sums."""

    tile: Tensor
    alpha: Tensor | None = None
    sums: Tensor | None = None


class FlashTile:
    """The running state of one tile of query rows.

    `shift` is -scale times the running maximum, `total` the sum of the exponentials, `out` the output
    before it is divided by `total`.
    """

    def __init__(
        self,
        b: Builder,
        site: Site,
        sizes: Sizes,
        rows: int,
        *,
        skew: int = 0,
        sink: Access | None = None,
        logs: bool = False,
    ) -> None:
        """State tiles live in the innermost loop that is open now; it pipelines steps `skew` stages apart.

        `sink` [rows, 1] holds minus the logits of one more key, whose value is zero. With `logs`, the
        logarithm of the sum of the exponentials is left in `log` [rows, 1].
        """
        self.b, self.site, self.sizes, self.rows, self.sink, self.logs = b, site, sizes, rows, sink, logs
        late = skew + 1 if logs else 1
        self.shift = b.scratch((rows, 1), "fp32", slots=max(sizes.slots, late), need=late, name="shift")
        self.total = b.scratch((rows, 1), "fp32", slots=max(sizes.slots, skew + 1), need=skew + 1, name="sum")
        self.out = b.scratch((rows, sizes.value_dim), "fp32", slots=sizes.slots, name="o")
        arch = site.arch
        self.piece = min(arch.array.moving_max, arch.bank_bytes(arch.accumulator) // 4)  # columns a matmul

    # ---- stage 0 ---------------------------------------------------------------------------------
    def scores(self, lanes: Sequence[Lane], chunk: Chunk, start: Start, width: int) -> Tensor:
        """q k^T of a chunk from key `start` on, with soft cap and bias; to be multiplied by `factor`."""
        b, sizes = self.b, self.sizes
        scores = self._sums("scores", (self.rows, width))
        for lane in lanes:
            for at in range(0, width, self.piece):
                size = min(self.piece, width - at)
                for h in range(lane.pieces or sizes.head_blocks):
                    b.matmul(
                        scores[(lane.first, lane.rows), (at, size)],
                        lane.query(h),
                        chunk.keys(lane.head, h, at, size),
                        reset=None if h else (),
                    )
        if sizes.softcap:
            b.activate(scores[:], scores[:], "tanh", scale=sizes.scale / sizes.softcap)
        if any(lane.bias for lane in lanes):
            self._add_bias(lanes, scores, start, width)
        return scores

    def _add_bias(self, lanes: Sequence[Lane], scores: Tensor, start: Start, width: int) -> None:
        b, sizes = self.b, self.sizes
        bias = self._tile("bias", (self.rows, width), sizes.dtype)
        sources = [(lane, lane.bias(start, width)) for lane in lanes if lane.bias is not None]
        if sum(source.elements for _, source in sources) < self.rows * width:  # rows that only fill a tile
            b.memset(bias[:], 0.0)
        for lane, source in sources:
            rows = (lane.first, source.elements // width)
            b.dma(bias[rows, :], source, "aux", lanes=1)  # NOTE: rows of several heads cannot be split
        b.tensor_tensor(scores[:], bias[:], scores[:], "add", scale=1.0 / sizes.factor)

    def shifts(self, scores: Tensor, masks: Sequence[Masked], *, first: bool) -> Tensor:
        """-scale times the maximum so far; masks are added to the scores."""
        b, scale = self.b, self.sizes.factor
        for column, mask in masks:
            part = scores[:, (column, mask.free_elements)]
            b.tensor_tensor(part, part, mask, "add")
        peak = self._tile("peak", (self.rows, 1))
        b.reduce(peak[:], scores[:], "max")
        if first and self.sink is not None:
            b.tensor_scalar(self.shift[:], peak[:], "multiply", -scale, "min", self.sink)
            return self.shift
        if first:
            b.tensor_scalar(self.shift[:], peak[:], "multiply", -scale)
            return self.shift
        shift = self._tile("new", (self.rows, 1))
        b.tensor_scalar(shift[:], peak[:], "multiply", -scale, "min", self.shift[:])
        return shift

    def weights(self, scores: Tensor, shift: Tensor, *, skew: int) -> Weights:
        """Exponentials of the scores and their sums, relative to `shift`."""
        b, scale = self.b, self.sizes.factor
        weights = self._tile("p", (self.rows, scores.shape[1]), self.sizes.dtype)
        if shift is self.shift:
            b.activate(weights[:], scores[:], "exp", scale=scale, bias=shift[:], accumulate=self.total[:])
            if self.sink is not None:
                sink = self._tile("sink", (self.rows, 1))
                b.activate(sink[:], self.sink, "exp", scale=-1.0, bias=shift[:])
                b.tensor_tensor(self.total[:], self.total[:], sink[:], "add")
            return Weights(weights)
        alpha = self._tile("alpha", (self.rows, 1), late=skew)
        b.activate(alpha[:], self.shift[:], "exp", scale=-1.0, bias=shift[:])
        b.copy(self.shift[:], shift[:])
        sums = self._tile("part", (self.rows, 1))
        b.activate(weights[:], scores[:], "exp", scale=scale, bias=shift[:], accumulate=sums[:])
        return Weights(weights, alpha, sums)

    def add_sums(self, weights: Weights) -> None:
        """Bring the sum of the exponentials up to date; the first sum was written where it belongs."""
        if weights.alpha is not None and weights.sums is not None:
            total = self.total[:]
            self.b.tensor_scalar(total, total, "multiply", weights.alpha[:], "add", weights.sums[:])

    def _tile(self, name: str, shape: tuple[int, ...], dtype: str = "fp32", *, late: int = 0) -> Tensor:
        """A tile of the scratchpad, read up to `late` stages behind its writer."""
        slots = max(self.sizes.slots, late + 1)
        return self.b.scratch(shape, dtype, slots=slots, need=late + 1, name=name)

    def _sums(self, name: str, shape: tuple[int, ...], dtype: str = "fp32") -> Tensor:
        """A tile of the accumulators."""
        return self.b.accumulator(shape, slots=self.sizes.copies, dtype=dtype, name=name)

    # ---- stages 1 and 2 --------------------------------------------------------------------------
    def transpose(self, weights: Weights) -> Tensor:
        """p^T: keys on partitions, [key tile, tiles, rows]."""
        b, sizes, width = self.b, self.sizes, weights.tile.shape[1]
        tiles = -(-width // sizes.key_tile)
        moved = self._turned(sizes.key_tile, tiles, "p.t")
        kept = self._tile("pt", (sizes.key_tile, tiles, self.rows), sizes.dtype)
        for j in range(tiles):
            size = min(sizes.key_tile, width - j * sizes.key_tile)
            b.transpose(moved[(0, size), j, (0, self.rows)], weights.tile[:, (j * sizes.key_tile, size)])
        whole, rest = divmod(width, sizes.key_tile)
        if whole:
            b.copy(kept[:, (0, whole)], moved[:, (0, whole), (0, self.rows)])
        if rest:
            b.copy(kept[(0, rest), whole], moved[(0, rest), whole, (0, self.rows)])
        return kept

    def _turned(self, partitions: int, pieces: int, name: str) -> Tensor:
        """Room for transposes, [partitions, pieces, rows], each piece within one accumulator bank."""
        itemsize = dtype_bytes(self.sizes.dtype)
        rows = bank_pitch(self.site.arch, self.rows, itemsize) if pieces > 1 else self.rows
        return self._sums(name, (partitions, pieces, rows), self.sizes.dtype)

    def accumulate(self, lanes: Sequence[Lane], chunk: Chunk, kept: Tensor, weights: Weights) -> None:
        """o = o * alpha + p v."""
        b, sizes, width = self.b, self.sizes, weights.tile.shape[1]
        product = self._sums("pv", (self.rows, sizes.value_dim))
        for lane in lanes:
            for at in range(0, sizes.value_dim, self.piece):
                columns = (at, min(self.piece, sizes.value_dim - at))
                for j in range(kept.shape[1]):
                    size = min(sizes.key_tile, width - j * sizes.key_tile)
                    b.matmul(
                        product[(lane.first, lane.rows), columns],
                        kept[(0, size), j, (lane.first, lane.rows)],
                        chunk.values(lane.head, j, size, columns),
                        reset=None if j else (),
                    )
        if weights.alpha is None:
            b.copy(self.out[:], product[:])
        else:
            b.tensor_tensor(self.out[:], self.out[:], product[:], "add", scale=weights.alpha[:])

    def divide(self) -> None:
        """The output is complete: divide it by the sums."""
        shape = (self.rows, self.sizes.value_dim)
        self.final = self.b.scratch(shape, self.sizes.dtype, slots=self.sizes.slots, name="o.n")
        self.b.tensor_scalar(self.final[:], self.out[:], "divide", self.total[:])
        if self.logs:
            self.log = self.b.scratch((self.rows, 1), "fp32", slots=self.sizes.slots, name="log")
            self.b.activate(self.log[:], self.total[:], "log")
            self.b.tensor_tensor(self.log[:], self.log[:], self.shift[:], "subtract")

    def finish(self) -> Tensor:
        """The result with its features on partitions: [value block, blocks, rows or more]."""
        sizes = self.sizes
        turned = self._turned(sizes.value_block, sizes.value_blocks, "o.t")
        for h in range(sizes.value_blocks):
            columns = (h * sizes.value_block, sizes.value_block)
            self.b.transpose(turned[:, h, (0, self.rows)], self.final[:, columns])
        return turned
