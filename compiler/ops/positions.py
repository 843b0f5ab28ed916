"""General ops in which positions matter: gathers, updates of a part, the largest elements, running sums."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from typing_extensions import override

from compiler.ir.graph import TensorType
from compiler.ops.base import Array, Move, Op, f32


@dataclass(frozen=True, slots=True)
class Gather(Move):
    """`y[..., i, ...] = x[..., ids[i], ...]`, as numpy's take: the axes of ids take the place of `axis`."""

    kind: ClassVar[str] = "gather"
    axis: int = 0

    @property
    @override
    def roles(self) -> tuple[str, ...]:
        return ("x", "ids")

    @override
    def infer(self, ins: tuple[TensorType, ...]) -> tuple[TensorType, ...]:
        self.expect_operands(ins)
        x, ids = ins
        if not 0 <= self.axis < len(x.shape):
            raise self.reject(f"axis: got {self.axis}, want 0 to {len(x.shape) - 1}")
        self.expect("ids", ids, ids.shape, "int32")
        return (TensorType((*x.shape[: self.axis], *ids.shape, *x.shape[self.axis + 1 :]), x.dtype),)

    @override
    def index_bounds(self, ins: tuple[TensorType, ...]) -> dict[str, int]:
        return {"ids": ins[0].shape[self.axis]}

    @override
    def read_bytes(self, ins: tuple[TensorType, ...]) -> tuple[int, ...]:
        return ins[0].nbytes // ins[0].shape[self.axis], ins[1].nbytes  # all may name the same row

    @override
    def reference(self, *ins: Array) -> tuple[Array, ...]:
        return (f32(np.take(ins[0], ins[1].astype(np.int64), axis=self.axis)),)


@dataclass(frozen=True, slots=True)
class Update(Move):
    """`x` with `part` in the place that begins at `starts`, as a dynamic update at a known position."""

    kind: ClassVar[str] = "update"
    starts: tuple[int, ...]

    @property
    @override
    def roles(self) -> tuple[str, ...]:
        return ("x", "part")

    @override
    def infer(self, ins: tuple[TensorType, ...]) -> tuple[TensorType, ...]:
        self.expect_operands(ins)
        x, part = ins
        if not len(self.starts) == len(part.shape) == len(x.shape):
            raise self.reject(f"starts: got {list(self.starts)}, want one for each axis of {list(x.shape)}")
        for axis, (start, size, whole) in enumerate(zip(self.starts, part.shape, x.shape, strict=True)):
            if not 0 <= start <= whole - size:
                raise self.reject(f"axis {axis}: got {start}:{start + size}, want a range within 0:{whole}")
        self.expect("part", part, part.shape, x.dtype)
        return (x,)

    @override
    def read_bytes(self, ins: tuple[TensorType, ...]) -> tuple[int, ...]:
        return ins[0].nbytes - ins[1].nbytes, ins[1].nbytes

    @override
    def reference(self, *ins: Array) -> tuple[Array, ...]:
        result = f32(ins[0]).copy()
        sizes = zip(self.starts, ins[1].shape, strict=True)
        result[tuple(slice(start, start + size) for start, size in sizes)] = ins[1]
        return (result,)


@dataclass(frozen=True, slots=True)
class TopK(Op):
    """The `k` largest elements of each row (the last axis), falling, and where they are (int32).

    Of equal ones the first comes first. Elements must lie within -1e38 and 1e38.
    """

    kind: ClassVar[str] = "top-k"
    k: int

    @override
    def infer(self, ins: tuple[TensorType, ...]) -> tuple[TensorType, ...]:
        self.expect_operands(ins)
        x = ins[0]
        if not x.shape or not 1 <= self.k <= x.shape[-1]:
            raise self.reject(f"k: got {self.k}, want 1 to the size of the last axis of {list(x.shape)}")
        shape = (*x.shape[:-1], self.k)
        return TensorType(shape, x.dtype), TensorType(shape, "int32")

    @override
    def flops(self, ins: tuple[TensorType, ...]) -> int:
        """One comparison an element and result."""
        return ins[0].elements * self.k

    @override
    def reference(self, *ins: Array) -> tuple[Array, ...]:
        x = f32(ins[0])
        order = np.argsort(-x, axis=-1, kind="stable")[..., : self.k]
        return np.take_along_axis(x, order, axis=-1), order.astype(np.int32)


@dataclass(frozen=True, slots=True)
class CumSum(Op):
    """Sums of all elements up to each, along `axis`."""

    kind: ClassVar[str] = "cumsum"
    axis: int

    @override
    def infer(self, ins: tuple[TensorType, ...]) -> tuple[TensorType, ...]:
        self.expect_operands(ins)
        if not 0 <= self.axis < len(ins[0].shape):
            raise self.reject(f"axis: got {self.axis}, want an axis of {list(ins[0].shape)}")
        return ins

    @override
    def reference(self, *ins: Array) -> tuple[Array, ...]:
        return (np.cumsum(f32(ins[0]), axis=self.axis, dtype=np.float32),)
