"""Element by element: functions of one operand, and of two with row broadcasting."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from typing_extensions import override

from compiler.ir.graph import TensorType
from compiler.ops.base import Array, Op, f32

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
}
OPERATIONS: dict[str, Callable[[Array, Array], Array]] = {
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "max": np.maximum,
    "div": np.divide,
}


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
    def reference(self, *ins: Array) -> tuple[Array, ...]:
        return (f32(FUNCTIONS[self.func](f32(ins[0]))),)


@dataclass(frozen=True, slots=True)
class Binary(Op):
    """`y = lhs func rhs`; rhs has the shape of lhs, or is [f], or [r, f] with t % r == 0 for lhs [t, f].

    A vector is broadcast over the rows; [r, f] is repeated down the rows.
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
        if not _broadcasts(lhs.shape, rhs.shape):
            raise self.reject(
                f"rhs: got shape {list(rhs.shape)}, want {list(lhs.shape)}, its last axis, "
                "or rows that divide its rows"
            )
        self.expect("rhs", rhs, rhs.shape, lhs.dtype)
        return (lhs,)

    @override
    def reference(self, *ins: Array) -> tuple[Array, ...]:
        lhs, rhs = f32(ins[0]), f32(ins[1])
        if rhs.ndim == lhs.ndim == 2 and rhs.shape[0] != lhs.shape[0]:
            rhs = np.tile(rhs, (lhs.shape[0] // rhs.shape[0], 1))
        return (f32(OPERATIONS[self.func](lhs, rhs)),)


def _broadcasts(lhs: tuple[int, ...], rhs: tuple[int, ...]) -> bool:
    """Whether `rhs` may stand beside `lhs` in a Binary."""
    if lhs == rhs:
        return True
    if len(lhs) != 2:
        return False
    return rhs == lhs[1:] or (len(rhs) == 2 and rhs[1] == lhs[1] and lhs[0] % rhs[0] == 0)
