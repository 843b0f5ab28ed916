"""What an op is: a declaration from which shapes, FLOPs and the reference follow."""

from __future__ import annotations

import abc
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
from typing_extensions import override

from compiler.errors import CompileError
from compiler.ir.graph import TensorType

Array = npt.NDArray[Any]


Span = tuple[int, int] | None  # axis of an operand and its elements a unit; None: every piece needs all


@dataclass(frozen=True, slots=True)
class Cut:
    """A way to divide an op in independent pieces: `extent` units, cut anywhere between two of them.

    A piece of n units is the same op with each field of `fields` set to n times what stands there. With
    `start`, the field of that name also grows by one for every unit in front of the piece, which then
    has a program of its own.
    """

    name: str
    extent: int
    inputs: tuple[Span, ...]
    outputs: tuple[Span, ...]
    fields: tuple[tuple[str, int], ...] = ()
    start: str = ""
    held: bool = False  # the first operand and the results of a piece are on chip as long as it is worked on


@dataclass(frozen=True, slots=True)
class Op(abc.ABC):
    """An operation on tensors. Subclasses are frozen dataclasses; their fields are the attributes."""

    kind: ClassVar[str]

    @property
    def roles(self) -> tuple[str, ...]:
        """Names of the operands in order, e.g. `("x", "w", "gain")`; `x` alone unless overridden."""
        return ("x",)

    @abc.abstractmethod
    def infer(self, ins: tuple[TensorType, ...]) -> tuple[TensorType, ...]:
        """Types of the results; raises CompileError naming what does not match."""

    @abc.abstractmethod
    def reference(self, *ins: Array) -> tuple[Array, ...]:
        """The meaning, in numpy float32 (int32 for indices): the oracle of every lowering."""

    def constants(self) -> dict[str, Array]:
        """Contents of the operands that the op itself fixes, by role, such as tables of indices."""
        return {}

    def index_bounds(self, ins: tuple[TensorType, ...]) -> dict[str, int]:
        """How many rows the operands that hold indices select from, by role."""
        return {}

    def macs(self, ins: tuple[TensorType, ...]) -> int:
        """Multiply-accumulates of true extents; 0 for ops without contraction."""
        return 0

    def most_macs(self, ins: tuple[TensorType, ...]) -> int:
        """MACs a lowering may issue: more than `macs` where products are computed and thrown away."""
        return self.macs(ins)

    def read_bytes(self, ins: tuple[TensorType, ...]) -> tuple[int, ...]:
        """Bytes of each operand that the op cannot do without."""
        return tuple(operand.nbytes for operand in ins)

    def cuts(self, ins: tuple[TensorType, ...]) -> tuple[Cut, ...]:
        """How cores may share the op, each cut along another axis; () if one core must do all of it."""
        return ()

    def flops(self, ins: tuple[TensorType, ...]) -> int:
        """FLOPs: 2 per MAC, or one per output element per elementary function."""
        return 2 * self.macs(ins) or sum(out.elements for out in self.infer(ins))

    def expect_operands(self, ins: tuple[TensorType, ...]) -> None:
        """Raise CompileError unless there is one operand for each role."""
        if len(ins) != len(self.roles):
            raise CompileError(
                f"{self.kind}: got {len(ins)} operands, want {len(self.roles)}: {', '.join(self.roles)}"
            )

    def expect(self, role: str, got: TensorType, shape: tuple[int, ...], dtype: str) -> None:
        """Raise CompileError unless the operand `role` has this shape and dtype."""
        if got.shape != shape:
            raise CompileError(f"{self.kind}: {role}: got shape {list(got.shape)}, want {list(shape)}")
        if got.dtype != dtype:
            raise CompileError(f"{self.kind}: {role}: got dtype {got.dtype}, want {dtype}")

    def expect_rank(self, role: str, got: TensorType, axes: str) -> None:
        """Raise CompileError unless the operand has the axes listed in `axes`, e.g. "n c h w"."""
        if len(got.shape) != len(axes.split()):
            raise CompileError(f"{self.kind}: {role}: got shape {list(got.shape)}, want axes [{axes}]")

    def reject(self, problem: str) -> CompileError:
        """The error that says what is wrong with this op."""
        return CompileError(f"{self.kind}: {problem}")


def rows_cut(ins: tuple[TensorType, ...], shared: int = 0) -> tuple[Cut, ...]:
    """Any rows of all operands but the last `shared` ones, and of one result."""
    own = len(ins) - shared
    return (Cut("rows", ins[0].shape[0], ((0, 1),) * own + (None,) * shared, ((0, 1),)),)


def pointwise_cuts(ins: tuple[TensorType, ...], shape: tuple[int, ...]) -> tuple[Cut, ...]:
    """Any part of the first two axes of a result of `shape`, to which operands broadcast."""

    def spans(axis: int) -> tuple[Span, ...]:
        own = (axis - len(shape) + len(operand.shape) for operand in ins)
        return tuple(
            (at, 1) if at >= 0 and operand.shape[at] == shape[axis] else None
            for at, operand in zip(own, ins, strict=True)
        )

    return tuple(
        Cut(name, shape[axis], spans(axis), ((axis, 1),))
        for axis, name in enumerate(("rows", "columns")[: len(shape)])
    )


@dataclass(frozen=True, slots=True)
class Move(Op):
    """An op that only moves data."""

    @override
    def flops(self, ins: tuple[TensorType, ...]) -> int:
        """None: nothing is computed."""
        return 0


def f32(x: Array) -> Array:
    """`x` as float32."""
    return np.asarray(x, dtype=np.float32)
