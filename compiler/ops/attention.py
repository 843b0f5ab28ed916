"""Attention over a whole sequence and over a KV cache, the cache update, and rotary positions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from typing_extensions import override

from compiler.ir.graph import TensorType
from compiler.ops.base import Array, Op, f32
from compiler.ops.norm import softmax


def _check_heads(op: Op, heads: int, kv_heads: int) -> None:
    if kv_heads < 1 or heads % kv_heads:
        raise op.reject(f"heads: got {heads} query heads, want a multiple of {kv_heads} kv heads")


@dataclass(frozen=True, slots=True)
class Attention(Op):
    """`softmax(scale * q k^T + mask) v` for each head; t = batch * seq rows, batch-major.

    q [t, heads * head_dim], k and v [t, kv_heads * head_dim] -> [t, heads * head_dim]. Query head h
    uses kv head `h // (heads // kv_heads)`. Causal: position i sees positions 0..i.
    """

    kind: ClassVar[str] = "attention"
    batch: int
    heads: int
    kv_heads: int
    head_dim: int
    causal: bool
    scale: float

    @property
    @override
    def roles(self) -> tuple[str, ...]:
        return ("q", "k", "v")

    @override
    def infer(self, ins: tuple[TensorType, ...]) -> tuple[TensorType, ...]:
        self.expect_operands(ins)
        q, k, v = ins
        _check_heads(self, self.heads, self.kv_heads)
        self.expect_rank("q", q, "t f")
        if q.shape[0] % self.batch:
            raise self.reject(f"q: got {q.shape[0]} rows, want a multiple of the batch {self.batch}")
        self.expect("q", q, (q.shape[0], self.heads * self.head_dim), q.dtype)
        for role, operand in (("k", k), ("v", v)):
            self.expect(role, operand, (q.shape[0], self.kv_heads * self.head_dim), q.dtype)
        return (q,)

    @override
    def macs(self, ins: tuple[TensorType, ...]) -> int:
        """Both products over the (query, key) pairs the mask admits: s*s, or s*(s+1)/2 if causal."""
        seq = ins[0].shape[0] // self.batch
        pairs = seq * (seq + 1) // 2 if self.causal else seq * seq
        return 2 * self.batch * self.heads * self.head_dim * pairs

    @override
    def reference(self, *ins: Array) -> tuple[Array, ...]:
        shape = (self.batch, ins[0].shape[0] // self.batch, -1, self.head_dim)
        q, k, v = (f32(a).reshape(shape).transpose(0, 2, 1, 3) for a in ins)
        group = self.heads // self.kv_heads
        k, v = np.repeat(k, group, axis=1), np.repeat(v, group, axis=1)
        scores = (q @ k.transpose(0, 1, 3, 2)) * self.scale
        if self.causal:
            seq = shape[1]
            scores = np.where(np.tri(seq, dtype=bool), scores, -np.inf)
        return (f32(softmax(scores) @ v).transpose(0, 2, 1, 3).reshape(ins[0].shape),)


@dataclass(frozen=True, slots=True)
class DecodeAttention(Op):
    """Attention of one new token a sequence over the first `length` positions of the cache.

    q [batch, heads * head_dim], k_cache [batch, kv_heads, head_dim, context],
    v_cache [batch, kv_heads, context, head_dim] -> like q.
    """

    kind: ClassVar[str] = "decode-attention"
    batch: int
    heads: int
    kv_heads: int
    head_dim: int
    scale: float
    length: int

    @property
    @override
    def roles(self) -> tuple[str, ...]:
        return ("q", "k_cache", "v_cache")

    @override
    def infer(self, ins: tuple[TensorType, ...]) -> tuple[TensorType, ...]:
        self.expect_operands(ins)
        q, k, v = ins
        _check_heads(self, self.heads, self.kv_heads)
        self.expect("q", q, (self.batch, self.heads * self.head_dim), q.dtype)
        self.expect_rank("k_cache", k, "batch kv_heads head_dim context")
        context = k.shape[3]
        self.expect("k_cache", k, (self.batch, self.kv_heads, self.head_dim, context), q.dtype)
        self.expect("v_cache", v, (self.batch, self.kv_heads, context, self.head_dim), q.dtype)
        if not 1 <= self.length <= context:
            raise self.reject(f"length: got {self.length}, want 1 to the cache's {context} positions")
        return (q,)

    @override
    def macs(self, ins: tuple[TensorType, ...]) -> int:
        return 2 * self.batch * self.heads * self.head_dim * self.length

    @override
    def reference(self, *ins: Array) -> tuple[Array, ...]:
        group = self.heads // self.kv_heads
        q = f32(ins[0]).reshape(self.batch, self.kv_heads, group, self.head_dim)
        k, v = f32(ins[1])[..., : self.length], f32(ins[2])[:, :, : self.length]
        return (f32(softmax((q @ k) * self.scale) @ v).reshape(ins[0].shape),)


@dataclass(frozen=True, slots=True)
class KvWrite(Op):
    """Write one new token's keys or values at `position` of the cache, in place.

    cache (state) and new [batch, kv_heads * head_dim] -> the same state. With `axis_k` the cache is
    [batch, kv_heads, head_dim, context] and a column is written, else
    [batch, kv_heads, context, head_dim] and a row.
    """

    kind: ClassVar[str] = "kv-write"
    position: int
    axis_k: bool

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
        self.expect("new", new, (batch, heads * head_dim), cache.dtype)
        if not 0 <= self.position < context:
            raise self.reject(f"position: got {self.position}, want 0 to {context - 1}")
        return (cache,)

    @override
    def flops(self, ins: tuple[TensorType, ...]) -> int:
        """Moves data only."""
        return 0

    @override
    def reference(self, *ins: Array) -> tuple[Array, ...]:
        cache, new = f32(ins[0]).copy(), f32(ins[1])
        if self.axis_k:
            cache[..., self.position] = new.reshape(cache.shape[:3])
        else:
            cache[:, :, self.position] = new.reshape(cache.shape[0], cache.shape[1], -1)
        return (cache,)


@dataclass(frozen=True, slots=True)
class Rope(Op):
    """Rotary position embedding of each head: pairs (i, i + head_dim/2) turn by `position * theta_i`.

    x [t, heads * head_dim], cos and sin [seq, head_dim / 2] (row p: position `offset + p`) -> like x.
    Row t of x uses table row `t % seq`. theta_i = base ** (-2 i / head_dim).
    """

    kind: ClassVar[str] = "rope"
    heads: int
    head_dim: int
    seq: int
    base: float = 10000.0
    offset: int = 0
    style: str = "half"

    @property
    @override
    def roles(self) -> tuple[str, ...]:
        return ("x", "cos", "sin")

    @override
    def infer(self, ins: tuple[TensorType, ...]) -> tuple[TensorType, ...]:
        self.expect_operands(ins)
        x, cos, sin = ins
        if self.style != "half":
            raise self.reject(f"style: got {self.style!r}, want 'half'")
        if self.head_dim % 2:
            raise self.reject(f"head_dim: got {self.head_dim}, want an even number")
        self.expect_rank("x", x, "t f")
        if x.shape[0] % self.seq:
            raise self.reject(f"x: got {x.shape[0]} rows, want a multiple of seq {self.seq}")
        self.expect("x", x, (x.shape[0], self.heads * self.head_dim), x.dtype)
        for role, table in (("cos", cos), ("sin", sin)):
            self.expect(role, table, (self.seq, self.head_dim // 2), x.dtype)
        return (x,)

    @override
    def flops(self, ins: tuple[TensorType, ...]) -> int:
        """Two products and one sum for each element."""
        return 3 * ins[0].elements

    @override
    def constants(self) -> dict[str, Array]:
        positions = self.offset + np.arange(self.seq, dtype=np.float64)
        exponents = np.arange(self.head_dim // 2, dtype=np.float64) * (-2.0 / self.head_dim)
        angles = np.outer(positions, np.power(self.base, exponents))
        return {"cos": f32(np.cos(angles)), "sin": f32(np.sin(angles))}

    @override
    def reference(self, *ins: Array) -> tuple[Array, ...]:
        half = self.head_dim // 2
        x = f32(ins[0]).reshape(-1, self.seq, self.heads, self.head_dim)
        cos, sin = (f32(table)[None, :, None, :] for table in ins[1:])
        low, high = x[..., :half], x[..., half:]
        turned = np.concatenate([low * cos - high * sin, high * cos + low * sin], axis=-1)
        return (turned.reshape(ins[0].shape),)
