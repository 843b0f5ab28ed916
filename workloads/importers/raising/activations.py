"""Activations spelled out in elementwise steps: to functions of one instruction."""

from __future__ import annotations

import math

import numpy as np

from compiler.ops import Binary, Scalar, Unary
from workloads.importers.flat import FlatGraph, Known, Ref
from workloads.importers.raising.norms import under


def activation(flat: FlatGraph, name: str, lhs: Known, rhs: Known) -> Known | None:
    """`lhs * rhs` as silu (x * sigmoid(x)) or exact gelu (x * (1 + erf(x / sqrt 2)) / 2), if it is one."""
    for x, gate in ((lhs, rhs), (rhs, lhs)):
        if not isinstance(x, Ref):
            continue
        made = flat.maker(under(flat, gate))
        if made is not None and made.op == Unary("sigmoid") and _is(flat, made.inputs[0], x):
            return flat.unary(name, "silu", x)
        if isinstance(gate, np.ndarray) and gate.size == 1 and float(gate.reshape(())) == 0.5:
            inner = _times_erf(flat, x)
            if inner is not None:
                return flat.unary(name, "gelu_erf", inner)
        half = made if made is not None and made.op == Scalar("mul", 0.5) else None
        if half is not None and _erf_of(flat, half.inputs[0], x):
            return flat.unary(name, "gelu_erf", x)
    return None


def _is(flat: FlatGraph, name: str, x: Ref) -> bool:
    return under(flat, Ref(name)) == under(flat, x)


def _times_erf(flat: FlatGraph, x: Ref) -> Ref | None:
    """y if `x` is y * (1 + erf(y / sqrt 2))."""
    made = flat.maker(under(flat, x))
    if made is None or made.op != Binary("mul"):
        return None
    for y, gate in (made.inputs, made.inputs[::-1]):
        if _erf_of(flat, gate, Ref(y)):
            inner = flat.reshape("under", Ref(y), flat.shape(x))
            return inner if isinstance(inner, Ref) else None
    return None


def _erf_of(flat: FlatGraph, gate: str, y: Ref) -> bool:
    """Whether `gate` is 1 + erf(y / sqrt 2)."""
    total = flat.maker(under(flat, Ref(gate)))
    if total is None or total.op != Scalar("add", 1.0):
        return False
    erf = flat.maker(under(flat, Ref(total.inputs[0])))
    scaled = flat.maker(under(flat, Ref(erf.inputs[0]))) if erf and erf.op == Unary("erf") else None
    if scaled is None or not isinstance(scaled.op, Scalar) or not _is(flat, scaled.inputs[0], y):
        return False
    factor = scaled.op.value if scaled.op.func == "mul" else 1.0 / scaled.op.value
    return scaled.op.func in ("mul", "div") and math.isclose(factor, math.sqrt(0.5), rel_tol=1e-3)


def gelu(flat: FlatGraph, name: str, lhs: Known, rhs: Known) -> Known | None:
    """`(x / 2) * (1 + erf(x / sqrt 2))` as exact gelu, the factors in any order."""
    for half, gate in ((lhs, rhs), (rhs, lhs)):
        made = flat.maker(under(flat, half))
        if made is None or made.op != Scalar("mul", 0.5) or not isinstance(gate, Ref):
            continue
        if _erf_of(flat, gate.name, Ref(made.inputs[0])):
            return flat.unary(name, "gelu_erf", flat.reshape("under", Ref(made.inputs[0]), flat.shape(gate)))
    return None


def sigmoid(flat: FlatGraph, name: str, lhs: Known, rhs: Known) -> Known | None:
    """`lhs / rhs` as `1 / (1 + exp(-x))`."""
    if not isinstance(lhs, np.ndarray) or lhs.size != 1 or float(lhs.reshape(())) != 1.0:
        return None
    total = flat.maker(under(flat, rhs))
    if total is None or total.op != Scalar("add", 1.0):
        return None
    power = flat.maker(under(flat, Ref(total.inputs[0])))
    minus = flat.maker(under(flat, Ref(power.inputs[0]))) if power and power.op == Unary("exp") else None
    if minus is None or minus.op != Unary("negate"):
        return None
    x = flat.reshape("under", Ref(minus.inputs[0]), flat.shape(rhs))
    return flat.unary(name, "sigmoid", x)
