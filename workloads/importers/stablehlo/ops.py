"""StableHLO operations on elements and shapes. What is known while importing is computed at once."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from math import prod

import numpy as np

from compiler.ops import (
    GlobalAvgPool,
    Permute,
    Reduce,
    Scalar,
    Select,
    Unary,
)
from workloads.importers.flat import Known, Ref
from workloads.importers.raising.activations import activation, gelu, sigmoid
from workloads.importers.raising.biases import bias_first
from workloads.importers.raising.factors import layer_norm, rms_normed, variance
from workloads.importers.raising.norms import under
from workloads.importers.raising.tokens import assembled, biased
from workloads.importers.stablehlo import softmax, traces
from workloads.importers.stablehlo.reader import Operation, dense, held, is_float
from workloads.importers.stablehlo.translator import (
    FLOATS,
    CannotTranslateError,
    Held,
    Translation,
    Translator,
    refuse_indices,
)

# ---- constants -----------------------------------------------------------------------------------


def constant(t: Translator, op: Operation) -> Held:
    """`constant`; one that the text leaves out is a weight without data."""
    array = dense(f"{t.flat.name}: {op.name}", op.text, op.type)
    if array is not None:
        one = array.size > 1 and bool((array == array.reshape(-1)[0]).all())
        return t.result(op, array.reshape(-1)[:1].reshape((1,) * array.ndim) if one else array)
    if op.type.dtype not in FLOATS or op.type.dtype == "i8":
        raise CannotTranslateError(f"of type {op.type.dtype}")
    return t.result(op, t.flat.add(t.name(op), "weight", op.type.shape or (1,), FLOATS[op.type.dtype]))


def iota(t: Translator, op: Operation) -> Held:
    """`iota`: positions along one axis, kept with size 1 in the others."""
    axis = int((re.search(r"dim = (\d+)", op.text) or ["", "0"])[1])
    shape = [1] * len(op.type.shape)
    shape[axis] = op.type.shape[axis]
    return t.result(op, held(np.arange(shape[axis]).reshape(shape), op.type.dtype))


# ---- elements ------------------------------------------------------------------------------------


def _arrays(t: Translator, op: Operation) -> list[np.ndarray] | None:
    """All operands, if they are known, in shapes that broadcast."""
    found = [x.array for x in t.given(op)]
    return [x for x in found if x is not None] if all(x is not None for x in found) else None


def _folded(t: Translator, op: Operation, array: np.ndarray) -> Held:
    ranked = array.reshape((*(1,) * (len(op.type.shape) - array.ndim), *array.shape))
    return t.result(op, held(ranked, op.type.dtype))


def unary(func: str, known: Callable[[np.ndarray], np.ndarray]) -> Translation:
    """A function of each element."""

    def translate(t: Translator, op: Operation) -> Held:
        (x,) = t.given(op)
        if x.array is not None:
            with np.errstate(all="ignore"):
                return _folded(t, op, known(x.array))
        refuse_indices(t, x)
        if not func:
            raise CannotTranslateError("of values")
        step = softmax.exponential(x) if func == "exp" else None
        return t.result(op, t.flat.unary(t.name(op), func, t.real(x)), step)

    return translate


def binary(func: str, known: Callable[[np.ndarray, np.ndarray], np.ndarray]) -> Translation:
    """A function of two operands."""

    def translate(t: Translator, op: Operation) -> Held:
        lhs, rhs = t.given(op)
        both = _arrays(t, op)
        if both is not None:
            with np.errstate(all="ignore"):
                return _folded(t, op, known(*both))
        if not is_float(op.type.dtype):
            raise CannotTranslateError(f"of {op.type.dtype}")
        return _combined(t, op, func, lhs, rhs)

    return translate


def _combined(t: Translator, op: Operation, func: str, lhs: Held, rhs: Held) -> Held:
    name = t.name(op)
    if func in ("add", "mul", "max", "min") and lhs.array is not None:
        lhs, rhs = rhs, lhs  # a known operand comes last, where recognisers look for it
    raised = _raised(t, name, func, lhs, rhs)
    if raised is not None:
        return t.result(op, raised)
    for x, other in ((lhs, rhs), (rhs, lhs)):
        if func == "max" and other.number == -np.inf:
            return replace(x, dtype=op.type.dtype)
    if (whole := softmax.step(t, op, func, lhs, rhs)) is not None:
        return whole
    found = t.result(op, t.flat.binary(name, func, t.real(lhs), t.real(rhs)))
    found.trace = softmax.centred(func, lhs, rhs)
    found.scores = traces.changed(t, func, lhs, rhs)
    return found


def _raised(t: Translator, name: str, func: str, lhs: Held, rhs: Held) -> Known | None:
    """What a sum, product, quotient or maximum is the last step of."""
    a, b, flat = t.real(lhs), t.real(rhs), t.flat
    if func == "max" and rhs.number == 0.0:
        return variance(flat, a) or flat.unary(name, "relu", a)
    if func == "mul" and isinstance(a, Ref) and isinstance(b, Ref) and a == b:
        return flat.unary(name, "square", a)
    if func == "div":
        made = flat.maker(b)
        root = made is not None and made.op == Unary("sqrt")
        normed = rms_normed(flat, name, a, flat.unary(name, "reciprocal", b)) if root else None
        return normed or mean_of(t, name, lhs, rhs) or sigmoid(flat, name, a, b)
    if func == "add":
        for x, y in ((a, b), (b, a)):
            found = biased(flat, name, x, y) or assembled(flat, name, x, _positions(t, x, y))
            found = found or layer_norm(flat, name, x, y) or bias_first(flat, name, x, y)
            if found is not None:
                return found
    if func == "mul":
        found = rms_normed(flat, name, a, b)
        for step in (activation, gelu):
            found = step(flat, name, a, b) if found is None else found
        return found
    return None


def _positions(t: Translator, x: Known, y: Known) -> Known:
    """A table of positions [tokens, features] as it is added to [n, tokens, features]."""
    if not isinstance(y, Ref) or not isinstance(x, Ref) or t.flat.values[y.name].kind != "weight":
        return y
    is_table = len(t.flat.shape(y)) == 2 and len(t.flat.shape(x)) == 3 and t.flat.maker(x) is not None
    return t.restated(y, (1, *t.flat.shape(y))) if is_table else y


def mean_of(t: Translator, name: str, total: Held, count: Held) -> Known | None:
    """A sum divided by the number of its terms."""
    made = t.flat.maker(under(t.flat, total.known))
    if made is None or not isinstance(made.op, Reduce) or made.op.func != "add" or count.number is None:
        return None
    shape = t.flat.values[made.inputs[0]].type.shape
    if prod(shape[axis] for axis in made.op.axes) != count.number:
        return None
    x = Ref(made.inputs[0])
    if len(shape) == 4 and made.op.axes == (2, 3):
        mean = t.flat.op(name, GlobalAvgPool(), x)
    else:
        mean = t.flat.op(name, Reduce("mean", made.op.axes), x)
    return t.flat.reshape(name, mean, t.flat.shape(total.known))


_COMPARISONS = {
    "EQ": "equal", "NE": "not_equal", "LT": "less", "LE": "less_equal",
    "GT": "greater", "GE": "greater_equal",
}  # fmt: skip


def compare(t: Translator, op: Operation) -> Held:
    """`compare`; of real numbers while the program runs it gives 1 or 0.

    Whole numbers that are given are taken not to be negative: jax lets indices count from the end.
    """
    found = re.search(r"\b(EQ|NE|LT|LE|GT|GE)\b", op.text)
    func = _COMPARISONS[found[1] if found else "EQ"]
    both = _arrays(t, op)
    if both is not None:
        return _folded(t, op, np.asarray(getattr(np, func)(*both)))
    lhs, rhs = t.given(op)
    if t.is_index(lhs) and rhs.number == 0 and func in ("less", "greater_equal"):
        return _folded(t, op, np.full((1,) * len(op.type.shape), func == "greater_equal"))
    refuse_indices(t, lhs, rhs)
    return t.result(op, t.flat.binary(t.name(op), func, t.real(lhs), t.real(rhs)))


def logic(func: Callable[..., np.ndarray]) -> Translation:
    """Logic of what is known."""

    def translate(t: Translator, op: Operation) -> Held:
        xs = _arrays(t, op)
        if xs is None:
            raise CannotTranslateError("of values that are not known while importing")
        return _folded(t, op, np.asarray(func(*xs)))

    return translate


def select(t: Translator, op: Operation) -> Held:
    """`select`, of scores a mask."""
    cond, lhs, rhs = t.given(op)
    if cond.array is not None and len(np.unique(cond.array)) == 1:
        chosen = lhs if cond.array.reshape(-1)[0] else rhs
        return replace(chosen, shape=op.type.shape) if chosen.shape == op.type.shape else chosen
    if t.is_index(cond) and rhs.number is not None and np.isnan(rhs.number):
        return lhs  # jax marks rows out of range so
    refuse_indices(t, lhs, rhs)
    if all(x.array is not None for x in (cond, lhs, rhs)):
        return _folded(t, op, np.where(*(np.asarray(x.array) for x in (cond, lhs, rhs))))
    xs = [np.atleast_1d(x) if isinstance(x, np.ndarray) else x for x in map(t.real, (cond, lhs, rhs))]
    found = t.result(op, t.flat.elementwise(t.name(op), Select(), *xs))
    found.scores = traces.masked(t, cond, lhs, rhs)
    return found


def convert(t: Translator, op: Operation) -> Held:
    """`convert`."""
    (x,) = t.given(op)
    if x.array is not None:
        array = np.trunc(x.array) if is_float(x.dtype) and not is_float(op.type.dtype) else x.array
        return t.result(op, held(array, op.type.dtype))
    if t.is_index(x):
        if not is_float(op.type.dtype):
            return t.result(op, x.known)
        return t.result(op, t.real(x))
    if op.type.dtype not in FLOATS:
        raise CannotTranslateError(f"to {op.type.dtype}")
    dtype, made = FLOATS[op.type.dtype], t.flat.maker(x.known)
    if t.is_weight(x):
        known: Known = x.known
    elif made is not None and isinstance(made.op, Permute):  # the order last, where others undo it
        known = t.flat.permute(t.name(op), t.flat.cast(t.name(op), Ref(made.inputs[0]), dtype), made.op.order)
    else:
        known = t.flat.cast(t.name(op), x.known, dtype)
    return replace(x, known=known, dtype=op.type.dtype, trace=traces.kept(x))


def same(t: Translator, op: Operation) -> Held:
    """The operand itself."""
    return replace(t.given(op)[0], dtype=op.type.dtype)


def clamp(t: Translator, op: Operation) -> Held:
    """`clamp` between two numbers."""
    low, x, high = t.given(op)
    if low.array is not None and x.array is not None and high.array is not None:
        return _folded(t, op, np.minimum(np.maximum(x.array, low.array), high.array))
    refuse_indices(t, x)
    y = t.flat.binary(t.name(op), "max", t.real(x), t.real(low))
    return t.result(op, t.flat.binary(t.name(op), "min", y, t.real(high)))


def erfc(t: Translator, op: Operation) -> Held:
    """`erfc(x)` as `1 + erf(-x)`."""
    (x,) = t.given(op)
    y, name = t.real(x), t.name(op)
    z = _negated(t, name, y)
    if z is None:
        z = t.flat.unary(name, "negate", y)
    return t.result(op, t.flat.binary(name, "add", t.flat.unary(name, "erf", z), 1.0))


def _negated(t: Translator, name: str, y: Known) -> Known | None:
    """`-y`, if `y` is made by turning the sign of something, and perhaps scaling it then."""
    made = t.flat.maker(under(t.flat, y))
    if made is None:
        return None
    if made.op == Unary("negate"):
        return t.flat.reshape(name, Ref(made.inputs[0]), t.flat.shape(y))
    if not isinstance(made.op, Scalar) or made.op.func != "mul":
        return None
    inner = _negated(t, name, Ref(made.inputs[0]))
    return (
        None
        if inner is None
        else t.flat.reshape(name, t.flat.binary(name, "mul", inner, made.op.value), t.flat.shape(y))
    )


def _as_float(func: Callable[..., np.ndarray]) -> Callable[..., np.ndarray]:
    return lambda *xs: np.asarray(func(*xs))


def _divide(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return np.asarray(a / b if a.dtype.kind == "f" else np.trunc(a / b))


OPERATIONS: dict[str, Translation] = {
    **dict.fromkeys(("constant", "arith.constant"), constant),
    "iota": iota,
    **{kind: unary(func, _as_float(known)) for kind, func, known in (
        ("negate", "negate", np.negative), ("exponential", "exp", np.exp), ("log", "log", np.log),
        ("sqrt", "sqrt", np.sqrt), ("rsqrt", "rsqrt", lambda x: 1.0 / np.sqrt(x)), ("abs", "abs", np.abs),
        ("cosine", "cos", np.cos), ("sine", "sin", np.sin), ("tanh", "tanh", np.tanh),
        ("logistic", "sigmoid", lambda x: 1.0 / (1.0 + np.exp(-x))), ("sign", "sign", np.sign),
        ("chlo.square", "square", np.square), ("floor", "", np.floor), ("ceil", "", np.ceil),
    )},
    **{kind: binary(func, known) for kind, func, known in (
        ("add", "add", np.add), ("subtract", "sub", np.subtract), ("multiply", "mul", np.multiply),
        ("divide", "div", _divide), ("maximum", "max", np.maximum), ("minimum", "min", np.minimum),
        ("power", "pow", np.power), ("remainder", "mod", np.fmod),
    )},
    **{kind: logic(func) for kind, func in (
        ("and", np.bitwise_and), ("or", np.bitwise_or), ("xor", np.bitwise_xor),
        ("not", np.logical_not), ("is_finite", np.isfinite),
    )},
    "chlo.erf": unary("erf", _as_float(lambda x: x)),
    "chlo.erfc": erfc,
    "compare": compare,
    "select": select,
    "convert": convert,
    "clamp": clamp,
    "optimization_barrier": same,
}  # fmt: skip
