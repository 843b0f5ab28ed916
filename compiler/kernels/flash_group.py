"""Many query tiles of one head against each chunk of keys: one pipeline for all of them.

A job is one query tile and one chunk. Jobs follow each other without a gap: while the vector engines are
at the softmax of one, the array transposes the weights of an earlier one and multiplies those of one before
that. In the loop over chunks the last jobs of an iteration end in the next one, so the pipeline fills and
drains once for all chunks and tiles.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import prod

from typing_extensions import override

from compiler.builder import Builder, Tensor
from compiler.ir.dtype import dtype_bytes
from compiler.isa import Access
from compiler.kernels.flash import Chunk, FlashTile, Lane, Masked, Sizes, Source, Start, Weights
from compiler.kernels.site import Site, bank_pitch

TURN = 2  # jobs between the softmax of a job and its transposes; with 1 the array waits for the exponentials
OUT = 3  # jobs between the softmax of a job and its share of the output
TILES = 2 * (OUT + 1)  # query tiles of a group: a whole number of pools
NONE = 1.0e30  # -scale times the maximum of no scores


class Pool:
    """Tiles that the jobs of a group take in turn: `OUT + 1` of the scratchpad, 2 of the accumulators.

    Where these do not hold two sets, one: the jobs follow each other then.
    """

    def __init__(
        self,
        b: Builder,
        site: Site,
        sizes: Sizes,
        rows: int,
        width: int,
        turns: int,
        *,
        biased: bool = False,
    ) -> None:
        """Tiles for jobs of at most `rows` queries and `width` keys, in the innermost loop that is open."""
        tiles = -(-width // sizes.key_tile)
        item = dtype_bytes(sizes.dtype)
        pieces = max(tiles, sizes.value_blocks)
        pitch = bank_pitch(site.arch, rows, item) if pieces > 1 else rows
        scratch = {"p": (rows, width), "pt": (sizes.key_tile, tiles, rows)}
        if biased:
            scratch["bias"] = (rows, width)
        column = ("alpha", "part", "peak", "new")
        sums = {
            "scores": ((rows, width), "fp32"),
            "p.t": ((max(sizes.key_tile, sizes.value_block), pieces, pitch), sizes.dtype),
            "pv": ((rows, sizes.value_dim), "fp32"),
        }
        self.turns = turns
        arch = site.arch
        held = sum(prod(s[1:]) * dtype_bytes(d) for s, d in sums.values())
        pairs = 2 if 2 * held <= arch.partition_bytes(arch.accumulator) else 1
        self.tiles: dict[str, list[Tensor]] = {
            **{n: [b.scratch(s, sizes.dtype, name=n) for _ in range(turns)] for n, s in scratch.items()},
            **{n: [b.scratch((rows, 1), "fp32", name=n) for _ in range(turns)] for n in column},
            **{n: [b.accumulator(s, dtype=d, name=n) for _ in range(pairs)] for n, (s, d) in sums.items()},
        }

    def take(self, name: str, turn: int, shape: tuple[int, ...]) -> Tensor:
        """The tile of that turn, cut to `shape`."""
        tiles = self.tiles[name]
        return replace(tiles[turn % len(tiles)], shape=shape)


class GroupTile(FlashTile):
    """A query tile whose working tiles come from the pool of its group."""

    def __init__(
        self,
        b: Builder,
        site: Site,
        sizes: Sizes,
        rows: int,
        pool: Pool,
        turn: int,
        *,
        sink: Access | None = None,
    ) -> None:
        """Number `turn` of the group; nothing but the sink has been seen yet."""
        super().__init__(b, site, sizes, rows, sink=sink)
        self._pool, self.turn = pool, turn % pool.turns
        if sink is None:
            b.memset(self.shift[:], NONE)
        else:
            b.copy(self.shift[:], sink)
        b.memset(self.total[:], 0.0 if sink is None else 1.0)
        b.memset(self.out[:], 0.0)

    @override
    def _tile(self, name: str, shape: tuple[int, ...], dtype: str = "fp32", *, late: int = 0) -> Tensor:
        return self._pool.take(name, self.turn, shape)

    @override
    def _sums(self, name: str, shape: tuple[int, ...], dtype: str = "fp32") -> Tensor:
        return self._pool.take("p.t" if name == "o.t" else name, self.turn, shape)


@dataclass(frozen=True, slots=True)
class Job:
    """One query tile and one chunk of keys; `masks` are added to its scores."""

    tile: GroupTile
    lane: Lane
    source: Source
    start: Start
    width: int
    masks: Sequence[Masked] = ()
    done: Callable[[], None] | None = None


@dataclass(frozen=True, slots=True)
class _Pending:
    job: Job
    chunk: Chunk
    weights: Weights
    kept: list[Tensor]


class Pipeline:
    """Jobs under way, oldest first."""

    def __init__(self) -> None:
        """Nothing is under way."""
        self._window: list[_Pending] = []

    def push(self, job: Job, chunk: Chunk) -> None:
        """Begin a job; earlier ones go on, those that hold its working tiles to their end."""
        if any(item.job.tile.turn == job.tile.turn for item in self._window):
            self.flush()
        scores = job.tile.scores((job.lane,), chunk, job.start, job.width)
        shift = job.tile.shifts(scores, job.masks, first=False)
        self._window.append(_Pending(job, chunk, job.tile.weights(scores, shift, skew=0), []))
        if len(self._window) > TURN:
            self._transpose(self._window[-1 - TURN])
        if len(self._window) > OUT:
            self._add()

    def flush(self) -> None:
        """End all jobs."""
        while self._window:
            for item in self._window[: 1 + OUT - TURN]:
                self._transpose(item)
            self._add()

    def _transpose(self, item: _Pending) -> None:
        if not item.kept:
            item.kept.append(item.job.tile.transpose(item.weights))
            item.job.tile.add_sums(item.weights)  # NOTE: no earlier, or the next job's shift waits behind it

    def _add(self) -> None:
        item = self._window.pop(0)
        item.job.tile.accumulate((item.job.lane,), item.chunk, item.kept[0], item.weights)
        if item.job.done is not None:
            item.job.tile.divide()
            item.job.done()

    def move(self, start: Start) -> None:
        """The jobs under way are those of the chunk at `start`: what a loop over chunks hands on."""
        self._window = [
            replace(p, job=replace(p.job, start=start), chunk=p.job.source.chunk(start, p.job.width))
            for p in self._window
        ]


def turns(tiles: int) -> int:
    """Turns of a pool for a group of `tiles`: a divisor, so that a tile has the same turn in each chunk."""
    return next((n for n in range(OUT + 1, tiles) if tiles % n == 0), tiles)


def run_chunks(
    b: Builder,
    jobs: Callable[[Start, int], Sequence[Job]],
    chunk: int,
    count: int,
    *,
    resident: bool,
    origin: Start = 0,
) -> Pipeline:
    """All jobs of `count` whole chunks from key `origin` on; those still under way are in the result.

    `jobs(start, width)` are those of one chunk. Keys that are loaded chunk by chunk are not there any more
    in the next iteration, so all jobs end in their own.
    """
    pipeline = Pipeline()

    def run(start: Start) -> None:
        chunks: dict[int, Chunk] = {}
        for job in jobs(start, chunk):
            if id(job.source) not in chunks:
                chunks[id(job.source)] = job.source.chunk(start, chunk)
            pipeline.push(job, chunks[id(job.source)])

    first = len(jobs(origin, chunk)) > OUT and resident
    if first and count:
        run(origin)
    rest = count - 1 if first else count
    if rest > 0:
        with b.loop(rest, "c") as c:
            if first:
                pipeline.move(c * chunk + origin)
            run((c + 1) * chunk + origin if first else c * chunk + origin)
            if not first:
                pipeline.flush()
        if first:
            pipeline.move(origin + rest * chunk)
    return pipeline
