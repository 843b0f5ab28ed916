"""Attention over a cache of latents, and the linear layers a head around it.

A chunk of latents is loaded once, features on partitions: so it is the keys. The array turns it for the
values. Query heads are rows of a flash tile; each new token of a sequence has a tile of its own, over the
same chunk.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from arch_configs.spec import ArchSpec
from compiler.builder import Builder, Range, Tensor
from compiler.ir.dtype import dtype_bytes
from compiler.ir.graph import Node, TensorType
from compiler.ir.layout import Layout, feature_blocked
from compiler.isa import Access, Affine
from compiler.kernels.flash import (
    MASKED,
    SKEW,
    Chunk,
    FlashTile,
    Lane,
    Sizes,
    Start,
    choose_chunk,
    copies,
    row_limit,
)
from compiler.kernels.flash_steps import Step, Work, all_chunks, run_steps, split_last
from compiler.kernels.site import Site, bank_pitch, base_block, head_block, turned_block
from compiler.kernels.strips import blocked, tile_counts
from compiler.kernels.transpose import check_rows
from compiler.kernels.wants import PLAIN, Features, Fixed, Kernel, Want, always
from compiler.ops.latent import CacheRows, HeadLinear, LatentDecode

WIDE = 16384  # bytes a partition of a tile of weights; assumed


def _decode_wants(node: Node, types: Mapping[str, TensorType], arch: ArchSpec) -> tuple[Want, ...]:
    op = node.op
    assert isinstance(op, LatentDecode)
    cache = types[node.inputs[2]]
    queries = Fixed(feature_blocked(turned_block(arch, cache.shape[2], cache.dtype)))
    rotary = Fixed(feature_blocked(head_block(arch, op.rope)))
    return queries, rotary, PLAIN, PLAIN, queries


@dataclass(frozen=True, slots=True)
class _Cache:
    """Latents and rotary keys of one sequence, loaded chunk by chunk."""

    b: Builder
    site: Site
    sizes: Sizes
    batch: Affine

    def chunk(self, start: Start, width: int) -> Chunk:
        """Load latents and rotary keys, [block, blocks, width]; turned: [position, tiles, latent]."""
        latent, rotary = (self._load(operand, start, width) for operand in (0, 1))
        turned, blocks = self._turned(latent, width), self.sizes.head_blocks
        return Chunk(
            lambda _, h, at, size: (
                latent[:, h, (at, size)] if h < blocks else rotary[:, h - blocks, (at, size)]
            ),
            lambda _, j, rows, columns: turned[(0, rows), j, columns],
        )

    def _load(self, operand: int, start: Start, width: int) -> Tensor:
        """The cache that goes with the queries `operand`."""
        block, port = self.site.inputs[operand].block, self.site.inputs[2 + operand]
        shape = (block, port.type.shape[2] // block, width)
        tile = self.b.scratch(shape, self.sizes.dtype, slots=self.site.slots, name="cr"[operand])
        stored = port.tensor.pick(0, self.batch).pick(0, 0).split(0, block).permute(1, 0, 2)
        self.b.dma(tile[:], stored[:, :, (start, width)], "input" if operand else "weight")
        return tile

    def _turned(self, latent: Tensor, width: int) -> Tensor:
        b, sizes = self.b, self.sizes
        block, tile = sizes.head_block, sizes.key_tile
        shape = (tile, -(-width // tile), sizes.head_dim)
        values = b.scratch(shape, sizes.dtype, slots=self.site.slots, name="v")
        pitch = bank_pitch(self.site.arch, block, dtype_bytes(sizes.dtype))
        for at in range(0, width, tile):
            size = min(tile, width - at)
            total = b.accumulator(
                (size, sizes.head_blocks, pitch), slots=sizes.copies, dtype=sizes.dtype, name="v.t"
            )
            for h in range(sizes.head_blocks):
                b.transpose(total[:, h, (0, block)], latent[:, h, (at, size)])
            target = values.split(2, block)[(0, size), at // tile]
            b.copy(target, total[:, :, (0, block)])
        return values


class _Decode:
    """Queries and results of some sequences on chip, [block, heads, blocks, tokens]."""

    def __init__(self, b: Builder, site: Site, op: LatentDecode) -> None:
        self.b, self.site, self.op = b, site, op
        dtype, latent = site.inputs[0].type.dtype, site.inputs[2].type.shape[2]
        self.rows = min(op.heads, row_limit(site, dtype))
        block = site.inputs[0].block
        chunk = _chunk(site, op, self.rows, latent, block)
        self.sizes = Sizes(
            latent, block, base_block(site.arch), chunk, op.scale, dtype,
            copies(site, op.queries), site.slots,
            latent, block,
        )  # fmt: skip
        self.mask = self._make_mask() if op.queries > 1 else None

    def _make_mask(self) -> Tensor:
        """[rows, query, last positions]: very negative where the query must not see the position."""
        b, most = self.b, self.op.queries - 1
        mask = b.scratch((self.rows, self.op.queries, most), "fp32", name="mask")
        b.memset(mask[:], 0.0)
        for i in range(most):
            b.memset(mask[:, i, (i, most - i)], MASKED)
        return mask

    def run(self) -> None:
        """Loop over sequences and tiles of query heads."""
        b, op = self.b, self.op
        for part in b.tiles(op.batch, self._at_once(), "part"):
            columns = (part.start * op.queries, part.size * op.queries)
            queries, rotary = (self._load(i, columns) for i in (0, 1))
            results = b.scratch(queries.shape, self.sizes.dtype, slots=self.site.slots, name="ot")
            for n in b.tiles(part.size, 1, "n"):
                cache = _Cache(b, self.site, self.sizes, part.start + n.start)
                for h in b.tiles(op.heads, self.rows, "h"):
                    self._heads(cache, (queries, rotary), results, n.start, h)
            target = self.site.outputs[0].tensor.split(1, self.sizes.head_blocks)
            alone = part.size == 1 and op.heads <= self.rows  # then this loop is the one with stages
            with b.stage(SKEW + 1 if alone else 0):
                b.dma(target[:, :, :, columns], results[:], "output")

    def _at_once(self) -> int:
        """Sequences whose queries and results take a quarter of the scratchpad."""
        blocks = 2 * self.sizes.head_blocks + self.op.rope // self.site.inputs[1].block
        each = self.op.heads * blocks * self.op.queries * dtype_bytes(self.sizes.dtype) * self.site.slots
        return max(1, min(self.op.batch, self.site.room // 4 // each))

    def _load(self, operand: int, columns: tuple[Affine, int]) -> Tensor:
        port = self.site.inputs[operand]
        stored = port.tensor.split(1, port.tensor.shape[1] // self.op.heads)
        shape = (*stored.shape[:3], columns[1])
        tile = self.b.scratch(shape, self.sizes.dtype, slots=self.site.slots, name="q")
        self.b.dma(tile[:], stored[:, :, :, columns])
        return tile

    def _heads(
        self, cache: _Cache, queries: tuple[Tensor, Tensor], results: Tensor, n: Affine, heads: Range
    ) -> None:
        """Some query heads of one sequence over its cache."""
        op, blocks = self.op, self.sizes.head_blocks
        pieces = blocks + queries[1].shape[2]
        mine, work = (heads.start, heads.size), []
        tokens = [n * op.queries + i for i in range(op.queries)]
        for token in tokens:

            def query(h: int, token: Affine = token) -> Access:
                tile, at = (queries[0], h) if h < blocks else (queries[1], h - blocks)
                return tile[:, mine, at, token]

            tile = FlashTile(self.b, self.site, self.sizes, heads.size, skew=SKEW)
            work.append(Work(tile, (Lane(0, heads.size, query, pieces=pieces),), cache))

        def done() -> None:
            for item, token in zip(work, tokens, strict=True):
                turned = item.tile.finish()
                for h in range(blocks):
                    self.b.copy(results[:, mine, h, token], turned[:, h, (0, heads.size)])

        self._chunks(work, heads.size, done)

    def _chunks(self, work: list[Work], rows: int, done: Callable[[], None]) -> None:
        """All positions; those that some query must not see are in the last chunk."""
        op, sizes = self.op, self.sizes
        if self.mask is None:
            split_last(self.b, work, sizes, op.length, done)
            return
        before = (op.length - op.queries) // sizes.key_tile * sizes.key_tile  # room for all masks behind it
        column = op.length - before - op.queries + 1
        masks = tuple(((column, self.mask[(0, rows), i]),) for i in range(op.queries))
        last = Step(work, before, op.length - before, first=not before, masks=masks, done=done)
        if before:
            all_chunks(self.b, work, sizes, before, last)
        else:
            run_steps(self.b, [last])


def latent_decode(b: Builder, site: Site) -> None:
    """Lower a `LatentDecode` op."""
    assert isinstance(site.op, LatentDecode)
    check_rows(site, site.inputs[0].type.dtype)
    _Decode(b, site, site.op).run()


def _chunk(site: Site, op: LatentDecode, rows: int, latent: int, block: int) -> int:
    """Positions a chunk, so that the accumulators also hold the latents that are turned."""
    arch, dtype = site.arch, site.inputs[0].type.dtype
    chunk, key_tile = choose_chunk(site, rows, latent, op.length, dtype, op.queries), base_block(arch)
    size, total = dtype_bytes(dtype), arch.partition_bytes(arch.accumulator)
    turned = latent // block * bank_pitch(arch, block, size) * size
    while chunk > key_tile:
        tile = chunk * 4 + chunk // key_tile * bank_pitch(arch, rows, size) * size + latent * 4
        if (tile * op.queries + turned) * copies(site, op.queries) <= total:
            break
        chunk //= 2
    return chunk


# ---- a layer a head ------------------------------------------------------------------------------
def _linear_wants(node: Node, types: Mapping[str, TensorType], arch: ArchSpec) -> tuple[Want, ...]:
    op = node.op
    assert isinstance(op, HeadLinear)
    k, n = op.extents(tuple(types[name] for name in node.inputs))
    block = head_block(arch, k)
    x, y = Fixed(feature_blocked(block)), Fixed(feature_blocked(head_block(arch, n)))
    if op.turned:  # [n, heads * k] as [heads and blocks, feature in block, n]
        return x, Fixed(Layout(((1, block),), (1, 2, 0))), y
    return x, Fixed(Layout(((0, block), (1, n)), (2, 1, 0, 3))), y  # [heads, feature in block, block, n]


def head_linear(b: Builder, site: Site) -> None:
    """Lower a `HeadLinear` op: weights of some heads stream by, tokens move."""
    op, (x, w), out = site.op, site.inputs, site.outputs[0]
    assert isinstance(op, HeadLinear)
    k, n = op.extents((x.type, w.type))
    arch, dtype, size = site.arch, x.type.dtype, dtype_bytes(x.type.dtype)
    stored = w.tensor.split(0, k // x.block) if op.turned else w.tensor.permute(0, 2, 1, 3)
    weights = stored.permute(2, 0, 1, 3)  # [feature in block, heads, blocks, n]
    tokens = min(x.type.shape[0], arch.array.moving_max, arch.bank_bytes(arch.accumulator) // 4)
    each = (k // x.block * (n + tokens) + n // out.block * tokens) * size * site.slots
    heads = max(1, min(op.heads, WIDE // (k // x.block * n * size), site.room // each))
    for t in b.tiles(x.type.shape[0], tokens, "t"):
        for h in b.tiles(op.heads, heads, "h"):
            shape = (x.block, h.size, k // x.block, t.size)
            mine = (h.start, h.size), slice(None), (t.start, t.size)
            held = b.scratch(shape, dtype, slots=site.slots, name="x")
            b.dma(held[:], x.tensor.split(1, shape[2])[(0, x.block), *mine])
            tile = b.scratch((*shape[:3], n), dtype, slots=site.slots + 1, name="w")
            b.dma(tile[:], weights[:, (h.start, h.size)], "weight")
            y = b.scratch((out.block, h.size, n // out.block, t.size), dtype, slots=site.slots, name="y")
            _products(b, site, held, tile, y)
            with b.stage(1):
                b.dma(out.tensor.split(1, n // out.block)[(0, out.block), *mine], y[:], "output")


def _products(b: Builder, site: Site, x: Tensor, w: Tensor, y: Tensor) -> None:
    """Products of some heads, taken out of the accumulators a bank at a time."""
    bank = site.arch.bank_bytes(site.arch.accumulator) // 4
    (_, heads, pieces, tokens), block, blocks = x.shape, y.shape[0], y.shape[2]
    for g in b.tiles(heads, max(1, min(heads, bank // (blocks * tokens))), "g"):
        for i0 in range(0, blocks, max(1, bank // tokens)):
            count = min(blocks - i0, max(1, bank // tokens))
            sums = b.accumulator((block, g.size, count, tokens), slots=site.slots, name="sums")
            for h in b.tiles(g.size, 1, "gh"):
                for i in range(count):
                    for j in range(pieces):
                        b.matmul(
                            sums[:, h.start, i],
                            w[:, g.start + h.start, j, ((i0 + i) * block, block)],
                            x[:, g.start + h.start, j],
                            reset=None if j else (),
                        )
            b.copy(y[:, (g.start, g.size), (i0, count)], sums[:])


# ---- positions of a cache as rows ----------------------------------------------------------------
def cache_rows(b: Builder, site: Site) -> None:
    """Lower `CacheRows`: features of a cache are on partitions already."""
    op, cache, out = site.op, site.inputs[0].tensor.pick(1, 0), site.outputs[0]
    assert isinstance(op, CacheRows)
    for first, count, height in tile_counts(out.type.shape[1], out.block):
        source = cache.split(1, out.block).permute(2, 1, 0, 3)[(0, height), (first, count), :, (0, op.length)]
        b.dma(blocked(out).split(2, op.length)[(0, height), (first, count)], source, "input")


LATENT_DECODE = Kernel(_decode_wants, latent_decode)
HEAD_LINEAR = Kernel(_linear_wants, head_linear)
CACHE_ROWS = Kernel(always(PLAIN, Features()), cache_rows)
