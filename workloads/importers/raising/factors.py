"""Norms whose factors come in any order: x, the inverse root of its mean square or variance, the gain."""

from __future__ import annotations

from math import prod

from compiler.ops import Binary, LayerNorm, Reduce, RmsNorm, Scalar, Unary
from workloads.importers.flat import FlatGraph, Known, Ref
from workloads.importers.raising.norms import under


def factors(flat: FlatGraph, x: Known) -> list[Known]:
    """What is multiplied to give `x`."""
    x = under(flat, x)
    made = flat.maker(x)
    if made is None or made.op != Binary("mul"):
        return [x]
    return [factor for name in made.inputs for factor in factors(flat, Ref(name))]


def rms_normed(flat: FlatGraph, name: str, lhs: Known, rhs: Known) -> Known | None:
    """`lhs * rhs` if it is `x * rsqrt(mean(x^2) + eps) * gain` over the last axis."""
    parts = _parts(flat, [*factors(flat, lhs), *factors(flat, rhs)])
    if parts is None:
        return None
    x, spread, gain, eps = parts
    mean = _mean_of(flat, spread)
    square = None if mean is None else flat.maker(mean)
    if square is None or square.op != Unary("square") or under(flat, Ref(square.inputs[0])) != under(flat, x):
        return None
    shape = max(flat.shape(lhs), flat.shape(rhs), key=lambda s: (prod(s), len(s)))
    rows = _rows(flat, x, shape)
    if rows is None or flat.shape(gain) != shape[-1:]:
        return None
    return flat.reshape(name, flat.op(name, RmsNorm(eps), rows, _like(flat, gain, rows)), shape)


def layer_norm(flat: FlatGraph, name: str, y: Known, beta: Known) -> Known | None:
    """`y + beta` if `y` is `(x - mean(x)) * rsqrt(var(x) + eps) * gain` over the last axis."""
    if not _is_weight(flat, under(flat, beta)):
        return None
    parts = _parts(flat, factors(flat, y))
    if parts is None:
        return None
    centred, spread, gain, eps = parts
    x = _centred(flat, centred)
    if x is None or not _is_variance(flat, spread, x):
        return None
    shape = flat.shape(y)
    rows, shift = _rows(flat, x, shape), under(flat, beta)
    if rows is None or flat.shape(gain) != shape[-1:] or flat.shape(shift) != shape[-1:]:
        return None
    ends = (_like(flat, gain, rows), _like(flat, shift, rows))
    return flat.reshape(name, flat.op(name, LayerNorm(eps), rows, *ends), shape)


def variance(flat: FlatGraph, x: Known) -> Known | None:
    """`x` if it is `mean(y^2) - mean(y)^2`, which flax keeps from falling below 0 by rounding."""
    made = flat.maker(under(flat, x))
    return x if made is not None and made.op == Binary("sub") and _moments(flat, x) is not None else None


def _parts(flat: FlatGraph, found: list[Known]) -> tuple[Known, Known, Ref, float] | None:
    """(x, what the root is taken of, gain, eps) of three factors."""
    if len(found) != 3:
        return None
    for i, root in enumerate(found):
        made = flat.maker(root)
        total = flat.maker(under(flat, Ref(made.inputs[0]))) if made and made.op == Unary("rsqrt") else None
        if total is None or not isinstance(total.op, Scalar) or total.op.func != "add":
            continue
        rest = [x for j, x in enumerate(found) if j != i]
        for x, gain in (rest, rest[::-1]):
            if isinstance(gain, Ref) and _is_weight(flat, gain):
                return x, under(flat, Ref(total.inputs[0])), gain, total.op.value
    return None


def _is_weight(flat: FlatGraph, x: Known) -> bool:
    return isinstance(x, Ref) and flat.values[x.name].kind == "weight" and len(flat.shape(x)) == 1


def _like(flat: FlatGraph, weight: Known, rows: Ref) -> Ref:
    cast = flat.cast("cast", weight, flat.type(rows).dtype)
    assert isinstance(cast, Ref)
    return cast


def _rows(flat: FlatGraph, x: Known, shape: tuple[int, ...]) -> Ref | None:
    if not isinstance(x, Ref) or prod(flat.shape(x)) != prod(shape):
        return None
    rows = flat.reshape("rows", x, (prod(shape[:-1]), shape[-1]))
    return rows if isinstance(rows, Ref) else None


def _mean_of(flat: FlatGraph, x: Known) -> Known | None:
    """y, if `x` is the mean of y over its last axis."""
    made = flat.maker(under(flat, x))
    if made is None or not isinstance(made.op, Reduce) or made.op.func != "mean":
        return None
    last = len(flat.values[made.inputs[0]].type.shape) - 1
    return under(flat, Ref(made.inputs[0])) if made.op.axes == (last,) else None


def _centred(flat: FlatGraph, x: Known) -> Known | None:
    """y, if `x` is y less its mean."""
    made = flat.maker(under(flat, x))
    if made is None or made.op != Binary("sub"):
        return None
    y = under(flat, Ref(made.inputs[0]))
    return y if _mean_of(flat, Ref(made.inputs[1])) == y else None


def _is_variance(flat: FlatGraph, x: Known, y: Known) -> bool:
    """Whether `x` is the mean of the square of y less its mean, or that of squares less the squared mean."""
    square = flat.maker(_mean_of(flat, x) or x)
    if square is not None and square.op == Unary("square"):
        return _centred(flat, Ref(square.inputs[0])) == y
    return _moments(flat, x) == y


def _moments(flat: FlatGraph, x: Known) -> Known | None:
    """y, if `x` is mean(y^2) - mean(y)^2."""
    made = flat.maker(under(flat, x))
    if made is None or made.op != Binary("sub"):
        return None
    second, first = (flat.maker(under(flat, x)) for x in map(Ref, made.inputs))
    squares = flat.maker(_mean_of(flat, Ref(made.inputs[0])) or x) if second else None
    if squares is None or squares.op != Unary("square") or first is None or first.op != Unary("square"):
        return None
    y = under(flat, Ref(squares.inputs[0]))
    return y if _mean_of(flat, Ref(first.inputs[0])) == y else None
