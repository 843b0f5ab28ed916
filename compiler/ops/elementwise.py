"""Element by element: functions of one operand, and of two with row broadcasting."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from typing_extensions import override

from compiler.ir.graph import TensorType
from compiler.ops.base import Array, Cut, Op, f32, pointwise_cuts

_ERF = np.frompyfunc(math.erf, 1, 1)


def _erf(x: Array) -> Array:
    return np.asarray(_ERF(x), dtype=np.float32)


def _sigmoid(x: Array) -> Array:
    # NOTE: through tanh, because exp(-x) overflows for large negative x.
    return f32(0.5 * (1.0 + np.tanh(0.5 * x)))


def _gelu(x: Array) -> Array:
    inner = math.sqrt(2.0 / math.pi) * (x + 0.044715 * x * x * x)
    return 0.5 * x * (1.0 + np.tanh(inner))


def _gelu_erf(x: Array) -> Array:
    return 0.5 * x * (1.0 + _erf(x * math.sqrt(0.5)))


FUNCTIONS: dict[str, Callable[[Array], Array]] = {
    "identity": lambda x: x,
    "relu": lambda x: np.maximum(x, 0.0),
    "gelu": _gelu,  # tanh approximation (Hendrycks and Gimpel 2016, eq. 2)
    "gelu_erf": _gelu_erf,  # exact
    "silu": lambda x: x * _sigmoid(x),
    "sigmoid": _sigmoid,
    "tanh": np.tanh,
    "exp": np.exp,
    "square": np.square,
    "sqrt": np.sqrt,
    "rsqrt": lambda x: 1.0 / np.sqrt(x),
    "reciprocal": lambda x: 1.0 / x,
    "abs": np.abs,
    "negate": np.negative,
    "cos": np.cos,
    "sin": np.sin,
    "log": np.log,
    "erf": _erf,
    "sign": np.sign,
    "softplus": lambda x: np.logaddexp(0.0, x),
}
OPERATIONS: dict[str, Callable[[Array, Array], Array]] = {
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "max": np.maximum,
    "div": np.divide,
    "min": np.minimum,
    "pow": np.power,
    "mod": np.mod,
    "equal": np.equal,
    "not_equal": np.not_equal,
    "less": np.less,
    "less_equal": np.less_equal,
    "greater": np.greater,
    "greater_equal": np.greater_equal,
}
"""Comparisons give 1 or 0 in the dtype of the operands."""


@dataclass(frozen=True, slots=True)
class Unary(Op):
    """`y = func(x)`, any shape."""

    kind: ClassVar[str] = "unary"
    func: str

    @override
    def infer(self, ins: tuple[TensorType, ...]) -> tuple[TensorType, ...]:
        self.expect_operands(ins)
        if self.func not in FUNCTIONS:
            raise self.reject(f"func: got {self.func!r}, want one of: {', '.join(FUNCTIONS)}")
        return ins

    @override
    def cuts(self, ins: tuple[TensorType, ...]) -> tuple[Cut, ...]:
        return pointwise_cuts(ins, self.infer(ins)[0].shape)

    @override
    def reference(self, *ins: Array) -> tuple[Array, ...]:
        return (f32(FUNCTIONS[self.func](f32(ins[0]))),)


@dataclass(frozen=True, slots=True)
class Scalar(Op):
    """`y = x func value`, or `value func x` if swapped; any shape."""

    kind: ClassVar[str] = "scalar"
    func: str
    value: float
    swapped: bool = False

    @override
    def infer(self, ins: tuple[TensorType, ...]) -> tuple[TensorType, ...]:
        self.expect_operands(ins)
        if self.func not in OPERATIONS:
            raise self.reject(f"func: got {self.func!r}, want one of: {', '.join(OPERATIONS)}")
        return ins

    @override
    def cuts(self, ins: tuple[TensorType, ...]) -> tuple[Cut, ...]:
        return pointwise_cuts(ins, self.infer(ins)[0].shape)

    @override
    def reference(self, *ins: Array) -> tuple[Array, ...]:
        x, value = f32(ins[0]), f32(np.asarray(self.value))
        return (f32(OPERATIONS[self.func](value, x) if self.swapped else OPERATIONS[self.func](x, value)),)


@dataclass(frozen=True, slots=True)
class Cast(Op):
    """`x` in another element type: floats round to nearest even, integers round and saturate."""

    kind: ClassVar[str] = "cast"
    dtype: str

    @override
    def infer(self, ins: tuple[TensorType, ...]) -> tuple[TensorType, ...]:
        self.expect_operands(ins)
        return (TensorType(ins[0].shape, self.dtype),)

    @override
    def cuts(self, ins: tuple[TensorType, ...]) -> tuple[Cut, ...]:
        return pointwise_cuts(ins, self.infer(ins)[0].shape)

    @override
    def reference(self, *ins: Array) -> tuple[Array, ...]:
        return (f32(ins[0]),)


@dataclass(frozen=True, slots=True)
class Select(Op):
    """`y = lhs where cond is not 0, else rhs`; all three broadcast to one shape."""

    kind: ClassVar[str] = "select"

    @property
    @override
    def roles(self) -> tuple[str, ...]:
        return ("cond", "lhs", "rhs")

    @override
    def infer(self, ins: tuple[TensorType, ...]) -> tuple[TensorType, ...]:
        self.expect_operands(ins)
        shape = _broadcast(self, *(t.shape for t in ins))
        self.expect("rhs", ins[2], ins[2].shape, ins[1].dtype)
        return (TensorType(shape, ins[1].dtype),)

    @override
    def cuts(self, ins: tuple[TensorType, ...]) -> tuple[Cut, ...]:
        return pointwise_cuts(ins, self.infer(ins)[0].shape)

    @override
    def reference(self, *ins: Array) -> tuple[Array, ...]:
        return (f32(np.where(ins[0] != 0, ins[1], ins[2])),)


@dataclass(frozen=True, slots=True)
class Opaque(Op):
    """A function of each element that we do not know, declared as such: it costs `flops_per_element`.

    Its reference is the identity. Graphs that hold one say so in their records.
    """

    kind: ClassVar[str] = "opaque"
    name: str
    flops_per_element: int = 1

    @override
    def infer(self, ins: tuple[TensorType, ...]) -> tuple[TensorType, ...]:
        self.expect_operands(ins)
        return ins

    @override
    def flops(self, ins: tuple[TensorType, ...]) -> int:
        """As declared."""
        return ins[0].elements * self.flops_per_element

    @override
    def cuts(self, ins: tuple[TensorType, ...]) -> tuple[Cut, ...]:
        return pointwise_cuts(ins, self.infer(ins)[0].shape)

    @override
    def reference(self, *ins: Array) -> tuple[Array, ...]:
        return (f32(ins[0]),)


@dataclass(frozen=True, slots=True)
class Binary(Op):
    """`y = lhs func rhs`, broadcast as numpy does; a rhs [r, f] is repeated down the rows of lhs [t, f].

    That needs t % r == 0.
    """

    kind: ClassVar[str] = "binary"
    func: str

    @property
    @override
    def roles(self) -> tuple[str, ...]:
        return ("lhs", "rhs")

    @override
    def infer(self, ins: tuple[TensorType, ...]) -> tuple[TensorType, ...]:
        self.expect_operands(ins)
        if self.func not in OPERATIONS:
            raise self.reject(f"func: got {self.func!r}, want one of: {', '.join(OPERATIONS)}")
        lhs, rhs = ins
        self.expect("rhs", rhs, rhs.shape, lhs.dtype)
        if repeats_rows(lhs.shape, rhs.shape):
            return (lhs,)
        return (TensorType(_broadcast(self, lhs.shape, rhs.shape), lhs.dtype),)

    @override
    def cuts(self, ins: tuple[TensorType, ...]) -> tuple[Cut, ...]:
        found = pointwise_cuts(ins, self.infer(ins)[0].shape)
        return found[1:] if repeats_rows(*(operand.shape for operand in ins)) else found

    @override
    def reference(self, *ins: Array) -> tuple[Array, ...]:
        lhs, rhs = f32(ins[0]), f32(ins[1])
        if repeats_rows(lhs.shape, rhs.shape):
            rhs = np.tile(rhs, (lhs.shape[0] // rhs.shape[0], 1))
        return (f32(OPERATIONS[self.func](lhs, rhs)),)


def repeats_rows(lhs: tuple[int, ...], rhs: tuple[int, ...]) -> bool:
    """Whether `rhs` is a block of rows that is repeated down those of `lhs`."""
    if len(lhs) != 2 or len(rhs) != 2 or lhs[1] != rhs[1] or rhs[0] < 1:
        return False
    return rhs[0] != lhs[0] and lhs[0] % rhs[0] == 0


def check_activation(op: Op, activation: str | None) -> None:
    """Raise CompileError unless the function fused behind `op` is one we know, or there is none."""
    if activation is not None and activation not in FUNCTIONS:
        raise op.reject(f"activation: got {activation!r}, want one of: {', '.join(FUNCTIONS)}")


def _broadcast(op: Op, *shapes: tuple[int, ...]) -> tuple[int, ...]:
    """The shape that all broadcast to; raises CompileError if there is none."""
    try:
        return np.broadcast_shapes(*shapes)
    except ValueError as error:
        got = " and ".join(str(list(shape)) for shape in shapes)
        raise op.reject(f"got shapes {got}, want ones that broadcast") from error
