"""Attention over a whole sequence: flash attention with causal block skipping and grouped kv heads.

q, k and the result have the head dimension on partitions, v has tokens on partitions: then both
products contract over partitions and only p is transposed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial

from arch_configs.spec import ArchSpec
from compiler.builder import Builder, Range, Tensor
from compiler.decisions import Decision
from compiler.errors import CompileError
from compiler.ir.dtype import dtype_bytes
from compiler.ir.graph import Node, TensorType
from compiler.ir.layout import feature_blocked
from compiler.isa import Access, Affine
from compiler.kernels.bands import Bands, More, Query
from compiler.kernels.flash import (
    MASKED,
    FlashTile,
    Lane,
    Masked,
    Sizes,
    Source,
    Start,
    choose_chunk,
    copies,
    row_limit,
)
from compiler.kernels.flash_group import TILES, GroupTile, Job, Pool, run_chunks, turns
from compiler.kernels.flash_steps import Step, Work, all_chunks, run_steps, split_last
from compiler.kernels.kv import Extras, Load, from_activations, source
from compiler.kernels.sight import Field
from compiler.kernels.site import Site, base_block, head_block
from compiler.kernels.wants import PLAIN, Fixed, Kernel, Want
from compiler.ops.attention import Attention, DecodeAttention

GROUPS = 256  # chunks of a causal sequence; each has code of its own, so that longer ones would not end
Wrap = Callable[[Load], Load]
UNROLLED_STEPS = 48  # steps of one head that are written out, as one pipeline, rather than in loops


def _wants(node: Node, types: Mapping[str, TensorType], arch: ArchSpec) -> tuple[Want, ...]:
    op = node.op
    assert isinstance(op, Attention)
    heads, values = (Fixed(feature_blocked(head_block(arch, d))) for d in (op.head_dim, op.values))
    extras = (PLAIN,) * (len(node.inputs) - 3)
    return heads, heads, PLAIN, *extras, values


def attention(b: Builder, site: Site) -> None:
    """Lower an `Attention` op."""
    op = site.op
    assert isinstance(op, Attention)
    queries, keys = (site.inputs[i].type.shape[0] // op.batch for i in (0, 1))
    windowed = 0 < op.window < keys
    if windowed or (op.causal and (op.offset or queries != keys)):
        bands(b, site, op)
    else:
        Prefill(b, site, op).run()


def bands(b: Builder, site: Site, op: Attention, wrap: Wrap | None = None, more: More | None = None) -> None:
    """Queries that do not see all keys up to their own, which is the last one of the last query.

    `wrap` may add to what is loaded of keys, `more` to the pieces of queries.
    """
    queries, keys = (site.inputs[i].type.shape[0] // op.batch for i in (0, 1))
    dtype = site.inputs[0].type.dtype
    rows = min(row_limit(site, dtype), queries)
    chunk = choose_chunk(site, rows, max(op.head_dim, op.values), keys, dtype, 2)
    sizes = sizes_of(site, op, chunk, copies(site, 2), site.slots)
    query = Query(op.batch, op.heads, op.kv_heads, queries, op.offset)
    field = Field(op.sight, keys, sizes.key_tile, chunk)
    load = from_activations(b, site, sizes, keys)
    load = wrap(load) if wrap else load
    Bands(b, site, sizes, query, field, rows=rows, load=load, more=more).run()


def sizes_of(site: Site, op: Attention | DecodeAttention, chunk: int, copies: int, slots: int) -> Sizes:
    """The extents of `op` in chunks of `chunk` keys."""
    return Sizes(
        head_dim=op.head_dim,
        head_block=head_block(site.arch, op.head_dim),
        key_tile=base_block(site.arch),
        chunk=chunk,
        scale=op.scale,
        dtype=site.inputs[0].type.dtype,
        copies=copies,
        slots=slots,
        value_dim=op.values,
        value_block=head_block(site.arch, op.values),
        softcap=op.softcap,
    )


class Prefill:
    """Writes the loops over sequences, heads and query rows."""

    def __init__(self, b: Builder, site: Site, op: Attention) -> None:
        """Choose tile sizes."""
        self.b, self.site, self.op = b, site, op
        self.seq, self.keys = (site.inputs[i].type.shape[0] // op.batch for i in (0, 1))
        arch, dtype = site.arch, site.inputs[0].type.dtype
        self.group = op.heads // op.kv_heads
        self.shared = self.group % 2 == 0  # two query heads at once share a kv head, or bring one each
        self.ways = 2 if self.shared or op.kv_heads % 2 == 0 else 1  # heads at once
        self.rows = min(row_limit(site, dtype), self.seq)
        self.side = 2 if self.ways == 1 and self.seq > self.rows else 1  # query tiles of a head at once
        at_once = self.ways * self.side
        chunk = choose_chunk(site, self.rows, max(op.head_dim, op.values), self.keys, dtype, at_once)
        if op.causal and self.seq > GROUPS * chunk:
            raise CompileError(
                f"{site.name}: causal attention: got {self.seq} positions, want at most {GROUPS * chunk} "
                f"({GROUPS} chunks of the {chunk} keys that {arch.accumulator} holds)"
            )
        groups, tiles = -(-self.seq // chunk), -(-min(chunk, self.seq) // self.rows)
        chunks = -(-self.keys // chunk)
        steps = tiles * groups * (groups + 1) // 2 if op.causal else tiles * groups * chunks
        self.unrolled = steps <= UNROLLED_STEPS
        slots = 1 if self.unrolled else site.slots
        self.sizes = sizes_of(site, op, chunk, copies(site, at_once), slots)
        tiles = -(-self.keys // self.sizes.key_tile)
        held = (self.keys * self.sizes.head_blocks + tiles * op.values) * dtype_bytes(dtype) * site.slots
        self.resident = 2 * held * (1 if self.shared else self.ways) <= site.room
        self._load = from_activations(b, site, self.sizes, self.keys)
        self.extras = Extras.of(b, site, self.rows, op.batch, op.heads)
        # Queries that are loaded and stored at once, and go through the chunks together if they are many.
        together = -(-TILES * self.rows // chunk) * chunk
        self.grouped = not self.unrolled and chunk % self.rows == 0 and together <= self.seq
        self.span = together if self.grouped else chunk
        b.graph.decisions.append(self._decision())
        self.mask = self._make_mask() if op.causal else None

    def _decision(self) -> Decision:
        steps = f"{TILES} in turn" if self.grouped else "all written out" if self.unrolled else "in loops"
        kept = "keys of a head stay on chip" if self.resident else "keys stream"
        at_once = f"{self.ways} heads x {self.side} tiles of {self.rows} queries at once, {steps}"
        reason = "chunks as long as the accumulators hold; keys stay if they fit"
        return Decision(
            self.site.name, "tiles", f"chunks of {self.sizes.chunk} keys, {at_once}, {kept}", reason
        )

    def run(self) -> None:
        """Loop over sequences, kv heads and the query heads of each."""
        b, op = self.b, self.op
        step = 1 if self.shared else self.ways
        for batch in b.tiles(op.batch, 1, "b"):
            for kv in b.tiles(op.kv_heads, step, "kv"):
                held = [(kv.start + i, self._source(batch.start, kv.start + i)) for i in range(step)]
                for g in b.tiles(self.group, self.ways if self.shared else 1, "g"):
                    if self.shared:
                        first = kv.start * self.group + g.start
                        self._heads(batch.start, [(first + i, held[0][1]) for i in range(self.ways)])
                    else:
                        self._heads(batch.start, [(h * self.group + g.start, source) for h, source in held])

    # ---- operands --------------------------------------------------------------------------------
    def _make_mask(self) -> Tensor:
        """[rows, tile in chunk, chunk]: 0 where a query of that tile may see the key, else very negative."""
        b, rows, chunk = self.b, self.rows, min(self.sizes.chunk, self.seq)
        shape = (rows, 1, rows) if self.unrolled or self.grouped else (rows, -(-chunk // rows), chunk)
        mask = b.scratch(shape, "fp32", name="mask")
        b.memset(mask[:], 0.0)
        for j in range(shape[1]):
            b.affine_select(mask[:, j], mask[:, j], Affine(j * rows), 1, -1, MASKED)
        return mask

    def _source(self, batch: Affine, head: Affine) -> Source:
        return source(self.load, batch, head, self.keys, resident=self.resident)

    def load(self, batch: Affine, head: Affine, start: Start, length: int) -> Source:
        """Some keys and values of a head."""
        return self._load(batch, head, start, length)

    # ---- query tiles -----------------------------------------------------------------------------
    def _heads(self, batch: Affine, heads: list[tuple[Affine, Source]]) -> None:
        """All query rows of a few heads, in groups of one chunk of rows that is loaded and stored at once."""
        groups = -(-self.seq // self.span)
        if self.unrolled:
            self._unrolled(batch, heads, groups)
        elif self.grouped:
            for head in heads:
                for rows in [self._rows(g) for g in range(groups)] if self.op.causal else self._row_groups():
                    self._query_group(batch, head, rows)
        elif self.op.causal:
            for g in range(groups):
                self._causal_group(batch, heads, g)
        else:
            for rows in self._row_groups():
                group = self.open(batch, heads, rows)
                for q in self.b.tiles(rows.size, self.rows * self.side, "q"):
                    parts = self._parts(q)
                    work = group.work(parts)
                    split_last(self.b, work, self.sizes, self.keys, partial(group.finish, work, parts))
                group.store()

    def _parts(self, q: Range) -> list[Range]:
        """The query tiles in `q`, whose index counts groups of them."""
        starts = range(0, q.size, self.rows)
        return [
            Range(q.start + at, min(self.rows, q.size - at), q.index * self.side + i)
            for i, at in enumerate(starts)
        ]

    def _row_groups(self) -> Iterator[Range]:
        return self.b.tiles(self.seq, self.span, "qg")

    def _query_group(self, batch: Affine, head: tuple[Affine, Source], rows: Range) -> None:
        """All query tiles of a group together: the chunks in front of the diagonal (or all) in a loop."""
        b, sizes, chunk, source = self.b, self.sizes, self.sizes.chunk, head[1]
        group = self.open(batch, [head], rows)
        starts = range(0, rows.size, self.rows)
        biased = self.extras.bias is not None
        pool = Pool(b, self.site, sizes, self.rows, chunk, turns(len(starts)), biased=biased)
        parts = [Range(Affine(at), min(self.rows, rows.size - at), Affine()) for at in starts]
        tiles = [
            GroupTile(b, self.site, sizes, q.size, pool, i, sink=self.extras.sink(q.size, head[0]))
            for i, q in enumerate(parts)
        ]
        lanes = [group.lane(0, q) for q in parts]

        def jobs(start: Start, width: int) -> list[Job]:
            return [Job(tile, lane, source, start, width) for tile, lane in zip(tiles, lanes, strict=True)]

        last = rows.start.const if self.op.causal else (self.keys - 1) // chunk * chunk
        pipeline = run_chunks(b, jobs, chunk, last // chunk, resident=self.resident)
        ends = [last + q.start.const + q.size if self.op.causal else self.keys for q in parts]
        for start in range(last, max(ends), chunk):
            loaded = source.chunk(start, min(chunk, max(ends) - start))
            for job, q, end in zip(jobs(start, chunk), parts, ends, strict=True):
                if start < end:
                    pipeline.push(self._ending(job, q, end, group), loaded)
        pipeline.flush()
        group.store()

    def _ending(self, job: Job, q: Range, end: int, group: Group) -> Job:
        """A job that sees keys up to `end` only; with the last of them its tile is done."""
        assert isinstance(job.start, int)
        if job.start + job.width < end:
            return job
        masks: tuple[Masked, ...] = ()
        if self.mask is not None:
            masks = ((end - job.start - q.size, self.mask[(0, q.size), 0, (0, q.size)]),)
        done = partial(group.finish, [Work(job.tile, (job.lane,), job.source)], [q])
        return replace(job, width=end - job.start, masks=masks, done=done)

    def open(self, batch: Affine, heads: list[tuple[Affine, Source]], rows: Range) -> Group:
        """Load the queries `rows` of some heads."""
        return Group(self.b, self.site, self.sizes, self.extras, batch, rows, self.seq, heads)

    def _rows(self, g: int) -> Range:
        first = g * self.span
        return Range(Affine(first), min(self.span, self.seq - first), Affine(g))

    def _unrolled(self, batch: Affine, heads: list[tuple[Affine, Source]], groups: int) -> None:
        """Few steps: one software pipeline through all query tiles."""
        steps: list[Step] = []
        for g in range(groups):
            group = self.open(batch, heads, self._rows(g))
            for at in range(0, group.size, self.rows):
                q = Range(Affine(at), min(self.rows, group.size - at), Affine())
                work = group.work([q])
                steps += self._row_steps(work, g, at, q.size)
                last = at + q.size == group.size
                steps[-1] = replace(steps[-1], done=partial(_close, group, work, q, last))
        run_steps(self.b, steps)

    def _row_steps(self, work: list[Work], g: int, at: int, rows: int) -> list[Step]:
        """The chunks that a query tile at `at` in group `g` sees; the diagonal is cut to what it may see."""
        chunk = self.sizes.chunk
        if not self.op.causal:
            starts = range(0, self.keys, chunk)
            return [Step(work, s, min(chunk, self.keys - s), first=s == 0) for s in starts]
        assert self.mask is not None
        masks = (((at, self.mask[(0, rows), 0, (0, rows)]),),) * len(work)
        before = [Step(work, c * chunk, chunk, first=c == 0) for c in range(g)]
        return [*before, Step(work, g * chunk, at + rows, first=g == 0, masks=masks)]

    def _causal_group(self, batch: Affine, heads: list[tuple[Affine, Source]], g: int) -> None:
        """Many steps: the chunks in front of the diagonal in a loop, one body for all whole query tiles.

        Keys behind the diagonal are computed and masked.
        """
        assert self.mask is not None
        group = self.open(batch, heads, self._rows(g))
        for q in self.b.tiles(group.size, self.rows * self.side, "q"):
            parts = self._parts(q)
            work = group.work(parts)
            width = min(self.sizes.chunk, group.size)
            masks = tuple(
                ((0, self.mask[(0, part.size), part.index, (0, width)]),)
                for part in parts
                for _ in group.heads
            )
            done = partial(group.finish, work, parts)
            diagonal = Step(work, g * self.sizes.chunk, width, first=g == 0, masks=masks, done=done)
            if g:
                all_chunks(self.b, work, self.sizes, g * self.sizes.chunk, diagonal)
            else:
                run_steps(self.b, [diagonal])
        group.store()


def _close(group: Group, work: list[Work], q: Range, last: bool) -> None:
    group.finish(work, [q])
    if last:
        group.store()


class Group:
    """Query rows `start .. start + size` of a few heads: loaded once, results stored once."""

    def __init__(
        self,
        b: Builder,
        site: Site,
        sizes: Sizes,
        extras: Extras,
        batch: Affine,
        rows: Range,
        seq: int,
        heads: list[tuple[Affine, Source]],
    ) -> None:
        """Load the queries."""
        self.b, self.site, self.sizes, self.heads, self.size = b, site, sizes, heads, rows.size
        self.extras, self.batch, self.first = extras, batch, rows.start
        self.start = batch * seq + rows.start
        shape = (sizes.head_block, sizes.head_blocks, rows.size)
        self.queries = [b.scratch(shape, sizes.dtype, slots=site.slots, name="q") for _ in heads]
        shape = (sizes.value_block, sizes.value_blocks, rows.size)
        self.results = [b.scratch(shape, sizes.dtype, slots=site.slots, name="ot") for _ in heads]
        for tile, (head, _) in zip(self.queries, heads, strict=True):
            b.dma(tile[:], self._window(site.inputs[0].tensor, head, sizes.head_blocks))

    def _window(self, tensor: Tensor, head: Affine, blocks: int) -> Access:
        return tensor[:, (head * blocks, blocks), (self.start, self.size)]

    def lane(self, number: int, q: Range) -> Lane:
        """The query rows `q` of head number `number`."""
        tile = self.queries[number]
        bias = self.extras.rows(self.batch, self.heads[number][0], self.first + q.start, q.size)
        return Lane(0, q.size, lambda h: tile[:, h, (q.start, q.size)], bias=bias)

    def work(self, parts: list[Range]) -> list[Work]:
        """Fresh running state for each of the query tiles `parts`, of each head."""

        def tile(q: Range, head: Affine) -> FlashTile:
            return FlashTile(self.b, self.site, self.sizes, q.size, sink=self.extras.sink(q.size, head))

        return [
            Work(tile(q, head), (self.lane(i, q),), source)
            for q in parts
            for i, (head, source) in enumerate(self.heads)
        ]

    def finish(self, work: list[Work], parts: list[Range]) -> None:
        """Normalise, transpose and keep the results of `parts`."""
        places = [(q, result) for q in parts for result in self.results]
        for item, (q, result) in zip(work, places, strict=True):
            turned = item.tile.finish()
            self.b.copy(result[:, :, (q.start, q.size)], turned[:, :, (0, q.size)])

    def store(self) -> None:
        """Write the whole group back."""
        for tile, (head, _) in zip(self.results, self.heads, strict=True):
            window = self._window(self.site.outputs[0].tensor, head, self.sizes.value_blocks)
            self.b.dma(window, tile[:], "output")


KERNEL = Kernel(_wants, attention)
