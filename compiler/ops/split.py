"""Contractions in parts that cores do side by side, and how the parts come together again.

Libraries call it split-K, and flash decoding for attention over a cache (Dao et al. 2023, "Flash-Decoding").
Passes make these ops where an op alone has fewer tiles than there are cores.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from typing_extensions import override

from compiler.ir.graph import TensorType
from compiler.ops.attention import DecodeAttention
from compiler.ops.base import Array, Cut, Op, f32


@dataclass(frozen=True, slots=True)
class PartialLinear(Op):
    """`y[p] = x[:, part p] @ w[part p]`: x [t, k], w [k, n] -> fp32 [parts, t, n]."""

    kind: ClassVar[str] = "partial-linear"
    parts: int

    @property
    @override
    def roles(self) -> tuple[str, ...]:
        return ("x", "w")

    @override
    def infer(self, ins: tuple[TensorType, ...]) -> tuple[TensorType, ...]:
        self.expect_operands(ins)
        x, w = ins
        self.expect_rank("x", x, "t k")
        self.expect_rank("w", w, "k n")
        self.expect("w", w, (x.shape[1], w.shape[1]), x.dtype)
        if self.parts < 1 or x.shape[1] % self.parts:
            raise self.reject(f"parts: got {self.parts}, want a divisor of {x.shape[1]}")
        return (TensorType((self.parts, x.shape[0], w.shape[1]), "fp32"),)

    @override
    def macs(self, ins: tuple[TensorType, ...]) -> int:
        return ins[0].elements * ins[1].shape[1]

    @override
    def cuts(self, ins: tuple[TensorType, ...]) -> tuple[Cut, ...]:
        (t, k), n = ins[0].shape, ins[1].shape[1]
        part = k // self.parts
        return (
            Cut("parts", self.parts, ((1, part), (0, part)), ((0, 1),), (("parts", 1),)),
            Cut("rows", t, ((0, 1), None), ((1, 1),)),
            Cut("columns", n, (None, (1, 1)), ((2, 1),)),
        )

    @override
    def reference(self, *ins: Array) -> tuple[Array, ...]:
        x, w = f32(ins[0]), f32(ins[1])
        part = x.shape[1] // self.parts
        each = (slice(i * part, (i + 1) * part) for i in range(self.parts))
        return (np.stack([x[:, s] @ w[s] for s in each]),)


@dataclass(frozen=True, slots=True)
class SumParts(Op):
    """`y = sum over p of x[p]`: fp32 [parts, t, n] -> [t, n] of type `dtype`."""

    kind: ClassVar[str] = "sum-parts"
    dtype: str

    @override
    def infer(self, ins: tuple[TensorType, ...]) -> tuple[TensorType, ...]:
        self.expect_operands(ins)
        self.expect_rank("x", ins[0], "parts t n")
        self.expect("x", ins[0], ins[0].shape, "fp32")
        return (TensorType(ins[0].shape[1:], self.dtype),)

    @override
    def flops(self, ins: tuple[TensorType, ...]) -> int:
        """One per element read."""
        return ins[0].elements

    @override
    def cuts(self, ins: tuple[TensorType, ...]) -> tuple[Cut, ...]:
        _, t, n = ins[0].shape
        return Cut("rows", t, ((1, 1),), ((0, 1),)), Cut("columns", n, ((2, 1),), ((1, 1),))

    @override
    def reference(self, *ins: Array) -> tuple[Array, ...]:
        return (f32(ins[0].sum(axis=0, dtype=np.float32)),)


@dataclass(frozen=True, slots=True)
class PartialDecode(DecodeAttention):
    """Attention of one new token a sequence over each of `parts` equal parts of the first `length` positions.

    As `DecodeAttention` with one query that sees all -> results [parts, batch, heads * value_dim] of each
    part alone, and the logarithm of the sum of the exponentials of its scores, fp32 [heads, parts, batch].
    """

    kind: ClassVar[str] = "partial-decode"
    parts: int = 1

    @property
    def keys(self) -> int:
        """Positions of a part."""
        return self.length // self.parts

    @override
    def infer(self, ins: tuple[TensorType, ...]) -> tuple[TensorType, ...]:
        (out,) = DecodeAttention.infer(self, ins)
        if self.queries != 1 or self.causal or self.window or self.bias or self.sinks:
            raise self.reject("want one query that sees all keys, without bias and sinks")
        if self.parts < 1 or self.length % self.parts:
            raise self.reject(f"parts: got {self.parts}, want a divisor of {self.length}")
        sums = TensorType((self.heads, self.parts, self.batch), "fp32")
        return TensorType((self.parts, *out.shape), out.dtype), sums

    @override
    def cuts(self, ins: tuple[TensorType, ...]) -> tuple[Cut, ...]:
        group, keys = self.heads // self.kv_heads, self.keys
        wide, values = group * self.head_dim, group * self.values
        return (
            Cut(
                "parts",
                self.parts,
                (None, (3, keys), (2, keys)),
                ((0, 1), (1, 1)),
                (("parts", 1), ("length", keys)),
            ),
            Cut(
                "heads",
                self.kv_heads,
                ((1, wide), (1, 1), (1, 1)),
                ((2, values), (0, group)),
                (("heads", group), ("kv_heads", 1)),
            ),
            Cut("batch", self.batch, ((0, 1),) * 3, ((1, 1), (2, 1)), (("batch", 1),)),
        )

    @override
    def reference(self, *ins: Array) -> tuple[Array, ...]:
        group = self.heads // self.kv_heads
        q = f32(ins[0]).reshape(self.batch, self.kv_heads, group, self.head_dim)
        shape = (self.batch, self.kv_heads, -1, self.parts, self.keys)
        k = f32(ins[1])[..., : self.length].reshape(shape)
        v = f32(ins[2])[:, :, : self.length].reshape(self.batch, self.kv_heads, self.parts, self.keys, -1)
        scores = np.einsum("bhgd,bhdpk->pbhgk", q, k) * self.scale
        if self.softcap:
            scores = np.tanh(scores / self.softcap) * self.softcap
        top = scores.max(axis=-1, keepdims=True)
        weights = np.exp(scores - top)
        total = weights.sum(axis=-1, keepdims=True)
        out = np.einsum("pbhgk,bhpkd->pbhgd", weights / total, v)
        sums = (np.log(total) + top).reshape(self.parts, self.batch, self.heads)
        return f32(out.reshape(self.parts, self.batch, -1)), f32(sums.transpose(2, 0, 1))


@dataclass(frozen=True, slots=True)
class JoinParts(Op):
    """The whole of `PartialDecode`: the mean of x[p], a head each, with weights exp(sums[p]).

    x [parts, t, heads * f], sums fp32 [heads, parts, t] -> [t, heads * f].
    """

    kind: ClassVar[str] = "join-parts"

    @property
    @override
    def roles(self) -> tuple[str, ...]:
        return ("x", "sums")

    @override
    def infer(self, ins: tuple[TensorType, ...]) -> tuple[TensorType, ...]:
        self.expect_operands(ins)
        x, sums = ins
        self.expect_rank("x", x, "parts t f")
        self.expect_rank("sums", sums, "heads parts t")
        self.expect("sums", sums, (sums.shape[0], *x.shape[:2]), "fp32")
        if x.shape[2] % sums.shape[0]:
            raise self.reject(f"x: got {x.shape[2]} features, want a multiple of {sums.shape[0]} heads")
        return (TensorType(x.shape[1:], x.dtype),)

    @override
    def flops(self, ins: tuple[TensorType, ...]) -> int:
        """A product and a sum for each element read."""
        return 2 * ins[0].elements

    @override
    def cuts(self, ins: tuple[TensorType, ...]) -> tuple[Cut, ...]:
        heads, wide = ins[1].shape[0], ins[0].shape[2] // ins[1].shape[0]
        return (
            Cut("heads", heads, ((2, wide), (0, 1)), ((1, wide),)),
            Cut("batch", ins[0].shape[1], ((1, 1), (2, 1)), ((0, 1),)),
        )

    @override
    def reference(self, *ins: Array) -> tuple[Array, ...]:
        x, sums = f32(ins[0]), f32(ins[1])
        weights = np.exp(sums - sums.max(axis=1, keepdims=True))
        weights = weights / weights.sum(axis=1, keepdims=True)
        parts = x.reshape(*x.shape[:2], sums.shape[0], -1)
        return (f32(np.einsum("pthf,hpt->thf", parts, weights).reshape(x.shape[1], -1)),)
