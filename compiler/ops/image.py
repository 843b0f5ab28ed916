"""Ops of diffusion and vision models on images [n, c, h, w]: group norm, upsampling, values a channel."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from typing_extensions import override

from compiler.ir.graph import TensorType
from compiler.ops.base import Array, Move, Op, f32
from compiler.ops.elementwise import FUNCTIONS, check_activation


@dataclass(frozen=True, slots=True)
class GroupNorm(Op):
    """`y = activation((x - mean) / sqrt(variance + eps) * gain + beta)`, statistics over groups of channels.

    x [n, c, h, w], gain and beta [c]; a group is c / groups neighbouring channels of one image.
    Source: Wu and He 2018, "Group Normalization", eq. 1 to 7.
    """

    kind: ClassVar[str] = "group-norm"
    groups: int
    eps: float = 1e-5
    activation: str | None = None

    @property
    @override
    def roles(self) -> tuple[str, ...]:
        return ("x", "gain", "beta")

    @override
    def infer(self, ins: tuple[TensorType, ...]) -> tuple[TensorType, ...]:
        self.expect_operands(ins)
        x, gain, beta = ins
        self.expect_rank("x", x, "n c h w")
        if self.groups < 1 or x.shape[1] % self.groups:
            raise self.reject(f"groups: got {self.groups}, want a divisor of {x.shape[1]} channels")
        check_activation(self, self.activation)
        for role, vector in (("gain", gain), ("beta", beta)):
            self.expect(role, vector, x.shape[1:2], x.dtype)
        return (x,)

    @override
    def reference(self, *ins: Array) -> tuple[Array, ...]:
        x, gain, beta = (f32(a) for a in ins)
        grouped = x.reshape(x.shape[0], self.groups, -1)
        mean = grouped.mean(axis=2, keepdims=True)
        variance = np.square(grouped - mean).mean(axis=2, keepdims=True)
        y = ((grouped - mean) / np.sqrt(variance + self.eps)).reshape(x.shape)
        y = y * gain[:, None, None] + beta[:, None, None]
        return (f32(FUNCTIONS[self.activation](y) if self.activation else y),)


@dataclass(frozen=True, slots=True)
class Upsample(Move):
    """Each pixel of [n, c, h, w] `factor` times down and across."""

    kind: ClassVar[str] = "upsample"
    factor: int = 2

    @override
    def infer(self, ins: tuple[TensorType, ...]) -> tuple[TensorType, ...]:
        self.expect_operands(ins)
        self.expect_rank("x", ins[0], "n c h w")
        if self.factor < 1:
            raise self.reject(f"factor: got {self.factor}, want 1 or more")
        n, c, h, w = ins[0].shape
        return (TensorType((n, c, h * self.factor, w * self.factor), ins[0].dtype),)

    @override
    def reference(self, *ins: Array) -> tuple[Array, ...]:
        return (f32(ins[0]).repeat(self.factor, axis=2).repeat(self.factor, axis=3),)


@dataclass(frozen=True, slots=True)
class ChannelAdd(Op):
    """`y[n, c] = x[n, c] + v[n, c]` for all pixels: x [n, c, h, w], v [n, c]."""

    kind: ClassVar[str] = "channel-add"

    @property
    @override
    def roles(self) -> tuple[str, ...]:
        return ("x", "v")

    @override
    def infer(self, ins: tuple[TensorType, ...]) -> tuple[TensorType, ...]:
        self.expect_operands(ins)
        self.expect_rank("x", ins[0], "n c h w")
        self.expect("v", ins[1], ins[0].shape[:2], ins[0].dtype)
        return (ins[0],)

    @override
    def reference(self, *ins: Array) -> tuple[Array, ...]:
        return (f32(ins[0]) + f32(ins[1])[:, :, None, None],)


@dataclass(frozen=True, slots=True)
class Tokens(Move):
    """Pixels as rows: [n, c, h, w] -> [n * h * w, c]."""

    kind: ClassVar[str] = "tokens"

    @override
    def infer(self, ins: tuple[TensorType, ...]) -> tuple[TensorType, ...]:
        self.expect_operands(ins)
        self.expect_rank("x", ins[0], "n c h w")
        n, c, h, w = ins[0].shape
        return (TensorType((n * h * w, c), ins[0].dtype),)

    @override
    def reference(self, *ins: Array) -> tuple[Array, ...]:
        c = ins[0].shape[1]
        return (np.ascontiguousarray(f32(ins[0]).transpose(0, 2, 3, 1)).reshape(-1, c),)


@dataclass(frozen=True, slots=True)
class Pixels(Move):
    """Rows as pixels: [n * h * w, c] -> [n, c, h, w]."""

    kind: ClassVar[str] = "pixels"
    height: int
    width: int

    @override
    def infer(self, ins: tuple[TensorType, ...]) -> tuple[TensorType, ...]:
        self.expect_operands(ins)
        self.expect_rank("x", ins[0], "t f")
        rows, c = ins[0].shape
        if self.height < 1 or self.width < 1 or rows % (self.height * self.width):
            raise self.reject(f"x: got {rows} rows, want a multiple of {self.height} x {self.width}")
        return (TensorType((rows // (self.height * self.width), c, self.height, self.width), ins[0].dtype),)

    @override
    def reference(self, *ins: Array) -> tuple[Array, ...]:
        x = f32(ins[0]).reshape(-1, self.height, self.width, ins[0].shape[1])
        return (np.ascontiguousarray(x.transpose(0, 3, 1, 2)),)
