"""Row statistics: norms, softmax and reductions over the last axis of [tokens, features]."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from typing_extensions import override

from compiler.ir.graph import TensorType
from compiler.ops.base import Array, Cut, Op, f32, rows_cut

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
    def cuts(self, ins: tuple[TensorType, ...]) -> tuple[Cut, ...]:
        return rows_cut(ins, 1)

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
    def cuts(self, ins: tuple[TensorType, ...]) -> tuple[Cut, ...]:
        return rows_cut(ins, 2)

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
    """Softmax over the last axis."""

    kind: ClassVar[str] = "softmax"

    @override
    def infer(self, ins: tuple[TensorType, ...]) -> tuple[TensorType, ...]:
        self.expect_operands(ins)
        return ins

    @override
    def cuts(self, ins: tuple[TensorType, ...]) -> tuple[Cut, ...]:
        return rows_cut(ins) if len(ins[0].shape) > 1 else ()

    @override
    def reference(self, *ins: Array) -> tuple[Array, ...]:
        return (softmax(f32(ins[0])),)


REDUCTIONS = ("add", "max", "min", "mean")


@dataclass(frozen=True, slots=True)
class Reduce(Op):
    """The sum, maximum, minimum or mean over neighbouring `axes`; each stays with size 1."""

    kind: ClassVar[str] = "reduce"
    func: str
    axes: tuple[int, ...] = (1,)

    @override
    def infer(self, ins: tuple[TensorType, ...]) -> tuple[TensorType, ...]:
        self.expect_operands(ins)
        if self.func not in REDUCTIONS:
            raise self.reject(f"func: got {self.func!r}, want one of: {', '.join(REDUCTIONS)}")
        x = ins[0]
        if not self.axes or self.axes != tuple(range(self.axes[0], self.axes[0] + len(self.axes))):
            raise self.reject(f"axes: got {list(self.axes)}, want neighbours from small to large")
        if not 0 <= self.axes[0] <= self.axes[-1] < len(x.shape):
            raise self.reject(f"axes: got {list(self.axes)}, want axes of {list(x.shape)}")
        shape = tuple(1 if i in self.axes else size for i, size in enumerate(x.shape))
        return (TensorType(shape, x.dtype),)

    @override
    def flops(self, ins: tuple[TensorType, ...]) -> int:
        """One per element read."""
        return ins[0].elements

    @override
    def reference(self, *ins: Array) -> tuple[Array, ...]:
        x = f32(ins[0])
        if self.func in ("max", "min"):
            return (getattr(x, self.func)(axis=self.axes, keepdims=True),)
        total = x.sum(axis=self.axes, keepdims=True, dtype=np.float32)
        return (f32(total / (x.size // total.size)) if self.func == "mean" else total,)
