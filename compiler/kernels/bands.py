"""Attention of many queries over any stretch of keys: windows, offsets, more or fewer keys than queries.

Queries go in groups of several tiles; each chunk of keys is loaded once a group, and only tiles that see some
of it work on it. Neighbouring groups that look at their keys in the same way share one loop, so a sliding
window has the code of its beginning and of one group, however long the sequence.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

from compiler.builder import Builder, Tensor
from compiler.ir.dtype import dtype_bytes
from compiler.isa import Access, Affine
from compiler.kernels.flash import Lane, Sizes, Source, Start
from compiler.kernels.flash_group import TILES, GroupTile, Job, Pipeline, Pool, run_chunks, turns
from compiler.kernels.kv import Extras, Load, behind, source
from compiler.kernels.sight import Cell, Field, Part, masked, masks_of
from compiler.kernels.site import Site

More = Callable[[Affine, tuple[Affine, int]], Tensor]  # head, rows -> [block, pieces, rows]


@dataclass(frozen=True, slots=True)
class Query:
    """How many queries of how many heads there are, and the position of the first."""

    batch: int
    heads: int
    kv_heads: int
    queries: int
    offset: int


@dataclass(frozen=True, slots=True)
class _Group:
    """`size` query rows from row `at` on, and what they look at; `count` such groups, each `step` keys on."""

    at: int
    size: int
    parts: tuple[Part, ...]
    count: int = 1
    step: int = 0


class Bands:
    """The kernel for one op. Rows a tile and `sizes.chunk` are chosen by the caller."""

    def __init__(
        self,
        b: Builder,
        site: Site,
        sizes: Sizes,
        query: Query,
        field: Field,
        *,
        rows: int,
        load: Load,
        more: More | None = None,
    ) -> None:
        """`load` brings keys and values of one head on chip, `more` further pieces of its queries."""
        self.more = more
        self.b, self.site, self.sizes, self.query, self.field = b, site, sizes, query, field
        self.rows, self.load = rows, load
        item = dtype_bytes(sizes.dtype)
        state = sizes.value_dim * 4 + 2 * site.slots * rows * (sizes.head_blocks + sizes.value_blocks) * item
        fit = max(1, site.room // 4 // state)
        self.span = rows * next(n for n in (TILES, TILES // 2, 2, 1) if n <= fit)
        tiles = -(-field.keys // sizes.key_tile)
        held = (field.keys * sizes.head_blocks + tiles * sizes.value_dim) * item * site.slots
        self.resident = 2 * held <= site.room
        self.groups = list(self._groups())
        seen = [part for group in self.groups for part in group.parts]
        self.masks = masks_of(b, field.sight, rows, seen)
        self.extras = Extras.of(b, site, rows, query.batch, query.heads)

    def run(self) -> None:
        """Loop over sequences, kv heads and the query heads of each."""
        b, query = self.b, self.query
        share = query.heads // query.kv_heads
        few = -(-min(self.span, query.queries) // self.rows) < TILES // 2
        for batch in b.tiles(query.batch, 1, "b"):
            for kv in b.tiles(query.kv_heads, 1, "kv"):
                held = source(self.load, batch.start, kv.start, self.field.keys, resident=self.resident)
                for g in b.tiles(share, 2 if few and share % 2 == 0 else 1, "g"):
                    first = kv.start * share + g.start
                    for group in self.groups:
                        self._run(batch.start, [first + i for i in range(g.size)], held, group)

    # ---- plan ------------------------------------------------------------------------------------
    def _tiles(self, size: int) -> list[tuple[int, int]]:
        """(first row, rows) of each query tile of a group."""
        return [(at, min(self.rows, size - at)) for at in range(0, size, self.rows)]

    def _groups(self) -> Iterator[_Group]:
        """All groups; neighbours with the same view of their own keys, or of the same keys, as one."""
        open_group: _Group | None = None
        for at in range(0, self.query.queries, self.span):
            size = min(self.span, self.query.queries - at)
            first = self.query.offset + at
            parts = self.field.parts([(first + row, rows) for row, rows in self._tiles(size)])
            fresh = _Group(at, size, parts)
            joined = open_group and self._join(open_group, fresh)
            if joined:
                open_group = joined
                continue
            if open_group:
                yield open_group
            open_group = fresh
        if open_group:
            yield open_group

    def _join(self, group: _Group, fresh: _Group) -> _Group | None:
        if group.size != fresh.size:
            return None
        steps = (group.step,) if group.count > 1 else (0, self.span)
        for step in steps:
            if step % self.field.block == 0 and fresh.parts == tuple(
                part.moved(step * group.count) for part in group.parts
            ):
                return _Group(group.at, group.size, group.parts, group.count + 1, step)
        return None

    # ---- code ------------------------------------------------------------------------------------
    def _run(self, batch: Affine, heads: list[Affine], held: Source, group: _Group) -> None:
        for i in self.b.tiles(group.count, 1, "qg"):
            _Code(self, batch, heads, held, group, i.start).run()


class _Code:
    """One group of query tiles of a few heads that share their keys."""

    def __init__(
        self, bands: Bands, batch: Affine, heads: list[Affine], held: Source, group: _Group, index: Affine
    ) -> None:
        self.bands, self.b, self.sizes, self.heads = bands, bands.b, bands.sizes, heads
        self.held, self.group, self.keys = held, group, index * group.step
        b, sizes, site, query = bands.b, bands.sizes, bands.site, bands.query
        row = index * bands.span + group.at
        self.columns = (batch * query.queries + row, group.size)
        blocks = sizes.head_blocks
        shape = (sizes.head_block, blocks, group.size)
        self.queries = [b.scratch(shape, sizes.dtype, slots=site.slots, name="q") for _ in heads]
        shape = (sizes.value_block, sizes.value_blocks, group.size)
        self.results = [b.scratch(shape, sizes.dtype, slots=site.slots, name="ot") for _ in heads]
        for tile, head in zip(self.queries, heads, strict=True):
            b.dma(tile[:], site.inputs[0].tensor[:, (head * blocks, blocks), self.columns])
        more = [bands.more(head, self.columns) if bands.more else None for head in heads]
        extra = more[0].shape[1] if more[0] is not None else 0
        pieces = bands._tiles(group.size)
        self.places = [(h, at, rows) for at, rows in pieces for h in range(len(heads))]
        extras, count = bands.extras, len(self.places)
        width = max(cell.width for part in group.parts for cell in part.cells)
        pool = Pool(b, site, sizes, bands.rows, width, turns(count), biased=extras.bias is not None)
        self.tiles = [
            GroupTile(b, site, sizes, rows, pool, i, sink=extras.sink(rows, heads[h]))
            for i, (h, _, rows) in enumerate(self.places)
        ]
        self.lanes = [
            Lane(0, rows, partial(_query, self.queries[h], more[h], at, rows), pieces=blocks + extra,
                 bias=extras.rows(batch, heads[h], row + at, rows))
            for h, at, rows in self.places
        ]  # fmt: skip

    def run(self) -> None:
        """All parts of the keys; whole ones that all tiles see in a loop."""
        parts = self.group.parts
        first = next((i for i, part in enumerate(parts) if part.plain), len(parts))
        behind_them = next((i for i in range(first, len(parts)) if not parts[i].plain), len(parts))
        pipeline = Pipeline()
        self._push(pipeline, parts[:first])
        if behind_them > first:
            pipeline.flush()
            pipeline = run_chunks(
                self.b, self._jobs, self.sizes.chunk, behind_them - first,
                resident=self.bands.resident, origin=self.keys + parts[first].start,
            )  # fmt: skip
        self._push(pipeline, parts[behind_them:])
        pipeline.flush()
        for tile, head in zip(self.results, self.heads, strict=True):
            blocks = (head * self.sizes.value_blocks, self.sizes.value_blocks)
            self.b.dma(self.bands.site.outputs[0].tensor[:, blocks, self.columns], tile[:], "output")

    def _jobs(self, start: Start, width: int) -> list[Job]:
        return [Job(t, lane, self.held, start, width) for t, lane in zip(self.tiles, self.lanes, strict=True)]

    def _push(self, pipeline: Pipeline, parts: Sequence[Part]) -> None:
        for part in parts:
            loaded = self.held.chunk(self.keys + part.start, part.width)
            for cell in part.cells:
                chunk = behind(loaded, cell.start - part.start, self.sizes.key_tile)
                for i in range(cell.tile * len(self.heads), (cell.tile + 1) * len(self.heads)):
                    pipeline.push(self._job(i, cell), chunk)

    def _job(self, i: int, cell: Cell) -> Job:
        rows = self.places[i][2]
        done = partial(self._finish, i) if cell.last else None
        masks = masked(self.bands.masks, cell, rows)
        return Job(self.tiles[i], self.lanes[i], self.held, self.keys + cell.start, cell.width, masks, done)

    def _finish(self, i: int) -> None:
        """Transpose a tile's result and keep it."""
        h, at, rows = self.places[i]
        turned = self.tiles[i].finish()
        self.b.copy(self.results[h][:, :, (at, rows)], turned[:, :, (0, rows)])


def _query(tile: Tensor, more: Tensor | None, at: int, rows: int, h: int) -> Access:
    if more is not None and h >= tile.shape[1]:
        return more[:, h - tile.shape[1], (at, rows)]
    return tile[:, h, (at, rows)]
