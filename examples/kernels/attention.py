"""Attention in two ways: with whole rows of scores, and as flash attention over chunks of keys.

q [batch * seq, heads * head_dim], k and v [batch * keys, kv_heads * head_dim], rows in DRAM. Both turn q and
k on the array, so that head_dim lies on partitions, and skip what a causal mask hides.

    dse kernel examples/kernels/attention.py:flash trn2
    dse run trn2 llama3-8b:prefill,seq=2048,layers=4 --kernel attention=examples/kernels/attention.py:flash
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from compiler.isa import Access, Affine
from compiler.user_kernel import Builder, Tensor, UserKernel, kernel

CHUNK = 512  # keys whose scores one matmul makes: a bank of the accumulators in float32
Columns = tuple[Affine, int]  # first and number
MASKED = -1e30  # far below any score, and finite


def softmax_attention(q: np.ndarray, k: np.ndarray, v: np.ndarray) -> np.ndarray:
    """One sequence, causal, heads of 64 features, as many for keys as for queries."""
    heads = [np.split(x, x.shape[1] // 64, axis=1) for x in (q, k, v)]
    hidden = np.triu(np.full((len(q), len(k)), MASKED), 1)
    out = []
    for one_q, one_k, one_v in zip(*heads, strict=True):
        scores = one_q @ one_k.T / 8 + hidden
        weights = np.exp(scores - scores.max(axis=1, keepdims=True))
        out.append(weights / weights.sum(axis=1, keepdims=True) @ one_v)
    return np.concatenate(out, axis=1)


def attention_kernel(function: Callable[..., None]) -> UserKernel:
    """The problem that both have in common."""
    return kernel(
        inputs={"q": "s e", "k": "t f", "v": "t f"},
        outputs={"out": "s e"},
        sizes={"s": 2048, "t": 2048, "e": 512, "f": 512},
        small={"s": 640, "t": 640, "e": 128, "f": 128, "heads": 2, "kv_heads": 2},
        reference=softmax_attention,
    )(function)


def turned(b: Builder, source: Access, rows: int, cols: int, name: str) -> Tensor:
    """`rows` rows of `cols` features from DRAM, with the features on partitions."""
    plain = b.scratch((rows, cols), source.dtype, slots=2, name=name)
    b.dma(plain[:], source, "input")
    sums = b.accumulator((cols, rows), slots=2, dtype=source.dtype, name=f"{name}_sums")
    b.transpose(sums[:], plain[:])
    tile = b.scratch((cols, rows), source.dtype, slots=2, name=f"{name}_t")
    b.copy(tile[:], sums[:])
    return tile


@dataclass
class Head:
    """Keys (turned: [head_dim, keys]) and values ([piece, pieces, head_dim]) of a head on chip."""

    keys: Tensor
    values: Tensor

    @classmethod
    def load(cls, b: Builder, k: Tensor, v: Tensor, first: Affine, keys: int, columns: Columns) -> Head:
        """They serve all queries of the head."""
        rows, dim = b.arch.array.rows, columns[1]
        turned_keys = b.scratch((dim, keys), k.dtype, slots=2, name="keys")
        values = b.scratch((rows, -(-keys // rows), dim), v.dtype, slots=2, name="values")
        for at in range(0, keys, rows):
            size = min(rows, keys - at)
            tile = turned(b, k[(first + at, size), columns], size, dim, "k")
            b.copy(turned_keys[:, (at, size)], tile[:])
            b.dma(values[(0, size), at // rows], v[(first + at, size), columns], "weight")
        return cls(turned_keys, values)


def scores(b: Builder, query: Tensor, head: Head, start: int, size: int, hidden_from: int) -> Tensor:
    """[queries, keys] of a chunk; query p sees keys up to `hidden_from + p` of it."""
    rows = query.shape[1]
    sums = b.accumulator((rows, size), slots=2, name="scores")
    b.matmul(sums[:], query[:], head.keys[:, (start, size)])
    if hidden_from >= size:
        return sums  # engines read the accumulators as they read the scratchpad
    kept = b.scratch((rows, size), "fp32", slots=2, name="s")
    b.affine_select(kept[:], sums[:], Affine(hidden_from), 1, -1, MASKED)
    return kept


def weighted(b: Builder, weights: Tensor, head: Head, start: int) -> Tensor:
    """weights [queries, keys] times values, in the accumulators; keys come in pieces the partitions hold."""
    rows, (queries, width) = b.arch.array.rows, weights.shape
    total = b.accumulator((queries, head.values.shape[2]), slots=2, name="out")
    for first in range(0, width, CHUNK):
        pieces = [(at, min(rows, width - at)) for at in range(first, min(width, first + CHUNK), rows)]
        moved = b.accumulator((rows, len(pieces), queries), slots=2, dtype=weights.dtype, name="p_sums")
        tile = b.scratch(moved.shape, weights.dtype, slots=2, name="p_t")
        for i, (at, size) in enumerate(pieces):
            b.transpose(moved[(0, size), i], weights[:, (at, size)])
        whole = sum(size == rows for _, size in pieces)
        if whole:
            b.copy(tile[:, (0, whole)], moved[:, (0, whole)])  # one instruction for all of them
        if whole < len(pieces):
            b.copy(tile[(0, pieces[-1][1]), whole], moved[(0, pieces[-1][1]), whole])
        for i, (at, size) in enumerate(pieces):
            value = head.values[(0, size), (start + at) // rows]
            b.matmul(total[:], tile[(0, size), i], value, reset=None if at else ())
    return total


@dataclass
class Tile:
    """Some queries of a head, turned: [head_dim, queries]; and where their result goes."""

    head: Head
    query: Tensor
    first: int  # position of the first query in its sequence
    rows: Columns  # in `out`
    columns: Columns

    @property
    def count(self) -> int:
        """Number of queries."""
        return self.rows[1]


def tiles(
    b: Builder, q: Tensor, k: Tensor, v: Tensor, batch: int, heads: int, kv_heads: int, together: int = 1
) -> Iterator[list[Tile]]:
    """All tiles of queries, `together` of a head at a time.

    Sequences and heads are loops; tiles are written out, because a causal mask makes each another one.
    """
    seq, keys, dim = q.shape[0] // batch, k.shape[0] // batch, q.shape[1] // heads
    rows = b.arch.array.cols
    starts = list(range(0, seq, rows))
    for n in b.tiles(batch, 1, "n"):
        for kv in b.tiles(kv_heads, 1, "kv"):
            head = Head.load(b, k, v, n.start * keys, keys, (kv.start * dim, dim))
            for g in b.tiles(heads // kv_heads, 1, "g"):
                columns = ((kv.start * (heads // kv_heads) + g.start) * dim, dim)
                for i in range(0, len(starts), together):
                    group = []
                    for first in starts[i : i + together]:
                        place = (n.start * seq + first, min(rows, seq - first))
                        query = turned(b, q[place, columns], place[1], dim, "q")
                        group.append(Tile(head, query, first, place, columns))
                    yield group


def visible(tile: Tile, keys: int, causal: int) -> int:
    """Keys that some query of the tile sees."""
    return min(keys, tile.first + tile.count) if causal else keys


@attention_kernel
def whole_rows(
    b: Builder,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    *,
    batch: int = 1,
    heads: int = 8,
    kv_heads: int = 8,
    causal: int = 1,
) -> None:
    """All scores of a query in the scratchpad, then softmax, then the values."""
    keys, scale = k.shape[0] // batch, (q.shape[1] // heads) ** -0.5
    for (tile,) in tiles(b, q, k, v, batch, heads, kv_heads):
        seen, rows = visible(tile, keys, causal), tile.count
        row = b.scratch((rows, seen), "fp32", slots=2, name="row")
        for at in range(0, seen, CHUNK):
            size = min(CHUNK, seen - at)
            part = scores(b, tile.query, tile.head, at, size, tile.first - at if causal else size)
            b.copy(row[:, (at, size)], part[:])
        low, total = (b.scratch((rows, 1), "fp32", slots=2, name=name) for name in ("low", "total"))
        b.reduce(low[:], row[:], "max")
        b.tensor_scalar(low[:], low[:], "multiply", -scale)
        weights = b.scratch((rows, seen), q.dtype, slots=2, name="weights")
        b.activate(weights[:], row[:], "exp", scale=scale, bias=low[:], accumulate=total[:])
        product = weighted(b, weights, tile.head, 0)
        store(b, out, tile, product, total)


def store(b: Builder, out: Tensor, tile: Tile, sums: Tensor, total: Tensor) -> None:
    """The result is the weighted sum over the sum of weights."""
    result = b.scratch(sums.shape, out.dtype, slots=2, name="result")
    b.tensor_scalar(result[:], sums[:], "divide", total[:])
    b.dma(out[tile.rows, tile.columns], result[:], "output")


@attention_kernel
def flash(
    b: Builder,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    *,
    batch: int = 1,
    heads: int = 8,
    kv_heads: int = 8,
    causal: int = 1,
    together: int = 4,
) -> None:
    """Chunk after chunk of keys; `together` tiles of queries take each step one after the other.

    With one tile every engine waits for the one before it; with several they work on different tiles.
    """
    keys, dim = k.shape[0] // batch, q.shape[1] // heads
    for group in tiles(b, q, k, v, batch, heads, kv_heads, together):
        running = [Running(b, tile, dim) for tile in group]
        for at in range(0, max(visible(tile, keys, causal) for tile in group), CHUNK):
            here = [r for r in running if at < visible(r.tile, keys, causal)]
            sizes = [min(CHUNK, visible(r.tile, keys, causal) - at) for r in here]
            parts = [
                scores(b, r.tile.query, r.tile.head, at, size, r.tile.first - at if causal else size)
                for r, size in zip(here, sizes, strict=True)
            ]
            weights = [r.exponentials(part, at, dim**-0.5) for r, part in zip(here, parts, strict=True)]
            products = [weighted(b, w, r.tile.head, at) for r, w in zip(here, weights, strict=True)]
            for r, product in zip(here, products, strict=True):
                r.add(product, at)
        for r in running:
            store(b, out, r.tile, r.sums, r.total)


class Running:
    """What is kept of a tile from chunk to chunk: -scale times the maximum, the sums, the weighted values."""

    def __init__(self, b: Builder, tile: Tile, dim: int) -> None:
        self.b, self.tile = b, tile
        column = (tile.count, 1)
        self.low, self.total = (b.scratch(column, "fp32", slots=2, name=name) for name in ("low", "total"))
        self.shrink = b.scratch(column, "fp32", slots=2, name="shrink")
        self.sums = b.scratch((tile.count, dim), "fp32", slots=2, name="sums")

    def exponentials(self, part: Tensor, at: int, scale: float) -> Tensor:
        """Weights of a chunk of scores, relative to the maximum so far."""
        b, column = self.b, (self.tile.count, 1)
        fresh, added = (b.scratch(column, "fp32", slots=2, name=name) for name in ("fresh", "added"))
        b.reduce(fresh[:], part[:], "max")
        b.tensor_scalar(fresh[:], fresh[:], "multiply", -scale, *(("min", self.low[:]) if at else ()))
        weights = b.scratch(part.shape, self.tile.query.dtype, slots=2, name="weights")
        b.activate(weights[:], part[:], "exp", scale=scale, bias=fresh[:], accumulate=added[:])
        if at:
            b.activate(self.shrink[:], self.low[:], "exp", scale=-1.0, bias=fresh[:])
            b.tensor_scalar(self.total[:], self.total[:], "multiply", self.shrink[:], "add", added[:])
        else:
            b.copy(self.total[:], added[:])
        b.copy(self.low[:], fresh[:])
        return weights

    def add(self, product: Tensor, at: int) -> None:
        """Add the weighted values of a chunk; what was there is scaled to the new maximum."""
        if at:
            self.b.tensor_tensor(self.sums[:], self.sums[:], product[:], "add", scale=self.shrink[:])
        else:
            self.b.copy(self.sums[:], product[:])
