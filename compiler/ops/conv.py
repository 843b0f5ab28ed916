"""Convolution and pooling on images [n, c, h, w]."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from typing_extensions import override

from compiler.ir.graph import TensorType
from compiler.ops.base import Array, Cut, Op, Span, f32
from compiler.ops.elementwise import FUNCTIONS, check_activation


def out_size(size: int, kernel: int, stride: int, padding: int) -> int:
    """Output positions along one axis."""
    return (size + 2 * padding - kernel) // stride + 1


def _windows(x: Array, kernel: tuple[int, int], stride: int, padding: int, fill: float) -> Array:
    """[n, c, ho, wo, r, s]: the window under each output position."""
    width = ((0, 0), (0, 0), (padding, padding), (padding, padding))
    padded = np.pad(x, width, constant_values=fill)
    windows = np.lib.stride_tricks.sliding_window_view(padded, kernel, axis=(2, 3))
    return windows[:, :, ::stride, ::stride]


@dataclass(frozen=True, slots=True)
class Conv2d(Op):
    """`y = activation(conv(x, w) + b + r)`, each of the last three optional; zero padding.

    x [n, c, h, w], w [k, c / groups, r, s], b [k], r like y -> [n, k, ho, wo]. MACs count every
    filter tap, padding included, as the literature does.
    """

    kind: ClassVar[str] = "conv2d"
    stride: int = 1
    padding: int = 0
    groups: int = 1
    activation: str | None = None
    bias: bool = False
    residual: bool = False

    @property
    @override
    def roles(self) -> tuple[str, ...]:
        return ("x", "w", *(("b",) if self.bias else ()), *(("r",) if self.residual else ()))

    @override
    def infer(self, ins: tuple[TensorType, ...]) -> tuple[TensorType, ...]:
        self.expect_operands(ins)
        by_role = dict(zip(self.roles, ins, strict=True))
        x, w = by_role["x"], by_role["w"]
        self.expect_rank("x", x, "n c h w")
        self.expect_rank("w", w, "k c/groups r s")
        check_activation(self, self.activation)
        if self.stride < 1 or self.padding < 0 or self.groups < 1:
            raise self.reject(f"got stride {self.stride}, padding {self.padding}, groups {self.groups}")
        n, c, height, width = x.shape
        k, _, r, s = w.shape
        if c % self.groups or k % self.groups:
            raise self.reject(f"groups: got {self.groups}, want a divisor of {c} and {k} channels")
        self.expect("w", w, (k, c // self.groups, r, s), x.dtype)
        rows = out_size(height, r, self.stride, self.padding)
        cols = out_size(width, s, self.stride, self.padding)
        if rows < 1 or cols < 1:
            raise self.reject(f"w: got a {r}x{s} window, larger than the padded {height}x{width} image")
        out = TensorType((n, k, rows, cols), x.dtype)
        for role, shape in (("b", (k,)), ("r", out.shape)):
            if role in by_role:
                self.expect(role, by_role[role], shape, x.dtype)
        return (out,)

    def is_depthwise(self, ins: tuple[TensorType, ...]) -> bool:
        """One filter a channel: nothing to contract on an array."""
        return self.groups == ins[0].shape[1] == ins[1].shape[0] > 1

    @override
    def macs(self, ins: tuple[TensorType, ...]) -> int:
        _, c_group, r, s = ins[1].shape
        return self.infer(ins)[0].elements * c_group * r * s

    @override
    def cuts(self, ins: tuple[TensorType, ...]) -> tuple[Cut, ...]:
        by_image: dict[str, Span] = {"x": (0, 1), "r": (0, 1)}
        by_filter: dict[str, Span] = {"w": (0, 1), "b": (0, 1), "r": (1, 1)}
        found = [Cut("images", ins[0].shape[0], tuple(by_image.get(r) for r in self.roles), ((0, 1),))]
        if self.groups == 1:
            spans = tuple(by_filter.get(role) for role in self.roles)
            found.append(Cut("filters", ins[1].shape[0], spans, ((1, 1),)))
        return tuple(found)

    @override
    def flops(self, ins: tuple[TensorType, ...]) -> int:
        """2 per MAC plus one per element of each fused part, so that fusing does not change the count."""
        fused = self.bias + self.residual + (self.activation is not None)
        return 2 * self.macs(ins) + fused * self.infer(ins)[0].elements

    @override
    def reference(self, *ins: Array) -> tuple[Array, ...]:
        given = {role: f32(array) for role, array in zip(self.roles, ins, strict=True)}
        x, w = given["x"], given["w"]
        groups = self.groups
        windows = _windows(x, (w.shape[2], w.shape[3]), self.stride, self.padding, 0.0)
        n, _, rows, cols, r, s = windows.shape
        k = w.shape[0] // groups
        # [g, n*ho*wo, c*r*s] @ [g, c*r*s, k]: one matrix product a group
        patches = windows.reshape(n, groups, -1, rows, cols, r, s).transpose(1, 0, 3, 4, 2, 5, 6)
        filters = w.reshape(groups, k, -1).transpose(0, 2, 1)
        y = patches.reshape(groups, n * rows * cols, -1) @ filters
        y = y.reshape(groups, n, rows, cols, k).transpose(1, 0, 4, 2, 3).reshape(n, groups * k, rows, cols)
        if self.bias:
            y = y + given["b"][:, None, None]
        if self.residual:
            y = y + given["r"]
        if self.activation:
            y = FUNCTIONS[self.activation](y)
        return (f32(y),)


@dataclass(frozen=True, slots=True)
class Pool2d(Op):
    """The "max" or "mean" of each kernel x kernel window; a mean counts padding as zeros."""

    kind: ClassVar[str] = "pool2d"
    func: str
    kernel: int
    stride: int
    padding: int = 0

    @override
    def infer(self, ins: tuple[TensorType, ...]) -> tuple[TensorType, ...]:
        self.expect_operands(ins)
        self.expect_rank("x", ins[0], "n c h w")
        if self.func not in ("max", "mean"):
            raise self.reject(f"func: got {self.func!r}, want one of: max, mean")
        if not 0 <= 2 * self.padding <= self.kernel or self.stride < 1:
            raise self.reject(f"got kernel {self.kernel}, stride {self.stride}, padding {self.padding}")
        n, c, height, width = ins[0].shape
        rows, cols = (out_size(size, self.kernel, self.stride, self.padding) for size in (height, width))
        if rows < 1 or cols < 1:
            raise self.reject(f"kernel: got {self.kernel}, larger than the padded {height}x{width} image")
        return (TensorType((n, c, rows, cols), ins[0].dtype),)

    @override
    def flops(self, ins: tuple[TensorType, ...]) -> int:
        """One per element of each window."""
        return self.infer(ins)[0].elements * self.kernel**2

    @override
    def reference(self, *ins: Array) -> tuple[Array, ...]:
        fill = -np.inf if self.func == "max" else 0.0
        windows = _windows(f32(ins[0]), (self.kernel, self.kernel), self.stride, self.padding, fill)
        pooled = windows.max(axis=(4, 5)) if self.func == "max" else windows.mean(axis=(4, 5))
        return (f32(pooled),)


@dataclass(frozen=True, slots=True)
class GlobalAvgPool(Op):
    """[n, c, h, w] -> [n, c]: the mean of each channel."""

    kind: ClassVar[str] = "global-avg-pool"

    @override
    def infer(self, ins: tuple[TensorType, ...]) -> tuple[TensorType, ...]:
        self.expect_operands(ins)
        self.expect_rank("x", ins[0], "n c h w")
        return (TensorType(ins[0].shape[:2], ins[0].dtype),)

    @override
    def flops(self, ins: tuple[TensorType, ...]) -> int:
        """One per element read."""
        return ins[0].elements

    @override
    def reference(self, *ins: Array) -> tuple[Array, ...]:
        return (f32(ins[0]).mean(axis=(2, 3), dtype=np.float32),)
