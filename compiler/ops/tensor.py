"""General ops on tensors of any rank: views that are copied, joins, and products of stacks of matrices."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import ClassVar

import numpy as np
from typing_extensions import override

from compiler.ir.graph import TensorType
from compiler.ops.base import Array, Cut, Move, Op, f32


@dataclass(frozen=True, slots=True)
class Reshape(Move):
    """The same elements in row-major order under another shape."""

    kind: ClassVar[str] = "reshape"
    shape: tuple[int, ...]

    @override
    def infer(self, ins: tuple[TensorType, ...]) -> tuple[TensorType, ...]:
        self.expect_operands(ins)
        if prod(self.shape) != ins[0].elements:
            raise self.reject(f"shape: got {list(self.shape)}, want {ins[0].elements} elements")
        return (TensorType(self.shape, ins[0].dtype),)

    @override
    def reference(self, *ins: Array) -> tuple[Array, ...]:
        return (ins[0].reshape(self.shape),)


@dataclass(frozen=True, slots=True)
class Permute(Move):
    """Axis `i` of the result is axis `order[i]` of x."""

    kind: ClassVar[str] = "permute"
    order: tuple[int, ...]

    @override
    def infer(self, ins: tuple[TensorType, ...]) -> tuple[TensorType, ...]:
        self.expect_operands(ins)
        rank = len(ins[0].shape)
        if sorted(self.order) != list(range(rank)):
            raise self.reject(f"order: got {list(self.order)}, want each of the axes 0 to {rank - 1} once")
        return (TensorType(tuple(ins[0].shape[i] for i in self.order), ins[0].dtype),)

    @override
    def reference(self, *ins: Array) -> tuple[Array, ...]:
        return (np.ascontiguousarray(ins[0].transpose(self.order)),)


@dataclass(frozen=True, slots=True)
class Slice(Move):
    """`x[starts[i] : stops[i] : steps[i]]` on each axis; `starts < stops <= size`, steps of 1 or more."""

    kind: ClassVar[str] = "slice"
    starts: tuple[int, ...]
    stops: tuple[int, ...]
    steps: tuple[int, ...] = ()

    @property
    def slices(self) -> tuple[slice, ...]:
        """As numpy takes them."""
        steps = self.steps or (1,) * len(self.starts)
        return tuple(slice(*part) for part in zip(self.starts, self.stops, steps, strict=True))

    @override
    def infer(self, ins: tuple[TensorType, ...]) -> tuple[TensorType, ...]:
        self.expect_operands(ins)
        x = ins[0]
        if not len(self.starts) == len(self.stops) == len(x.shape) or len(self.steps) not in (
            0,
            len(x.shape),
        ):
            raise self.reject(f"starts, stops, steps: want {len(x.shape)} of each, as x has axes")
        for axis, (part, size) in enumerate(zip(self.slices, x.shape, strict=True)):
            if not 0 <= part.start < part.stop <= size or part.step < 1:
                got = f"{part.start}:{part.stop}:{part.step}"
                raise self.reject(
                    f"axis {axis}: got {got}, want a range within 0:{size} and a step from 1 on"
                )
        shape = tuple(-(-(part.stop - part.start) // part.step) for part in self.slices)
        return (TensorType(shape, x.dtype),)

    @override
    def read_bytes(self, ins: tuple[TensorType, ...]) -> tuple[int, ...]:
        return (self.infer(ins)[0].nbytes,)

    @override
    def reference(self, *ins: Array) -> tuple[Array, ...]:
        return (np.ascontiguousarray(ins[0][self.slices]),)


@dataclass(frozen=True, slots=True)
class Expand(Move):
    """`x` broadcast to `shape`, as numpy does."""

    kind: ClassVar[str] = "expand"
    shape: tuple[int, ...]

    @override
    def infer(self, ins: tuple[TensorType, ...]) -> tuple[TensorType, ...]:
        self.expect_operands(ins)
        own = (1,) * (len(self.shape) - len(ins[0].shape)) + ins[0].shape
        fits = len(own) == len(self.shape) and all(a in (1, b) for a, b in zip(own, self.shape, strict=True))
        if not fits:
            raise self.reject(
                f"shape: got {list(self.shape)}, which {list(ins[0].shape)} does not broadcast to"
            )
        return (TensorType(self.shape, ins[0].dtype),)

    @override
    def reference(self, *ins: Array) -> tuple[Array, ...]:
        return (np.ascontiguousarray(np.broadcast_to(ins[0], self.shape)),)


@dataclass(frozen=True, slots=True)
class Pad(Move):
    """`low[i]` and `high[i]` elements of `value` in front of and behind axis `i`."""

    kind: ClassVar[str] = "pad"
    low: tuple[int, ...]
    high: tuple[int, ...]
    value: float = 0.0

    @override
    def infer(self, ins: tuple[TensorType, ...]) -> tuple[TensorType, ...]:
        self.expect_operands(ins)
        x = ins[0]
        if not len(self.low) == len(self.high) == len(x.shape) or min((*self.low, *self.high), default=0) < 0:
            raise self.reject(f"low, high: want {len(x.shape)} of each, 0 or more")
        both = zip(self.low, x.shape, self.high, strict=True)
        return (TensorType(tuple(sum(parts) for parts in both), x.dtype),)

    @override
    def reference(self, *ins: Array) -> tuple[Array, ...]:
        pads = list(zip(self.low, self.high, strict=True))
        return (np.pad(ins[0], pads, constant_values=self.value).astype(ins[0].dtype),)


@dataclass(frozen=True, slots=True)
class Concat(Move):
    """`count` tensors behind each other on `axis`; they agree on all other axes."""

    kind: ClassVar[str] = "concat"
    axis: int
    count: int = 2

    @property
    @override
    def roles(self) -> tuple[str, ...]:
        return tuple(f"x{i}" for i in range(self.count))

    @override
    def infer(self, ins: tuple[TensorType, ...]) -> tuple[TensorType, ...]:
        self.expect_operands(ins)
        first = ins[0].shape
        if not 0 <= self.axis < len(first):
            raise self.reject(f"axis: got {self.axis}, want 0 to {len(first) - 1}")
        for role, x in zip(self.roles, ins, strict=True):
            own = x.shape[self.axis] if len(x.shape) == len(first) else 0
            self.expect(role, x, (*first[: self.axis], own, *first[self.axis + 1 :]), ins[0].dtype)
        total = sum(x.shape[self.axis] for x in ins)
        return (TensorType((*first[: self.axis], total, *first[self.axis + 1 :]), ins[0].dtype),)

    @override
    def reference(self, *ins: Array) -> tuple[Array, ...]:
        return (np.concatenate(ins, axis=self.axis),)


@dataclass(frozen=True, slots=True)
class Relayout(Move):
    """The same value in another order in DRAM; put in where two ops want a value in different orders."""

    kind: ClassVar[str] = "relayout"

    @override
    def infer(self, ins: tuple[TensorType, ...]) -> tuple[TensorType, ...]:
        self.expect_operands(ins)
        return ins

    @override
    def reference(self, *ins: Array) -> tuple[Array, ...]:
        return (ins[0],)


@dataclass(frozen=True, slots=True)
class BatchMatmul(Op):
    """`y[..., m, n] = sum over k of lhs[..., m, k] * rhs[..., k, n]`, one product for each leading index.

    The leading axes are equal. `transpose_rhs`: rhs is [..., n, k].
    """

    kind: ClassVar[str] = "batch-matmul"
    transpose_rhs: bool = False

    @property
    @override
    def roles(self) -> tuple[str, ...]:
        return ("lhs", "rhs")

    @override
    def infer(self, ins: tuple[TensorType, ...]) -> tuple[TensorType, ...]:
        self.expect_operands(ins)
        lhs, rhs = ins
        if len(lhs.shape) < 2 or len(rhs.shape) < 2:
            raise self.reject(f"got shapes {list(lhs.shape)} and {list(rhs.shape)}, want matrices or stacks")
        *lead, m, k = lhs.shape
        n = rhs.shape[-2 if self.transpose_rhs else -1]
        self.expect("rhs", rhs, (*lead, n, k) if self.transpose_rhs else (*lead, k, n), lhs.dtype)
        return (TensorType((*lead, m, n), lhs.dtype),)

    @override
    def macs(self, ins: tuple[TensorType, ...]) -> int:
        return ins[0].elements * ins[1].shape[-2 if self.transpose_rhs else -1]

    @override
    def cuts(self, ins: tuple[TensorType, ...]) -> tuple[Cut, ...]:
        *lead, m, _ = ins[0].shape
        rank, by_column = len(lead), len(lead) + (0 if self.transpose_rhs else 1)
        n = ins[1].shape[by_column]
        found = [Cut("stack", lead[0], ((0, 1), (0, 1)), ((0, 1),))] if lead else []
        if all(size == 1 for size in lead):
            found.append(Cut("rows", m, ((rank, 1), None), ((rank, 1),)))
            found.append(Cut("columns", n, (None, (by_column, 1)), ((rank + 1, 1),)))
        return tuple(found)

    @override
    def reference(self, *ins: Array) -> tuple[Array, ...]:
        lhs, rhs = f32(ins[0]), f32(ins[1])
        return (f32(lhs @ (np.swapaxes(rhs, -1, -2) if self.transpose_rhs else rhs)),)
