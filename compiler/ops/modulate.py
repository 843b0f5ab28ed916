"""Ops of diffusion transformers: norms and sums modulated by a value a sample, and rows of two streams."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from typing_extensions import override

from compiler.ir.graph import TensorType
from compiler.ops.base import Array, Move, Op, f32
from compiler.ops.norm import normalize


def _expect_samples(op: Op, role: str, x: TensorType, vector: TensorType) -> None:
    """Raise CompileError unless `vector` [n, f] has as many features as x [n * t, f], and n divides."""
    op.expect_rank(role, vector, "n f")
    n = vector.shape[0]
    if n < 1 or x.shape[0] % n:
        raise op.reject(f"{role}: got {n} rows, want a divisor of the {x.shape[0]} rows of x")
    op.expect(role, vector, (n, x.shape[1]), x.dtype)


@dataclass(frozen=True, slots=True)
class AdaptiveNorm(Op):
    """`y = (x - mean) / sqrt(var + eps) * (1 + scale) + shift` over each row, scale and shift of its sample.

    x [n * t, f], the rows of a sample behind each other; scale and shift [n, f].
    Source: Peebles and Xie 2023, "Scalable Diffusion Models with Transformers", section 3.2 (adaLN).
    """

    kind: ClassVar[str] = "adaptive-norm"
    eps: float = 1e-6

    @property
    @override
    def roles(self) -> tuple[str, ...]:
        return ("x", "scale", "shift")

    @override
    def infer(self, ins: tuple[TensorType, ...]) -> tuple[TensorType, ...]:
        self.expect_operands(ins)
        x, scale, shift = ins
        self.expect_rank("x", x, "t f")
        _expect_samples(self, "scale", x, scale)
        self.expect("shift", shift, scale.shape, x.dtype)
        return (x,)

    @override
    def reference(self, *ins: Array) -> tuple[Array, ...]:
        x, scale, shift = (f32(a) for a in ins)
        y = normalize(x, "layer", self.eps).reshape(scale.shape[0], -1, x.shape[1])
        return ((y * (1.0 + scale[:, None]) + shift[:, None]).reshape(x.shape),)


@dataclass(frozen=True, slots=True)
class GatedAdd(Op):
    """`y = residual + gate * x`, the gate being that of the row's sample.

    x and residual [n * t, f], gate [n, f].
    """

    kind: ClassVar[str] = "gated-add"

    @property
    @override
    def roles(self) -> tuple[str, ...]:
        return ("x", "residual", "gate")

    @override
    def infer(self, ins: tuple[TensorType, ...]) -> tuple[TensorType, ...]:
        self.expect_operands(ins)
        x, residual, gate = ins
        self.expect_rank("x", x, "t f")
        self.expect("residual", residual, x.shape, x.dtype)
        _expect_samples(self, "gate", x, gate)
        return (x,)

    @override
    def flops(self, ins: tuple[TensorType, ...]) -> int:
        """A product and a sum for each element."""
        return 2 * ins[0].elements

    @override
    def reference(self, *ins: Array) -> tuple[Array, ...]:
        x, residual, gate = (f32(a) for a in ins)
        gated = x.reshape(gate.shape[0], -1, x.shape[1]) * gate[:, None]
        return (residual + gated.reshape(x.shape),)


@dataclass(frozen=True, slots=True)
class JoinRows(Move):
    """The rows of two streams, sample by sample: [n * s, f] and [n * t, f] -> [n * (s + t), f]."""

    kind: ClassVar[str] = "join-rows"
    batch: int

    @property
    @override
    def roles(self) -> tuple[str, ...]:
        return ("first", "second")

    @override
    def infer(self, ins: tuple[TensorType, ...]) -> tuple[TensorType, ...]:
        self.expect_operands(ins)
        for role, stream in zip(self.roles, ins, strict=True):
            self.expect_rank(role, stream, "t f")
            if self.batch < 1 or stream.shape[0] % self.batch:
                raise self.reject(f"{role}: got {stream.shape[0]} rows, want a multiple of {self.batch}")
        first, second = ins
        self.expect("second", second, (second.shape[0], first.shape[1]), first.dtype)
        return (TensorType((first.shape[0] + second.shape[0], first.shape[1]), first.dtype),)

    @override
    def reference(self, *ins: Array) -> tuple[Array, ...]:
        features = ins[0].shape[1]
        parts = [f32(a).reshape(self.batch, -1, features) for a in ins]
        return (np.concatenate(parts, axis=1).reshape(-1, features),)


@dataclass(frozen=True, slots=True)
class PartRows(Move):
    """Rows `start .. stop` of each of `batch` samples: [n * t, f] -> [n * (stop - start), f]."""

    kind: ClassVar[str] = "part-rows"
    batch: int
    start: int
    stop: int

    @override
    def infer(self, ins: tuple[TensorType, ...]) -> tuple[TensorType, ...]:
        self.expect_operands(ins)
        self.expect_rank("x", ins[0], "t f")
        rows, features = ins[0].shape
        if self.batch < 1 or rows % self.batch:
            raise self.reject(f"x: got {rows} rows, want a multiple of {self.batch}")
        if not 0 <= self.start < self.stop <= rows // self.batch:
            got = f"{self.start}:{self.stop}"
            raise self.reject(f"start, stop: got {got}, want a range within 0:{rows // self.batch}")
        return (TensorType((self.batch * (self.stop - self.start), features), ins[0].dtype),)

    @override
    def read_bytes(self, ins: tuple[TensorType, ...]) -> tuple[int, ...]:
        return (self.infer(ins)[0].nbytes,)

    @override
    def reference(self, *ins: Array) -> tuple[Array, ...]:
        x = f32(ins[0]).reshape(self.batch, -1, ins[0].shape[1])
        return (np.ascontiguousarray(x[:, self.start : self.stop]).reshape(-1, x.shape[2]),)
