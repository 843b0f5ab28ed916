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
from compiler.errors import Infeasible, Shortfall
from compiler.ir.graph import Node, TensorType
from compiler.ir.layout import ROW_MAJOR, Layout, feature_blocked
from compiler.isa import Affine
from compiler.kernels.flash import (
    SKEW,
    Chunk,
    FlashTile,
    Lane,
    Sizes,
    Start,
    Work,
    choose_chunk,
    copies,
    row_limit,
    split_last,
)
from compiler.kernels.site import Site, base_block, head_block
from compiler.kernels.wants import Fixed, Kernel, Want
from compiler.ops.attention import DecodeAttention, KvWrite


def value_cache_layout(arch: ArchSpec) -> Layout:
    """[batch, kv_heads, position, head_dim] with consecutive positions on partitions, blocks in a row."""
    return Layout(((2, base_block(arch)),), (0, 1, 3, 2, 4))


def _decode_wants(node: Node, types: Mapping[str, TensorType], arch: ArchSpec) -> tuple[Want, ...]:
    op = node.op
    assert isinstance(op, DecodeAttention)
    heads = Fixed(feature_blocked(head_block(arch, op.head_dim)))
    return heads, Fixed(ROW_MAJOR), Fixed(value_cache_layout(arch)), heads


def _write_wants(node: Node, types: Mapping[str, TensorType], arch: ArchSpec) -> tuple[Want, ...]:
    op = node.op
    assert isinstance(op, KvWrite)
    if op.axis_k:
        head_dim = types[node.inputs[0]].shape[2]
        cache, new = Fixed(ROW_MAJOR), Fixed(feature_blocked(head_block(arch, head_dim)))
    else:
        cache, new = Fixed(value_cache_layout(arch)), Fixed(ROW_MAJOR)
    return cache, new, cache


def kv_write(b: Builder, site: Site) -> None:
    """Lower a `KvWrite` op: a transfer within DRAM."""
    op = site.op
    assert isinstance(op, KvWrite)
    cache, new = site.outputs[0].tensor, site.inputs[1].tensor
    if op.axis_k:
        block = site.inputs[1].block
        pieces = site.outputs[0].type.shape[2] // block
        dst = cache.split(2, block).permute(3, 1, 2, 0, 4)[:, :, :, :, op.position]
        b.dma(dst, new.split(1, pieces)[:], "output")
    else:
        block, head_dim = cache.shape[2], cache.shape[4]
        dst = cache[:, :, op.position % block, op.position // block]
        b.dma(dst, new.split(1, head_dim)[:], "output")


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
        shape = (sizes.key_tile, self.heads, tiles, sizes.head_dim)
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
    """Lower a `DecodeAttention` op."""
    op = site.op
    assert isinstance(op, DecodeAttention)
    group = op.heads // op.kv_heads
    dtype = site.inputs[0].type.dtype
    pack = _packing(site, group, op.kv_heads, dtype)
    ways = 2 if op.kv_heads % (2 * pack.heads) == 0 else 1
    rows = pack.heads * pack.rows
    chunk = choose_chunk(site, rows, op.head_dim, op.length, dtype, ways)
    sizes = Sizes(
        op.head_dim,
        head_block(site.arch, op.head_dim),
        base_block(site.arch),
        chunk,
        op.scale,
        dtype,
        copies(site, ways),
        site.slots,
    )
    shape = (sizes.head_block, op.kv_heads, group, sizes.head_blocks, op.batch)
    queries = b.scratch(shape, dtype, name="q")
    results = b.scratch(shape, dtype, name="ot")
    b.dma(queries[:], site.inputs[0].tensor[:])
    for batch in b.tiles(op.batch, 1, "b"):
        padded = _pad_queries(b, site, sizes, queries, batch.start, pack)
        for kv in b.tiles(op.kv_heads, pack.heads * ways, "kv"):
            work, firsts = [], []
            for way in range(-(-kv.size // pack.heads)):
                heads = min(pack.heads, kv.size - way * pack.heads)
                first = kv.start + way * pack.heads
                firsts.append((first, heads))
                lanes = tuple(_lane(padded, first + i, i, pack) for i in range(heads))
                tile = FlashTile(b, site, sizes, heads * pack.rows, skew=SKEW)
                work.append(Work(tile, lanes, _Cache(b, site, sizes, batch.start, first, heads)))
            store = partial(_store, b, sizes, pack, results, work, firsts, batch.start)
            split_last(b, work, sizes, op.length, store)
    b.dma(site.outputs[0].tensor[:], results[:], "output")


def _store(
    b: Builder,
    sizes: Sizes,
    pack: _Packing,
    results: Tensor,
    work: list[Work],
    firsts: list[tuple[Affine, int]],
    batch: Affine,
) -> None:
    """Keep the results of some kv heads: [block, kv head, group, block no., sequence]."""
    for item, (first, heads) in zip(work, firsts, strict=True):
        turned = item.tile.finish().split(2, pack.rows)
        for h in range(sizes.head_blocks):
            target = results[:, (first, heads), :, h, batch]
            b.copy(target, turned[:, h, (0, heads), (0, results.shape[2])])


def _pad_queries(
    b: Builder, site: Site, sizes: Sizes, queries: Tensor, batch: Affine, pack: _Packing
) -> Tensor:
    """Queries of one sequence, each kv head's rows padded with zeros: [block, kv head, block no., rows]."""
    _, kv_heads, group, blocks, _ = queries.shape
    padded = b.scratch(
        (sizes.head_block, kv_heads, blocks, pack.rows), sizes.dtype, slots=site.slots, name="q.padded"
    )
    if pack.rows > group:
        b.memset(padded[:], 0.0)
    b.copy(padded.permute(0, 1, 3, 2)[:, :, (0, group)], queries[:, :, :, :, batch])
    return padded


def _lane(padded: Tensor, head: Affine, position: int, pack: _Packing) -> Lane:
    return Lane(position * pack.rows, pack.rows, lambda h: padded[:, head, h], position)


DECODE = Kernel(_decode_wants, decode_attention)
KV_WRITE = Kernel(_write_wants, kv_write)
