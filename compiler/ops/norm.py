"""Row statistics: norms, softmax and reductions over the last axis of [tokens, features]."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from typing_extensions import override

from compiler.ir.graph import TensorType
from compiler.ops.base import Array, Op, f32

NORMS = ("rms", "layer")


def normalize(x: Array, norm: str, eps: float) -> Array:
    """`x` divided by its root mean square ("rms"), or centred and divided by its deviation ("layer")."""
    if norm == "layer":
        x = x - x.mean(axis=-1, keepdims=True, dtype=np.float32)
    return x / np.sqrt(np.mean(np.square(x), axis=-1, keepdims=True, dtype=np.float32) + eps)


@dataclass(frozen=True, slots=True)
class RmsNorm(Op):
    """`y = x / sqrt(mean(x^2) + eps) * gain` over each row, or over each of `heads` equal parts of it.

    x [t, f], gain [f / heads].
    """

    kind: ClassVar[str] = "rms-norm"
    eps: float = 1e-5
    heads: int = 1

    @property
    @override
    def roles(self) -> tuple[str, ...]:
        return ("x", "gain")

    @override
    def infer(self, ins: tuple[TensorType, ...]) -> tuple[TensorType, ...]:
        self.expect_operands(ins)
        x, gain = ins
        self.expect_rank("x", x, "t f")
        if x.shape[1] % self.heads:
            raise self.reject(f"heads: got {self.heads}, want a divisor of {x.shape[1]}")
        self.expect("gain", gain, (x.shape[1] // self.heads,), x.dtype)
        return (x,)

    @override
    def reference(self, *ins: Array) -> tuple[Array, ...]:
        x, gain = f32(ins[0]), f32(ins[1])
        parts = x.reshape(x.shape[0], self.heads, -1)
        return ((normalize(parts, "rms", self.eps) * gain).reshape(x.shape),)


@dataclass(frozen=True, slots=True)
class LayerNorm(Op):
    """`y = (x - mean) / sqrt(var + eps) * gain + beta` over each row; x [t, f], gain [f], beta [f]."""

    kind: ClassVar[str] = "layer-norm"
    eps: float = 1e-5

    @property
    @override
    def roles(self) -> tuple[str, ...]:
        return ("x", "gain", "beta")

    @override
    def infer(self, ins: tuple[TensorType, ...]) -> tuple[TensorType, ...]:
        self.expect_operands(ins)
        x, gain, beta = ins
        self.expect_rank("x", x, "t f")
        self.expect("gain", gain, x.shape[1:], x.dtype)
        self.expect("beta", beta, x.shape[1:], x.dtype)
        return (x,)

    @override
    def reference(self, *ins: Array) -> tuple[Array, ...]:
        x, gain, beta = (f32(a) for a in ins)
        return (normalize(x, "layer", self.eps) * gain + beta,)


def softmax(x: Array) -> Array:
    """Softmax over the last axis; a row may hold -inf but not only -inf."""
    e = np.exp(x - x.max(axis=-1, keepdims=True))
    return f32(e / e.sum(axis=-1, keepdims=True, dtype=np.float32))


@dataclass(frozen=True, slots=True)
class Softmax(Op):
    """Softmax over each row of [t, f]."""

    kind: ClassVar[str] = "softmax"

    @override
    def infer(self, ins: tuple[TensorType, ...]) -> tuple[TensorType, ...]:
        self.expect_operands(ins)
        self.expect_rank("x", ins[0], "t f")
        return ins

    @override
    def reference(self, *ins: Array) -> tuple[Array, ...]:
        return (softmax(f32(ins[0])),)


REDUCTIONS = ("add", "max", "mean")


@dataclass(frozen=True, slots=True)
class Reduce(Op):
    """[t, f] -> [t, 1]: the sum, maximum or mean of each row."""

    kind: ClassVar[str] = "reduce"
    func: str

    @override
    def infer(self, ins: tuple[TensorType, ...]) -> tuple[TensorType, ...]:
        self.expect_operands(ins)
        if self.func not in REDUCTIONS:
            raise self.reject(f"func: got {self.func!r}, want one of: {', '.join(REDUCTIONS)}")
        self.expect_rank("x", ins[0], "t f")
        return (TensorType((ins[0].shape[0], 1), ins[0].dtype),)

    @override
    def flops(self, ins: tuple[TensorType, ...]) -> int:
        """One per element read."""
        return ins[0].elements

    @override
    def reference(self, *ins: Array) -> tuple[Array, ...]:
        x = f32(ins[0])
        if self.func == "max":
            return (x.max(axis=-1, keepdims=True),)
        total = x.sum(axis=-1, keepdims=True, dtype=np.float32)
        return (total / x.shape[-1] if self.func == "mean" else total,)
