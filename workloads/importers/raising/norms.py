"""Norms spelled out in elementwise steps: to our ops."""

from __future__ import annotations

from compiler.ops import Binary, Cast, Reduce, Reshape, RmsNorm, Scalar, Unary
from workloads.importers.flat import FlatGraph, Known, Ref


def under(flat: FlatGraph, x: Known) -> Known:
    """`x` before changes of shape and type."""
    while (made := flat.maker(x)) is not None and isinstance(made.op, (Reshape, Cast)):
        x = Ref(made.inputs[0])
    return x


def rms_norm(flat: FlatGraph, name: str, gain: Known, y: Known) -> Known | None:
    """`gain * x * rsqrt(mean(x^2) + eps)` over the last axis, if `y` is that before the gain."""
    if not isinstance(gain, Ref) or not isinstance(y, Ref) or flat.values[gain.name].kind != "weight":
        return None
    shape = flat.shape(y)
    if flat.shape(gain) != shape[-1:]:
        return None
    found = _normed(flat, under(flat, y))
    if found is None:
        return None
    x, eps = found
    return flat.reshape(name, _apply(flat, name, flat.rows(x), gain, eps), shape)


def _apply(flat: FlatGraph, name: str, rows: Ref, gain: Ref, eps: float) -> Ref:
    """The norm of each row; of each head of a row where rows of heads were cut from wider rows."""
    made = flat.maker(rows)
    if made is not None and isinstance(made.op, Reshape):
        wide = flat.values[made.inputs[0]].type.shape
        head = flat.shape(gain)[0]
        if len(wide) == 2 and wide[1] > head and wide[1] % head == 0:
            out = flat.op(name, RmsNorm(eps, wide[1] // head), Ref(made.inputs[0]), gain)
            back = flat.reshape(name, out, flat.shape(rows))
            assert isinstance(back, Ref)
            return back
    return flat.op(name, RmsNorm(eps), rows, gain)


def _normed(flat: FlatGraph, y: Known) -> tuple[Ref, float] | None:
    """(x, eps) if `y` is x * rsqrt(mean(x^2) + eps)."""
    product = flat.maker(y)
    if product is None or product.op != Binary("mul"):
        return None
    for left, right in (product.inputs, product.inputs[::-1]):
        root = flat.maker(under(flat, Ref(right)))
        total = flat.maker(under(flat, Ref(root.inputs[0]))) if root and root.op == Unary("rsqrt") else None
        if total is None or not isinstance(total.op, Scalar) or total.op.func != "add":
            continue
        mean = flat.maker(under(flat, Ref(total.inputs[0])))
        if mean is None or not isinstance(mean.op, Reduce) or mean.op.func != "mean":
            continue
        square = flat.maker(under(flat, Ref(mean.inputs[0])))
        x = under(flat, Ref(left))
        if square is not None and square.op == Unary("square") and under(flat, Ref(square.inputs[0])) == x:
            assert isinstance(x, Ref)
            return x, total.op.value
    return None
