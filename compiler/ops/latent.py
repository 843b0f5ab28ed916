"""Attention over a cache of latents (MLA): keys and values are products of one small vector a position.

Source: DeepSeek-V2, arXiv:2405.04434, section 2.1. The cache holds, for each position, a latent and one
rotary key that all heads share. Weights: w_k [latent, heads * nope] and w_v [latent, heads * value].
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from typing_extensions import override

from compiler.ir.graph import TensorType
from compiler.ops.attention import Attention
from compiler.ops.base import Array, Cut, Move, Op, Span, f32
from compiler.ops.norm import softmax


@dataclass(frozen=True, slots=True)
class _OverLatents(Op):
    """`queries` new tokens of each sequence over the first `length` positions, of which they are the last.

    Query i sees positions `0 .. length - queries + i`. Latents and rotary keys lie as caches of keys with one
    kv head: [batch, 1, latent, context] and [batch, 1, rope, context].
    """

    batch: int
    heads: int
    rope: int
    length: int
    scale: float
    queries: int = 1

    def check_cache(self, latents: TensorType, keys: TensorType, dtype: str) -> None:
        """Raise CompileError unless the cache fits."""
        self.expect_rank("latents", latents, "batch 1 latent context")
        context = latents.shape[3]
        self.expect("latents", latents, (self.batch, 1, latents.shape[2], context), dtype)
        self.expect("keys", keys, (self.batch, 1, self.rope, context), dtype)
        if not 1 <= self.queries <= self.length <= context:
            got = f"{self.queries} queries at the end of {self.length}"
            raise self.reject(f"length: got {got}, want at most the cache's {context} positions")

    def attended(self) -> int:
        """(query, position) pairs of one head of all sequences."""
        return self.batch * sum(self.length - self.queries + i + 1 for i in range(self.queries))

    def cache_bytes(self, operand: TensorType, context: int) -> int:
        """Bytes read of a cache; the newest positions may still be on chip."""
        return operand.nbytes * (self.length - self.queries) // context

    def softmaxed(self, scores: Array) -> Array:
        """Weights from scores [batch, heads, queries, length]."""
        ahead = np.arange(self.length) > np.arange(self.queries)[:, None] + self.length - self.queries
        return softmax(np.where(ahead, -np.inf, scores * self.scale))


@dataclass(frozen=True, slots=True)
class LatentAttention(_OverLatents):
    """Attention with keys `[latents @ w_k | keys]` and values `latents @ w_v` of each head.

    q [t, heads * nope], q_rope [t, heads * rope], t = batch * queries, batch-major -> [t, heads * value].
    `absorb-latent` turns it into products on the side of the queries and of the result.
    """

    kind: ClassVar[str] = "latent-attention"

    @property
    @override
    def roles(self) -> tuple[str, ...]:
        return ("q", "q_rope", "latents", "keys", "w_k", "w_v")

    @override
    def infer(self, ins: tuple[TensorType, ...]) -> tuple[TensorType, ...]:
        self.expect_operands(ins)
        q, q_rope, latents, keys, w_k, w_v = ins
        self.check_cache(latents, keys, q.dtype)
        tokens, latent = self.batch * self.queries, latents.shape[2]
        for role, w in (("w_k", w_k), ("w_v", w_v)):
            self.expect_rank(role, w, "latent f")
            self.expect(role, w, (latent, w.shape[1]), q.dtype)
            if w.shape[1] % self.heads:
                raise self.reject(f"{role}: got {w.shape[1]} columns, want a multiple of {self.heads} heads")
        self.expect("q", q, (tokens, w_k.shape[1]), q.dtype)
        self.expect("q_rope", q_rope, (tokens, self.heads * self.rope), q.dtype)
        return (TensorType((tokens, w_v.shape[1]), q.dtype),)

    @override
    def macs(self, ins: tuple[TensorType, ...]) -> int:
        """The cheaper way: see `ways`."""
        return min(self.ways(ins))

    def ways(self, ins: tuple[TensorType, ...]) -> tuple[int, int]:
        """MACs with the weights absorbed by the queries, and with keys and values made for every position."""
        latent, features = ins[2].shape[2], ins[4].shape[1] + ins[5].shape[1]
        pairs, tokens = self.attended() * self.heads, self.batch * self.queries
        made = self.batch * self.length * latent * features + pairs * (features // self.heads + self.rope)
        return tokens * latent * features + pairs * (2 * latent + self.rope), made

    @override
    def read_bytes(self, ins: tuple[TensorType, ...]) -> tuple[int, ...]:
        context = ins[2].shape[3]
        return tuple(
            self.cache_bytes(operand, context) if role in ("latents", "keys") else operand.nbytes
            for role, operand in zip(self.roles, ins, strict=True)
        )

    @override
    def reference(self, *ins: Array) -> tuple[Array, ...]:
        q, q_rope, latents, keys, w_k, w_v = (f32(a) for a in ins)
        shape = (self.batch, self.queries, self.heads, -1)
        c, r = latents[:, 0, :, : self.length].transpose(0, 2, 1), keys[:, 0, :, : self.length]
        k, v = ((c @ w).reshape(self.batch, self.length, self.heads, -1) for w in (w_k, w_v))
        scores = np.einsum("bqhd,blhd->bhql", q.reshape(shape), k)
        scores = scores + np.einsum("bqhd,bdl->bhql", q_rope.reshape(shape), r)
        y = np.einsum("bhql,blhd->bqhd", self.softmaxed(scores), v)
        return (f32(y).reshape(q.shape[0], -1),)


@dataclass(frozen=True, slots=True)
class LatentDecode(_OverLatents):
    """The same with queries in the space of the latents: `softmax(scale * (q c + q_rope r)) c` for each head.

    q [t, heads * latent], q_rope [t, heads * rope] -> [t, heads * latent]. Values are the latents
    themselves, so that each is read once.
    """

    kind: ClassVar[str] = "latent-decode"

    @property
    @override
    def roles(self) -> tuple[str, ...]:
        return ("q", "q_rope", "latents", "keys")

    @override
    def infer(self, ins: tuple[TensorType, ...]) -> tuple[TensorType, ...]:
        self.expect_operands(ins)
        q, q_rope, latents, keys = ins
        self.check_cache(latents, keys, q.dtype)
        tokens = self.batch * self.queries
        self.expect("q", q, (tokens, self.heads * latents.shape[2]), q.dtype)
        self.expect("q_rope", q_rope, (tokens, self.heads * self.rope), q.dtype)
        return (q,)

    @override
    def macs(self, ins: tuple[TensorType, ...]) -> int:
        return self.attended() * self.heads * (2 * ins[2].shape[2] + self.rope)

    @override
    def cuts(self, ins: tuple[TensorType, ...]) -> tuple[Cut, ...]:
        latent, rows = ins[2].shape[2], (0, self.queries)
        return (
            Cut("batch", self.batch, (rows, rows, (0, 1), (0, 1)), (rows,), (("batch", 1),)),
            Cut(
                "heads",
                self.heads,
                ((1, latent), (1, self.rope), None, None),
                ((1, latent),),
                (("heads", 1),),
            ),
        )

    @override
    def most_macs(self, ins: tuple[TensorType, ...]) -> int:
        """Positions that a query must not see yet are masked."""
        pairs = self.batch * self.queries * self.length
        return pairs * self.heads * (2 * ins[2].shape[2] + self.rope)

    @override
    def read_bytes(self, ins: tuple[TensorType, ...]) -> tuple[int, ...]:
        context = ins[2].shape[3]
        return (ins[0].nbytes, ins[1].nbytes, *(self.cache_bytes(part, context) for part in ins[2:]))

    @override
    def reference(self, *ins: Array) -> tuple[Array, ...]:
        q, q_rope, latents, keys = (f32(a) for a in ins)
        shape = (self.batch, self.queries, self.heads, -1)
        c, r = latents[:, 0, :, : self.length].transpose(0, 2, 1), keys[:, 0, :, : self.length]
        scores = np.einsum("bqhd,bld->bhql", q.reshape(shape), c)
        scores = scores + np.einsum("bqhd,bdl->bhql", q_rope.reshape(shape), r)
        y = np.einsum("bhql,bld->bqhd", self.softmaxed(scores), c)
        return (f32(y).reshape(q.shape),)


@dataclass(frozen=True, slots=True)
class SharedKeyAttention(Attention):
    """Attention with a rotary part of the keys that all heads share: scores `q k^T + q_rope k_rope^T`.

    q [batch * queries, heads * head_dim], k and v [batch * keys, heads * head_dim], q_rope [batch * queries,
    heads * rope], k_rope [batch * keys, rope] -> like q. A prompt of MLA, once keys and values of its
    positions are made. Query i is at position `offset + i`.
    """

    kind: ClassVar[str] = "shared-key-attention"
    rope: int = 0

    @property
    @override
    def roles(self) -> tuple[str, ...]:
        return ("q", "k", "v", "q_rope", "k_rope")

    @override
    def _extras(self, ins: tuple[TensorType, ...], role: str, axis: int, unit: int) -> tuple[Span, ...]:
        queries, keys = ins[3].shape[0] // self.batch, ins[4].shape[0] // self.batch
        ways: dict[str, tuple[Span, Span]] = {
            "batch": ((0, queries), (0, keys)),
            "heads": ((1, self.rope), None),
            "queries": ((0, 1), None),
        }
        return ways[role]

    def _plain(self) -> Attention:
        """The same without the rotary part."""
        sizes = (self.batch, self.heads, self.kv_heads, self.head_dim)
        return Attention(*sizes, self.causal, self.scale, offset=self.offset, window=self.window)

    @override
    def infer(self, ins: tuple[TensorType, ...]) -> tuple[TensorType, ...]:
        self.expect_operands(ins)
        q, k, v, q_rope, k_rope = ins
        if self.rope < 1 or self.kv_heads != self.heads:
            got = f"{self.rope}, {self.kv_heads}"
            raise self.reject(f"rope, kv_heads: got {got}, want 1 or more, {self.heads}")
        if self.values != self.head_dim or self.softcap or self.bias or self.sinks:
            raise self.reject("value_dim, softcap, bias, sinks: want none of them")
        (out,) = self._plain().infer((q, k, v))
        self.expect("q_rope", q_rope, (q.shape[0], self.heads * self.rope), q.dtype)
        self.expect("k_rope", k_rope, (k.shape[0], self.rope), q.dtype)
        return (out,)

    @override
    def macs(self, ins: tuple[TensorType, ...]) -> int:
        """Both products over the (query, key) pairs that are seen, and the rotary scores."""
        return self._pairs(ins) * (2 * self.head_dim + self.rope)

    @override
    def most_macs(self, ins: tuple[TensorType, ...]) -> int:
        pairs = self.batch * (ins[0].shape[0] // self.batch) * (ins[1].shape[0] // self.batch)
        return pairs * self.heads * (2 * self.head_dim + self.rope)

    @override
    def reference(self, *ins: Array) -> tuple[Array, ...]:
        q, k, v, q_rope, k_rope = (f32(a).reshape(self.batch, a.shape[0] // self.batch, -1) for a in ins)
        each = (self.batch, -1, self.heads)
        scores = np.einsum("bqhd,bkhd->bhqk", *(a.reshape(*each, self.head_dim) for a in (q, k)))
        scores = scores + np.einsum("bqhd,bkd->bhqk", q_rope.reshape(*each, self.rope), k_rope)
        seen = self.sight.mask(self.offset, q.shape[1], k.shape[1])
        weights = softmax(np.where(seen, scores * self.scale, -np.inf))
        y = np.einsum("bhqk,bkhd->bqhd", weights, v.reshape(*each, self.head_dim))
        return (f32(y).reshape(ins[0].shape),)


@dataclass(frozen=True, slots=True)
class CacheRows(Move):
    """The first `length` positions of a cache of keys with one kv head, as rows.

    cache [batch, 1, f, context] -> [batch * length, f].
    """

    kind: ClassVar[str] = "cache-rows"
    length: int

    @override
    def infer(self, ins: tuple[TensorType, ...]) -> tuple[TensorType, ...]:
        self.expect_operands(ins)
        cache = ins[0]
        self.expect_rank("x", cache, "batch 1 f context")
        batch, heads, features, context = cache.shape
        if heads != 1 or not 1 <= self.length <= context:
            got = f"{self.length} positions of {heads} heads"
            raise self.reject(f"length: got {got}, want 1 to {context} of 1 head")
        return (TensorType((batch * self.length, features), cache.dtype),)

    @override
    def read_bytes(self, ins: tuple[TensorType, ...]) -> tuple[int, ...]:
        """The newest position may still be on chip."""
        return (ins[0].nbytes * (self.length - 1) // ins[0].shape[3],)

    @override
    def reference(self, *ins: Array) -> tuple[Array, ...]:
        rows = f32(ins[0])[:, 0, :, : self.length].transpose(0, 2, 1)
        return (np.ascontiguousarray(rows.reshape(-1, rows.shape[2])),)


@dataclass(frozen=True, slots=True)
class HeadLinear(Op):
    """A linear layer a head: `y[:, h] = x[:, h] @ w[:, h]`.

    x [t, heads * k], w [k, heads * n] -> [t, heads * n]. Turned: w is [n, heads * k] and its parts
    are transposed.
    """

    kind: ClassVar[str] = "head-linear"
    heads: int
    turned: bool = False

    @property
    @override
    def roles(self) -> tuple[str, ...]:
        return ("x", "w")

    def extents(self, ins: tuple[TensorType, ...]) -> tuple[int, int]:
        """(k, n) of one head."""
        rows, columns = ins[1].shape[0], ins[1].shape[1] // self.heads
        return (columns, rows) if self.turned else (rows, columns)

    @override
    def infer(self, ins: tuple[TensorType, ...]) -> tuple[TensorType, ...]:
        self.expect_operands(ins)
        x, w = ins
        self.expect_rank("x", x, "t f")
        self.expect_rank("w", w, "a b")
        if self.heads < 1 or w.shape[1] % self.heads:
            raise self.reject(f"w: got {w.shape[1]} columns, want a multiple of {self.heads} heads")
        k, n = self.extents(ins)
        self.expect("x", x, (x.shape[0], self.heads * k), x.dtype)
        self.expect("w", w, w.shape, x.dtype)
        return (TensorType((x.shape[0], self.heads * n), x.dtype),)

    @override
    def cuts(self, ins: tuple[TensorType, ...]) -> tuple[Cut, ...]:
        k, n = self.extents(ins)
        weight = k if self.turned else n
        heads = Cut("heads", self.heads, ((1, k), (1, weight)), ((1, n),), (("heads", 1),))
        return (Cut("rows", ins[0].shape[0], ((0, 1), None), ((0, 1),)), heads)

    @override
    def macs(self, ins: tuple[TensorType, ...]) -> int:
        return ins[0].shape[0] * ins[1].elements

    @override
    def reference(self, *ins: Array) -> tuple[Array, ...]:
        x, w = f32(ins[0]), f32(ins[1])
        parts = x.reshape(x.shape[0], self.heads, -1)
        split = w.reshape(w.shape[0], self.heads, -1)
        y = np.einsum("thk,nhk->thn" if self.turned else "thk,khn->thn", parts, split)
        return (f32(y).reshape(x.shape[0], -1),)
