"""Rotary positions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from typing_extensions import override

from compiler.ir.graph import TensorType
from compiler.ops.base import Array, Cut, Op, f32


@dataclass(frozen=True, slots=True)
class Rope(Op):
    """Rotary position embedding of each head: pairs of features turn by `position * theta_i`.

    Of each head the features `first .. first + rotary` turn (0: to the end), the others stay. Pair i is
    (i, i + rotary/2) of them in style "half", (2 i, 2 i + 1) in style "interleaved".
    x [t, heads * head_dim], cos and sin [seq, rotary / 2] (row p: position `offset + p`) -> like x.
    Row t of x uses table row `t % seq`. theta_i = base ** (-2 i / rotary).

    On a `grid` (text, height, width) the positions are `text` times (0, 0, 0), then (0, row, column) of each
    pixel; features are shared out by `axes`, each with its own thetas (Flux).
    """

    kind: ClassVar[str] = "rope"
    heads: int
    head_dim: int
    seq: int
    base: float = 10000.0
    offset: int = 0
    style: str = "half"
    first: int = 0
    rotary: int = 0
    grid: tuple[int, int, int] | None = None
    axes: tuple[int, int, int] = (0, 0, 0)

    @property
    def turned(self) -> int:
        """How many features of a head turn."""
        return self.rotary or self.head_dim - self.first

    @property
    @override
    def roles(self) -> tuple[str, ...]:
        return ("x", "cos", "sin")

    @override
    def infer(self, ins: tuple[TensorType, ...]) -> tuple[TensorType, ...]:
        self.expect_operands(ins)
        x, cos, sin = ins
        if self.style not in ("half", "interleaved"):
            raise self.reject(f"style: got {self.style!r}, want 'half' or 'interleaved'")
        if self.head_dim % 2:
            raise self.reject(f"head_dim: got {self.head_dim}, want an even number")
        if (
            self.first % 2
            or self.turned % 2
            or not 0 <= self.first < self.first + self.turned <= self.head_dim
        ):
            got = f"{self.turned} features from {self.first} on"
            raise self.reject(f"first, rotary: got {got}, want even numbers within {self.head_dim}")
        if self.grid is not None:
            text, height, width = self.grid
            if text + height * width != self.seq or sum(self.axes) != self.turned or self.offset:
                want = f"{self.seq} positions, no offset, and axes that share {self.turned} features"
                raise self.reject(f"grid, axes: got {self.grid} and {self.axes}, want {want}")
            if any(a % 2 for a in self.axes):
                raise self.reject(f"axes: got {self.axes}, want even numbers")
        self.expect_rank("x", x, "t f")
        if x.shape[0] % self.seq:
            raise self.reject(f"x: got {x.shape[0]} rows, want a multiple of seq {self.seq}")
        self.expect("x", x, (x.shape[0], self.heads * self.head_dim), x.dtype)
        for role, table in (("cos", cos), ("sin", sin)):
            self.expect(role, table, (self.seq, self.turned // 2), x.dtype)
        return (x,)

    @override
    def flops(self, ins: tuple[TensorType, ...]) -> int:
        """Two products and one sum for each element that turns."""
        return 3 * ins[0].elements // self.head_dim * self.turned

    @override
    def constants(self) -> dict[str, Array]:
        if self.grid is None:
            angles = self._angles(self.offset + np.arange(self.seq, dtype=np.float64), self.turned)
        else:
            text, height, width = self.grid
            row, column = np.divmod(np.arange(height * width, dtype=np.float64), width)
            places = (np.zeros_like(row), row, column)
            still = np.zeros(text)
            angles = np.concatenate(
                [
                    self._angles(np.concatenate([still, place]), share)
                    for place, share in zip(places, self.axes, strict=True)
                ],
                axis=1,
            )
        return {"cos": f32(np.cos(angles)), "sin": f32(np.sin(angles))}

    @override
    def cuts(self, ins: tuple[TensorType, ...]) -> tuple[Cut, ...]:
        x, tables = ins[0], (None, None)
        sequences = x.shape[0] // self.seq
        found = [Cut("batch", sequences, ((0, self.seq), *tables), ((0, self.seq),))]
        found.append(
            Cut("heads", self.heads, ((1, self.head_dim), *tables), ((1, self.head_dim),), (("heads", 1),))
        )
        if sequences == 1 and self.grid is None:
            found.append(Cut("rows", self.seq, ((0, 1),) * 3, ((0, 1),), (("seq", 1),)))
        return tuple(found)

    def _angles(self, positions: Array, features: int) -> Array:
        """[positions, features / 2]."""
        exponents = np.arange(features // 2, dtype=np.float64) * (-2.0 / max(1, features))
        return np.outer(positions, np.power(self.base, exponents))

    def pairs(self) -> tuple[Array, Array]:
        """Features of a head: the first of each pair, and the second."""
        i, half = np.arange(self.turned // 2), self.turned // 2
        if self.style == "half":
            return self.first + i, self.first + half + i
        return self.first + 2 * i, self.first + 2 * i + 1

    @override
    def reference(self, *ins: Array) -> tuple[Array, ...]:
        x = f32(ins[0]).reshape(-1, self.seq, self.heads, self.head_dim)
        cos, sin = (f32(table)[None, :, None, :] for table in ins[1:])
        one, other = self.pairs()
        y, low, high = x.copy(), x[..., one], x[..., other]
        y[..., one], y[..., other] = low * cos - high * sin, high * cos + low * sin
        return (y.reshape(ins[0].shape),)
