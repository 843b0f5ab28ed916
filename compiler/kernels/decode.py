"""Attention of one new token a sequence over its KV cache, and the cache update.

The few query rows of several kv heads are packed on the partitions, a quarter of them each, so that the
vector engines work on all of them at once. Keys and values stream by, each read once.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial

from arch_configs.spec import ArchSpec
from compiler.builder import Builder, Tensor
from compiler.decisions import Decision
from compiler.errors import Infeasible, Shortfall
from compiler.ir.graph import Node, TensorType
from compiler.ir.layout import feature_blocked
from compiler.isa import Access, Affine
from compiler.kernels.attention import sizes_of
from compiler.kernels.bands import Bands, Query
from compiler.kernels.flash import SKEW, Chunk, FlashTile, Lane, Sizes, Start, choose_chunk, copies, row_limit
from compiler.kernels.flash_steps import Step, Work, run_cells
from compiler.kernels.kv import broadcast, from_caches, value_cache_layout
from compiler.kernels.sight import Edge, Field, edge_mask
from compiler.kernels.site import Site, head_block
from compiler.kernels.wants import PLAIN, Fixed, Kernel, Want
from compiler.ops.attention import DecodeAttention, KvWrite


def _decode_wants(node: Node, types: Mapping[str, TensorType], arch: ArchSpec) -> tuple[Want, ...]:
    op = node.op
    assert isinstance(op, DecodeAttention)
    heads, values = (Fixed(feature_blocked(head_block(arch, d))) for d in (op.head_dim, op.values))
    extras = (PLAIN,) * (len(node.inputs) - 3)
    return heads, PLAIN, Fixed(value_cache_layout(arch)), *extras, values


def _write_wants(node: Node, types: Mapping[str, TensorType], arch: ArchSpec) -> tuple[Want, ...]:
    op = node.op
    assert isinstance(op, KvWrite)
    if op.axis_k:
        head_dim = types[node.inputs[0]].shape[2]
        cache, new = PLAIN, Fixed(feature_blocked(head_block(arch, head_dim)))
    else:
        cache, new = Fixed(value_cache_layout(arch)), PLAIN
    return cache, new, cache


def kv_write(b: Builder, site: Site) -> None:
    """Lower a `KvWrite` op: a transfer within DRAM."""
    op = site.op
    assert isinstance(op, KvWrite)
    cache, new = site.outputs[0].tensor, site.inputs[1].tensor
    if op.axis_k:
        block = site.inputs[1].block
        pieces = site.outputs[0].type.shape[2] // block
        dst = cache.split(2, block).permute(3, 1, 2, 0, 4)
        src = new.split(1, pieces)
        if op.tokens == 1:
            b.dma(dst[:, :, :, :, op.position], src[:], "output")
        else:
            b.dma(dst[:, :, :, :, (op.position, op.tokens)], src.split(3, op.tokens)[:], "output")
        return
    _write_values(b, op, cache, new)


def _write_values(b: Builder, op: KvWrite, cache: Tensor, new: Tensor) -> None:
    """Rows of [batch, head, position in block, block, head_dim], one transfer a block of positions."""
    block, head_dim = cache.shape[2], cache.shape[4]
    rows = new.split(0, op.tokens).split(2, head_dim)  # [batch, token, head, head_dim]
    at = op.position
    while at < op.position + op.tokens:
        size = min(block - at % block, op.position + op.tokens - at)
        if op.tokens == 1:
            b.dma(cache[:, :, at % block, at // block], new.split(1, head_dim)[:], "output")
        else:
            src = rows.permute(0, 2, 1, 3)[:, :, (at - op.position, size)]
            b.dma(cache[:, :, (at % block, size), at // block], src, "output")
        at += size


@dataclass(frozen=True, slots=True)
class _Packing:
    """How many kv heads share a tile, and the partitions each gets."""

    heads: int
    rows: int


def _packing(site: Site, group: int, kv_heads: int, dtype: str) -> _Packing:
    """Four kv heads a tile if a quarter of the partitions is enough for the query rows of each."""
    arch = site.arch
    parts, limit = arch.partitions(arch.accumulator), row_limit(site, dtype)
    if group > limit:
        shortfall = Shortfall(
            "array-columns", arch.tensor, group, limit, "query heads a kv head",
            ((site.name, group),), f"engines.{arch.tensor}.cols >= {group}",
        )  # fmt: skip
        raise Infeasible(shortfall)
    quarter = parts // 4
    same = parts == arch.partitions(arch.scratchpad) and parts % 4 == 0
    if not same or group > quarter or quarter * 2 > limit:
        return _Packing(1, group)
    return _Packing(min(kv_heads, limit // quarter), quarter)


@dataclass(frozen=True, slots=True)
class _Cache:
    """Keys and values of `heads` kv heads of one sequence, loaded chunk by chunk."""

    b: Builder
    site: Site
    sizes: Sizes
    batch: Affine
    first: Affine
    heads: int

    def chunk(self, start: Start, width: int) -> Chunk:
        """Load it: keys [head block, heads, blocks, width], values [key tile, heads, tiles, head_dim]."""
        b, sizes, slots = self.b, self.sizes, self.site.slots
        tiles = -(-width // sizes.key_tile)
        block = sizes.head_block
        keys = b.scratch((block, self.heads, sizes.head_blocks, width), sizes.dtype, slots=slots, name="k")
        shape = (sizes.key_tile, self.heads, tiles, sizes.value_dim)
        values = b.scratch(shape, sizes.dtype, slots=slots, name="v")
        mine = (self.first, self.heads)
        cached = self.site.inputs[1].tensor.split(2, block).permute(3, 0, 1, 2, 4)
        b.dma(keys[:], cached[:, self.batch, mine, :, (start, width)])
        stored = self.site.inputs[2].tensor.permute(2, 0, 1, 3, 4)
        whole, rest = divmod(width, sizes.key_tile)
        tile = start // sizes.key_tile
        if whole:
            b.dma(values[:, :, (0, whole)], stored[:, self.batch, mine, (tile, whole)], "weight")
        if rest:
            b.dma(values[(0, rest), :, whole], stored[(0, rest), self.batch, mine, tile + whole], "weight")
        return Chunk(
            lambda head, h, at, size: keys[:, head, h, (at, size)],
            lambda head, j, rows, columns: values[(0, rows), head, j, columns],
        )


def decode_attention(b: Builder, site: Site) -> None:
    """Lower a `DecodeAttention` op: packed rows where the queries of a kv head fit one tile, else bands."""
    op = site.op
    assert isinstance(op, DecodeAttention)
    rows, dtype = op.heads // op.kv_heads * op.queries, site.inputs[0].type.dtype
    if op.queries == 1 or rows <= row_limit(site, dtype):
        Decode(b, site, op).run()
        return
    rows = min(row_limit(site, dtype), op.queries)
    chunk = choose_chunk(site, rows, max(op.head_dim, op.values), op.length, dtype, 2)
    sizes = sizes_of(site, op, chunk, copies(site, 2), site.slots)
    query = Query(op.batch, op.heads, op.kv_heads, op.queries, op.offset)
    field = Field(op.sight, op.length, sizes.key_tile, chunk)
    Bands(b, site, sizes, query, field, rows=rows, load=from_caches(b, site, sizes)).run()


class Decode:
    """Few query rows: those of several kv heads share a tile; row `i * queries + q` is query q of head i.

    With `sums` [heads, tokens] in DRAM the logarithms of the sums of exponentials are left there.
    """

    def __init__(self, b: Builder, site: Site, op: DecodeAttention, sums: Tensor | None = None) -> None:
        """Choose tile sizes and load tables."""
        self.b, self.site, self.op, self.sums = b, site, op, sums
        self.group = op.heads // op.kv_heads
        self.mine = rows = self.group * op.queries
        dtype = site.inputs[0].type.dtype
        self.pack = _packing(site, rows, op.kv_heads, dtype)
        self.ways = 2 if op.kv_heads % (2 * self.pack.heads) == 0 else 1
        wide = max(op.head_dim, op.values)
        seen = op.length - op.sight.first(op.offset)
        chunk = choose_chunk(site, self.pack.heads * self.pack.rows, wide, seen, dtype, self.ways)
        self.sizes = sizes_of(site, op, chunk, copies(site, self.ways), site.slots)
        packed = f"{self.pack.heads} kv heads of {rows} rows on the partitions, {self.ways} tiles at once"
        reason = "chunks as long as the accumulators hold; as many heads as the partitions take"
        b.graph.decisions.append(Decision(site.name, "tiles", f"chunks of {chunk} keys, {packed}", reason))
        field = Field(op.sight, op.length, self.sizes.key_tile, chunk)
        self.cells = [part.cells[0] for part in field.parts([(op.offset, op.queries)])]
        self.masks = {(e.delta, e.width): self._mask(e) for cell in self.cells for e in cell.edges}
        self.sinks = self._sinks() if op.sinks else None
        named = dict(zip(op.roles, site.inputs, strict=True))
        bias = named["bias"].tensor if "bias" in named else None
        self.bias = bias and broadcast(broadcast(bias, 0, op.batch), 1, op.heads)

    def run(self) -> None:
        """Loop over sequences and kv heads."""
        b, op, sizes, pack = self.b, self.op, self.sizes, self.pack
        tokens = op.batch * op.queries
        shape = (sizes.head_block, op.kv_heads, self.group, sizes.head_blocks, tokens)
        queries = b.scratch(shape, sizes.dtype, name="q")
        shape = (sizes.value_block, op.kv_heads, self.group, sizes.value_blocks, tokens)
        results = b.scratch(shape, sizes.dtype, name="ot")
        b.dma(queries[:], self.site.inputs[0].tensor[:])
        for batch in b.tiles(op.batch, 1, "b"):
            padded = self._pad(queries, batch.start)
            for kv in b.tiles(op.kv_heads, pack.heads * self.ways, "kv"):
                work, firsts = [], []
                for way in range(-(-kv.size // pack.heads)):
                    heads = min(pack.heads, kv.size - way * pack.heads)
                    first = kv.start + way * pack.heads
                    firsts.append((first, heads))
                    work.append(self._work(padded, batch.start, first, heads))
                run_cells(
                    b,
                    work,
                    sizes,
                    self._steps(work),
                    partial(self._store, results, work, firsts, batch.start),
                )
        b.dma(self.site.outputs[0].tensor[:], results[:], "output")

    def _work(self, padded: Tensor, batch: Affine, first: Affine, heads: int) -> Work:
        b, pack, rows = self.b, self.pack, heads * self.pack.rows
        sink = None if self.sinks is None else self.sinks[(0, rows), first // pack.heads]
        tile = FlashTile(b, self.site, self.sizes, rows, skew=SKEW, sink=sink, logs=self.sums is not None)
        lanes = tuple(self._lane(padded, batch, first + i, i) for i in range(heads))
        return Work(tile, lanes, _Cache(b, self.site, self.sizes, batch, first, heads))

    def _lane(self, padded: Tensor, batch: Affine, head: Affine, position: int) -> Lane:
        bias, rows = None, self.pack.rows
        if self.bias is not None:
            stored, mine = self.bias, (head * self.group, self.group)

            def bias(start: Start, width: int) -> Access:
                return stored[batch, mine, :, (start, width)]

        return Lane(position * rows, rows, lambda h: padded[:, head, h], position, bias)

    def _steps(self, work: list[Work]) -> list[Step]:
        rows = self.pack.rows * self.pack.heads
        steps = []
        for i, cell in enumerate(self.cells):
            masks = [
                [
                    (e.column, self.masks[e.delta, e.width][(0, min(rows, item.tile.rows)), :])
                    for e in cell.edges
                ]
                for item in work
            ]
            steps.append(Step(work, cell.start, cell.width, first=i == 0, masks=masks if cell.edges else ()))
        return steps

    # ---- tables ----------------------------------------------------------------------------------
    def _rows(self) -> list[int]:
        """Where the query rows of each query head of a tile begin."""
        return [
            i * self.pack.rows + g * self.op.queries
            for i in range(self.pack.heads)
            for g in range(self.group)
        ]

    def _mask(self, edge: Edge) -> Tensor:
        """[rows, width]: the mask of the queries of one head, at the rows of each."""
        b, queries = self.b, self.op.queries
        one = edge_mask(b, self.op.sight, queries, edge.delta, edge.width)
        mask = b.scratch((self.pack.heads * self.pack.rows, edge.width), "fp32", name="masks")
        b.memset(mask[:], 0.0)
        for row in self._rows():
            b.dma(mask[(row, queries), :], one[:], "aux")
        return mask

    def _sinks(self) -> Tensor:
        """Minus the sinks, [rows, tiles of kv heads]."""
        b, op, pack = self.b, self.op, self.pack
        port = self.site.inputs[-1]
        columns = -(-op.kv_heads // pack.heads)
        raw = b.scratch((pack.heads * pack.rows, columns), port.type.dtype, name="sinks")
        b.memset(raw[:], 0.0)
        step = pack.heads * self.group
        for row in self._rows():
            head = row // pack.rows * self.group + row % pack.rows // op.queries
            count = -(-(op.heads - head) // step)
            b.dma(
                raw[(row, op.queries), (0, count)],
                port.tensor.repeat(0, op.queries)[:, (head, count, step)],
                "aux",
            )
        sinks = b.scratch(raw.shape, "fp32", name="sinks")
        b.tensor_scalar(sinks[:], raw[:], "multiply", -1.0)
        return sinks

    # ---- queries and results ---------------------------------------------------------------------
    def _pad(self, queries: Tensor, batch: Affine) -> Tensor:
        """Queries of one sequence, the rows of each kv head padded: [block, kv head, block no., rows]."""
        b, count, sizes, rows = self.b, self.op.queries, self.sizes, self.pack.rows
        shape = (sizes.head_block, self.op.kv_heads, sizes.head_blocks, rows)
        padded = b.scratch(shape, sizes.dtype, slots=self.site.slots, name="q.padded")
        if rows > self.mine:
            b.memset(padded[:], 0.0)
        if count == 1:
            b.copy(padded.permute(0, 1, 3, 2)[:, :, (0, self.group)], queries[:, :, :, :, batch])
            return padded
        split = padded.split(3, count)  # [..., query head, query]
        for h in range(sizes.head_blocks):
            mine = queries[:, :, :, h, (batch * count, count)]
            b.copy(split[:, :, h, (0, self.group)], mine)
        return padded

    def _store(
        self, results: Tensor, work: list[Work], firsts: list[tuple[Affine, int]], batch: Affine
    ) -> None:
        """Keep the results of some kv heads: [block, kv head, group, block no., token]."""
        count = self.op.queries
        for item, (first, heads) in zip(work, firsts, strict=True):
            if self.sums is not None:
                for i in range(heads):
                    mine = ((first + i) * self.group, self.group)
                    logs = item.tile.log[(i * self.pack.rows, self.group), :]
                    self.b.dma(self.sums[mine, (batch, 1)], logs, "aux", lanes=1)
            turned = item.tile.finish().split(2, self.pack.rows)
            for h in range(self.sizes.value_blocks):
                if count == 1:
                    target = results[:, (first, heads), :, h, batch]
                    self.b.copy(target, turned[:, h, (0, heads), (0, self.group)])
                else:
                    target = results[:, (first, heads), :, h, (batch * count, count)]
                    self.b.copy(target, turned.split(3, count)[:, h, (0, heads), (0, self.group)])


DECODE = Kernel(_decode_wants, decode_attention)
KV_WRITE = Kernel(_write_wants, kv_write)
