"""Rotary positions written as two halves set side by side: to our op."""

from __future__ import annotations

import numpy as np

from compiler.ops import Binary, Reshape, Rope, Slice
from workloads.importers.flat import FlatGraph, Known, Ref
from workloads.importers.raising.norms import under


def rotated(flat: FlatGraph, name: str, low: Known, high: Known) -> Known | None:
    """`cat(a cos - b sin, b cos + a sin)` of [batch, seq, heads, head_dim] with halves a and b."""
    first, second = (flat.maker(under(flat, x)) for x in (low, high))
    if first is None or second is None or first.op != Binary("sub") or second.op != Binary("add"):
        return None
    minus = [_product(flat, n) for n in first.inputs]
    plus = [_product(flat, n) for n in second.inputs]
    a_cos, b_sin = minus
    for b_cos, a_sin in (plus, plus[::-1]):
        if not a_cos or not b_sin or not b_cos or not a_sin:
            return None
        same = (a_cos[0], b_cos[0], a_cos[1], b_sin[1]) == (a_sin[0], b_sin[0], b_cos[1], a_sin[1])
        x = _halves_of(flat, a_cos[0], b_sin[0]) if same else None
        if x is not None:
            return _rope(flat, name, x, flat.weights[a_cos[1]], flat.weights[b_sin[1]])
    return None


def _product(flat: FlatGraph, name: str) -> tuple[str, str] | None:
    """(value, table), if `name` is their product."""
    made = flat.maker(under(flat, Ref(name)))
    if made is None or made.op != Binary("mul"):
        return None
    for x, table in (made.inputs, made.inputs[::-1]):
        if flat.values[table].kind == "table":
            return x, table
    return None


def _halves_of(flat: FlatGraph, low: str, high: str) -> Ref | None:
    """x, if the two are the halves of its last axis."""
    parts = [flat.makers.get(name) for name in (low, high)]
    if any(p is None or not isinstance(p.op, Slice) for p in parts):
        return None
    one, two = (p for p in parts if p is not None)
    shape = flat.values[one.inputs[0]].type.shape
    assert isinstance(one.op, Slice)
    assert isinstance(two.op, Slice)
    half = shape[-1] // 2
    front = (*((0, n) for n in shape[:-1]),)
    ranges = [tuple(zip(p.starts, p.stops, strict=True)) for p in (one.op, two.op)]
    wanted = [(*front, (0, half)), (*front, (half, shape[-1]))]
    plain = one.inputs == two.inputs and not one.op.steps and not two.op.steps
    return Ref(one.inputs[0]) if plain and ranges == wanted and len(shape) == 4 else None


def _rope(flat: FlatGraph, name: str, x: Ref, cos: np.ndarray, sin: np.ndarray) -> Known | None:
    shape = flat.shape(x)
    batch, seq, heads, head_dim = shape
    if any(t.size != seq * head_dim // 2 for t in (cos, sin)):
        return None
    source = _narrow(flat, x)
    rows = flat.reshape("rows", source, (batch * seq, heads * head_dim))
    assert isinstance(rows, Ref)
    tables = [flat.ref(t.reshape(seq, head_dim // 2), flat.type(rows).dtype) for t in (cos, sin)]
    return flat.reshape(name, flat.op(name, Rope(heads, head_dim, seq), rows, *tables), shape)


def _narrow(flat: FlatGraph, x: Ref) -> Ref:
    """`x` before it was made fp32 for the rotation, in its own shape."""
    found = under(flat, x)
    made = flat.maker(x)
    if made is None or isinstance(made.op, Reshape) or not isinstance(found, Ref):
        return x
    return found
