"""Attention over a whole sequence and over a KV cache, and the cache update."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from typing_extensions import override

from compiler.ir.graph import TensorType
from compiler.ops.base import Array, Cut, Move, Op, Span, f32
from compiler.ops.norm import softmax
from compiler.ops.sight import Sight


def _check_heads(op: Op, heads: int, kv_heads: int) -> None:
    if kv_heads < 1 or heads % kv_heads:
        raise op.reject(f"heads: got {heads} query heads, want a multiple of {kv_heads} kv heads")


@dataclass(frozen=True, slots=True)
class _Heads(Op):
    """What attention over activations and over a cache have in common.

    `softmax(softcap(scale * q k^T) + bias) v` for each head, over the keys that a query sees: with `causal`
    those up to its own position, with a `window` the last so many of them. softcap(x) is
    `softcap * tanh(x / softcap)`. Query head h uses kv head `h // (heads // kv_heads)`.
    bias [batch or 1, heads or 1, queries, keys] is added; sinks [heads] are logits of one more key a head
    whose value is zero. `value_dim` 0: values are as wide as keys.
    """

    batch: int
    heads: int
    kv_heads: int
    head_dim: int

    def _roles(self, *names: str, bias: bool, sinks: bool) -> tuple[str, ...]:
        return (*names, *(("bias",) if bias else ()), *(("sinks",) if sinks else ()))

    def _extras(self, ins: tuple[TensorType, ...], role: str, axis: int, unit: int) -> tuple[Span, ...]:
        """How the operands behind q, k and v are cut along an axis of the bias, or heads of the sinks."""
        spans: list[Span] = []
        for name, operand in zip(self.roles[3:], ins[3:], strict=True):
            if name == "sinks":
                spans.append((0, unit) if role == "heads" else None)
            else:
                spans.append((axis, unit) if operand.shape[axis] > 1 else None)
        return tuple(spans)

    def _check_extras(self, named: dict[str, TensorType], queries: int, keys: int) -> None:
        """Raise CompileError unless the optional operands fit."""
        dtype = named["q"].dtype
        if "bias" in named:
            bias = named["bias"]
            self.expect_rank("bias", bias, "batch heads queries keys")
            sizes = [
                have if have == 1 else want
                for have, want in zip(bias.shape, (self.batch, self.heads), strict=False)
            ]
            self.expect("bias", bias, (*sizes, queries, keys), dtype)
        if "sinks" in named:
            self.expect("sinks", named["sinks"], (self.heads,), dtype)

    def _check_sight(self, causal: bool, window: int, softcap: float) -> None:
        if window < 0 or (window and not causal):
            raise self.reject(f"window: got {window}, want 0 for none, or 1 or more with causal")
        if softcap < 0:
            raise self.reject(f"softcap: got {softcap}, want 0 for none, or a number above 0")


def _weigh(
    op: Attention | DecodeAttention, q: Array, k: Array, v: Array, extras: dict[str, Array], seen: Array
) -> Array:
    """q [b, h, queries, d], k and v [b, kv heads, keys, d] -> [b, h, queries, value_dim], by definition."""
    group = op.heads // op.kv_heads
    k, v = np.repeat(k, group, axis=1), np.repeat(v, group, axis=1)
    softcap = op.softcap
    scores = (q @ k.transpose(0, 1, 3, 2)) * op.scale
    if softcap:
        scores = np.tanh(scores / softcap) * softcap
    if "bias" in extras:
        scores = scores + extras["bias"]
    scores = np.where(seen, scores, -np.inf)
    if "sinks" in extras:
        sinks = np.broadcast_to(extras["sinks"][None, :, None, None], (*scores.shape[:3], 1))
        return f32(softmax(np.concatenate([scores, sinks], axis=-1))[..., :-1] @ v)
    return f32(softmax(scores) @ v)


@dataclass(frozen=True, slots=True)
class Attention(_Heads):
    """Attention of a sequence over keys and values that are activations; rows are batch-major.

    q [batch * queries, heads * head_dim], k [batch * keys, kv_heads * head_dim], v [batch * keys,
    kv_heads * value_dim] -> [batch * queries, heads * value_dim]. Query i is at position `offset + i`,
    key j at j. See `_Heads` for the rest.
    """

    kind: ClassVar[str] = "attention"
    causal: bool
    scale: float
    value_dim: int = 0
    offset: int = 0
    window: int = 0
    softcap: float = 0.0
    bias: bool = False
    sinks: bool = False

    @property
    @override
    def roles(self) -> tuple[str, ...]:
        return self._roles("q", "k", "v", bias=self.bias, sinks=self.sinks)

    @property
    def sight(self) -> Sight:
        """Which keys queries see."""
        return Sight(self.causal, self.window)

    @property
    def values(self) -> int:
        """Width of a head's values."""
        return self.value_dim or self.head_dim

    @override
    def infer(self, ins: tuple[TensorType, ...]) -> tuple[TensorType, ...]:
        self.expect_operands(ins)
        named = dict(zip(self.roles, ins, strict=True))
        q, k, v = ins[:3]
        _check_heads(self, self.heads, self.kv_heads)
        self._check_sight(self.causal, self.window, self.softcap)
        for role, operand in (("q", q), ("k", k)):
            self.expect_rank(role, operand, "t f")
            if operand.shape[0] % self.batch:
                rows = operand.shape[0]
                raise self.reject(f"{role}: got {rows} rows, want a multiple of the batch {self.batch}")
        self.expect("q", q, (q.shape[0], self.heads * self.head_dim), q.dtype)
        self.expect("k", k, (k.shape[0], self.kv_heads * self.head_dim), q.dtype)
        self.expect("v", v, (k.shape[0], self.kv_heads * self.values), q.dtype)
        queries, keys = q.shape[0] // self.batch, k.shape[0] // self.batch
        last = self.offset + queries - 1
        if self.offset < 0 or (self.window and last - self.window + 1 >= keys):
            raise self.reject(f"offset: got {self.offset}, want 0 or more, and keys in every query's window")
        self._check_extras(named, queries, keys)
        return (TensorType((q.shape[0], self.heads * self.values), q.dtype),)

    def _pairs(self, ins: tuple[TensorType, ...]) -> int:
        queries, keys = ins[0].shape[0] // self.batch, ins[1].shape[0] // self.batch
        return self.batch * self.heads * self.sight.pairs(self.offset, queries, keys)

    @override
    def macs(self, ins: tuple[TensorType, ...]) -> int:
        """Both products over the (query, key) pairs that are seen: q*k, or s*(s+1)/2 if causal."""
        return self._pairs(ins) * (self.head_dim + self.values)

    @override
    def cuts(self, ins: tuple[TensorType, ...]) -> tuple[Cut, ...]:
        queries, keys = ins[0].shape[0] // self.batch, ins[1].shape[0] // self.batch
        group = self.heads // self.kv_heads
        found = [
            Cut(
                "batch",
                self.batch,
                ((0, queries), (0, keys), (0, keys), *self._extras(ins, "batch", 0, 1)),
                ((0, queries),),
                (("batch", 1),),
            ),
            Cut(
                "heads",
                self.kv_heads,
                (
                    (1, group * self.head_dim),
                    (1, self.head_dim),
                    (1, self.values),
                    *self._extras(ins, "heads", 1, group),
                ),
                ((1, group * self.values),),
                (("heads", group), ("kv_heads", 1)),
            ),
        ]
        if self.kv_heads == 1 and self.heads > 1:
            mine = ((1, self.head_dim), None, None, *self._extras(ins, "heads", 1, 1))
            found.append(Cut("group", self.heads, mine, ((1, self.values),), (("heads", 1),)))
        if self.batch == 1:
            rows = ((0, 1), None, None, *self._extras(ins, "queries", 2, 1))
            first = "offset" if self.causal else ""
            found.append(Cut("queries", queries, rows, ((0, 1),), start=first, held=True))
        return tuple(found)

    @override
    def most_macs(self, ins: tuple[TensorType, ...]) -> int:
        """Every query with every key: what is masked may be computed all the same."""
        pairs = self.batch * (ins[0].shape[0] // self.batch) * (ins[1].shape[0] // self.batch)
        return pairs * self.heads * (self.head_dim + self.values)

    @override
    def reference(self, *ins: Array) -> tuple[Array, ...]:
        q, k, v = (
            f32(a).reshape(self.batch, a.shape[0] // self.batch, -1, width).transpose(0, 2, 1, 3)
            for a, width in zip(ins[:3], (self.head_dim, self.head_dim, self.values), strict=True)
        )
        extras = {role: f32(a) for role, a in zip(self.roles[3:], ins[3:], strict=True)}
        out = _weigh(self, q, k, v, extras, self.sight.mask(self.offset, q.shape[2], k.shape[2]))
        return (out.transpose(0, 2, 1, 3).reshape(ins[0].shape[0], -1),)


@dataclass(frozen=True, slots=True)
class DecodeAttention(_Heads):
    """Attention of the last `queries` tokens of each sequence over the first `length` of the cache.

    q [batch * queries, heads * head_dim], k_cache [batch, kv_heads, head_dim, context],
    v_cache [batch, kv_heads, context, value_dim] -> [batch * queries, heads * value_dim]. Query i is at
    position `length - queries + i`; its keys and values are in the cache. Not causal: all see `length`
    keys (a decoder's look at its encoder). See `_Heads` for the rest.
    """

    kind: ClassVar[str] = "decode-attention"
    scale: float
    length: int
    queries: int = 1
    causal: bool = True
    value_dim: int = 0
    window: int = 0
    softcap: float = 0.0
    bias: bool = False
    sinks: bool = False

    @property
    @override
    def roles(self) -> tuple[str, ...]:
        return self._roles("q", "k_cache", "v_cache", bias=self.bias, sinks=self.sinks)

    @property
    def sight(self) -> Sight:
        """Which keys queries see."""
        return Sight(self.causal, self.window)

    @property
    def values(self) -> int:
        """Width of a head's values."""
        return self.value_dim or self.head_dim

    @property
    def offset(self) -> int:
        """Position of the first query."""
        return self.length - self.queries if self.causal else 0

    @override
    def infer(self, ins: tuple[TensorType, ...]) -> tuple[TensorType, ...]:
        self.expect_operands(ins)
        q, k, v = ins[:3]
        _check_heads(self, self.heads, self.kv_heads)
        self._check_sight(self.causal, self.window, self.softcap)
        self.expect("q", q, (self.batch * self.queries, self.heads * self.head_dim), q.dtype)
        self.expect_rank("k_cache", k, "batch kv_heads head_dim context")
        context = k.shape[3]
        self.expect("k_cache", k, (self.batch, self.kv_heads, self.head_dim, context), q.dtype)
        self.expect("v_cache", v, (self.batch, self.kv_heads, context, self.values), q.dtype)
        least = self.queries if self.causal else 1
        if not least <= self.length <= context:
            raise self.reject(f"length: got {self.length}, want {least} to the cache's {context} positions")
        self._check_extras(dict(zip(self.roles, ins, strict=True)), self.queries, self.length)
        return (TensorType((q.shape[0], self.heads * self.values), q.dtype),)

    @override
    def macs(self, ins: tuple[TensorType, ...]) -> int:
        pairs = self.batch * self.heads * self.sight.pairs(self.offset, self.queries, self.length)
        return pairs * (self.head_dim + self.values)

    @override
    def cuts(self, ins: tuple[TensorType, ...]) -> tuple[Cut, ...]:
        group = self.heads // self.kv_heads
        return (
            Cut(
                "batch",
                self.batch,
                ((0, self.queries), (0, 1), (0, 1), *self._extras(ins, "batch", 0, 1)),
                ((0, self.queries),),
                (("batch", 1),),
            ),
            Cut(
                "heads",
                self.kv_heads,
                ((1, group * self.head_dim), (1, 1), (1, 1), *self._extras(ins, "heads", 1, group)),
                ((1, group * self.values),),
                (("heads", group), ("kv_heads", 1)),
            ),
        )

    @override
    def most_macs(self, ins: tuple[TensorType, ...]) -> int:
        """Every query with every position: what is masked may be computed all the same."""
        return self.batch * self.heads * self.queries * self.length * (self.head_dim + self.values)

    @override
    def read_bytes(self, ins: tuple[TensorType, ...]) -> tuple[int, ...]:
        """Of the caches only the positions that some query sees; the newest may still be on chip."""
        newest = self.queries if self.causal else 0
        seen = max(0, self.length - newest - self.sight.first(self.offset))
        whole = [operand.nbytes for operand in ins]
        return (whole[0], *(n * seen // ins[1].shape[3] for n in whole[1:3]), *whole[3:])

    @override
    def reference(self, *ins: Array) -> tuple[Array, ...]:
        q = f32(ins[0]).reshape(self.batch, self.queries, self.heads, self.head_dim).transpose(0, 2, 1, 3)
        k = f32(ins[1])[..., : self.length].transpose(0, 1, 3, 2)
        v = f32(ins[2])[:, :, : self.length]
        extras = {role: f32(a) for role, a in zip(self.roles[3:], ins[3:], strict=True)}
        out = _weigh(self, q, k, v, extras, self.sight.mask(self.offset, self.queries, self.length))
        return (out.transpose(0, 2, 1, 3).reshape(ins[0].shape[0], -1),)


@dataclass(frozen=True, slots=True)
class KvWrite(Move):
    """Write keys or values of `tokens` new tokens from `position` of the cache on, in place.

    cache (state) and new [batch * tokens, kv_heads * head_dim] -> the same state. With `axis_k` the cache is
    [batch, kv_heads, head_dim, context] and columns are written, else [batch, kv_heads, context, head_dim]
    and rows.
    """

    kind: ClassVar[str] = "kv-write"
    position: int
    axis_k: bool
    tokens: int = 1

    @property
    @override
    def roles(self) -> tuple[str, ...]:
        return ("cache", "new")

    @override
    def infer(self, ins: tuple[TensorType, ...]) -> tuple[TensorType, ...]:
        self.expect_operands(ins)
        cache, new = ins
        self.expect_rank("cache", cache, "batch kv_heads a b")
        batch, heads, a, b = cache.shape
        head_dim, context = (a, b) if self.axis_k else (b, a)
        self.expect("new", new, (batch * self.tokens, heads * head_dim), cache.dtype)
        if self.tokens < 1 or not 0 <= self.position <= context - self.tokens:
            raise self.reject(f"position: got {self.position}, want 0 to {context - self.tokens}")
        return (cache,)

    @override
    def cuts(self, ins: tuple[TensorType, ...]) -> tuple[Cut, ...]:
        batch, heads = ins[0].shape[:2]
        head_dim = ins[1].shape[1] // heads
        return (
            Cut("batch", batch, ((0, 1), (0, self.tokens)), ((0, 1),)),
            Cut("heads", heads, ((1, 1), (1, head_dim)), ((1, 1),)),
        )

    @override
    def reference(self, *ins: Array) -> tuple[Array, ...]:
        cache, new = f32(ins[0]).copy(), f32(ins[1])
        new = new.reshape(cache.shape[0], self.tokens, cache.shape[1], -1)
        where = slice(self.position, self.position + self.tokens)
        if self.axis_k:
            cache[..., where] = new.transpose(0, 2, 3, 1)
        else:
            cache[:, :, where] = new.transpose(0, 2, 1, 3)
        return (cache,)
