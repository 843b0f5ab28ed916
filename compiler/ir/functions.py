"""Names an instruction may use for elementwise functions, and what they compute (float32 numpy)."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
Unary = Callable[[Array], Array]
Binary = Callable[[Array, Array], Array]

_ERF = np.frompyfunc(math.erf, 1, 1)  # numpy has no erf; the libm one is exact to float64
_ONE = np.float32(1)
_HALF = np.float32(0.5)


def _sigmoid(x: Array) -> Array:
    result: Array = _ONE / (_ONE + np.exp(-x))
    return result


def _gelu_tanh(x: Array) -> Array:
    """Tanh form. Source: Hendrycks and Gimpel, arXiv:1606.08415, section 2."""
    inner = np.float32(math.sqrt(2 / math.pi)) * (x + np.float32(0.044715) * x * x * x)
    result: Array = _HALF * x * (_ONE + np.tanh(inner))
    return result


def _rsqrt(x: Array) -> Array:
    result: Array = _ONE / np.sqrt(x)
    return result


def _erf(x: Array) -> Array:
    return np.asarray(_ERF(x), dtype=np.float32)


def _gelu_erf(x: Array) -> Array:
    result: Array = _HALF * x * (_ONE + _erf(x * np.float32(math.sqrt(0.5))))
    return result


FUNCTIONS: dict[str, Unary] = {
    "identity": lambda x: x,
    "copy": lambda x: x,
    "abs": np.abs,
    "cos": np.cos,
    "erf": _erf,
    "exp": np.exp,
    "gelu": _gelu_tanh,
    "gelu_erf": _gelu_erf,
    "gelu_tanh": _gelu_tanh,
    "log": np.log,
    "negate": np.negative,
    "reciprocal": np.reciprocal,
    "relu": lambda x: np.maximum(x, np.float32(0)),
    "rsqrt": _rsqrt,
    "sigmoid": _sigmoid,
    "sign": np.sign,
    "silu": lambda x: x * _sigmoid(x),
    "sin": np.sin,
    "softplus": lambda x: np.logaddexp(np.float32(0), x),
    "sqrt": np.sqrt,
    "square": np.square,
    "tanh": np.tanh,
}
"""`Activate.func`: one argument."""

OPERATIONS: dict[str, Binary] = {
    "add": np.add,
    "subtract": np.subtract,
    "rsub": lambda a, b: np.subtract(b, a),
    "multiply": np.multiply,
    "divide": np.divide,
    "rdiv": lambda a, b: np.divide(b, a),
    "max": np.maximum,
    "min": np.minimum,
    "pow": np.power,
    "mod": np.mod,
    "equal": np.equal,
    "not_equal": np.not_equal,
    "less": np.less,
    "less_equal": np.less_equal,
    "greater": np.greater,
    "greater_equal": np.greater_equal,
    "sub": np.subtract,
    "mul": np.multiply,
    "div": np.divide,
}
"""`TensorTensor.operation`, `TensorScalar.op0/op1`: two arguments; comparisons give 1.0 or 0.0; `sub`, `mul`
and `div` are the graph's names for the same."""

REDUCTIONS: dict[str, Callable[..., Array]] = {
    "add": np.add.reduce,
    "max": np.maximum.reduce,
    "min": np.minimum.reduce,
}
"""`Reduce.operation`."""
