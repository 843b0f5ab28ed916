"""StableHLO operations on shapes, and reductions. What is known while importing is computed at once."""

from __future__ import annotations

import re
from collections.abc import Sequence
from math import prod

import numpy as np

from compiler.ops import Binary, Concat, Linear, Pad, Reduce, Reshape, Slice
from workloads.importers.flat import Known, Ref
from workloads.importers.raising.columns import columns
from workloads.importers.raising.rotary import rotated
from workloads.importers.stablehlo import softmax, traces
from workloads.importers.stablehlo.reader import Operation, held, integers
from workloads.importers.stablehlo.translator import (
    CannotTranslateError,
    Held,
    Translation,
    Translator,
    refuse_indices,
)


def broadcast_in_dim(t: Translator, op: Operation) -> Held:
    """`broadcast_in_dim`: only noted; a later operation spreads it if it must."""
    (x,) = t.given(op)
    axes, shape = integers(op.text, "dims"), op.type.shape
    own = (
        t.flat.logical.get(x.known.name, t.flat.shape(x.known)) if isinstance(x.known, Ref) else x.known.shape
    )
    own = (*(1,) * (len(x.shape) - len(own)), *own) if x.shape else ()
    placed = [1] * len(shape)
    for axis, size in zip(axes, own, strict=True):
        placed[axis] = size
    found = t.result(op, _restated(t, x, placed))
    found.trace = traces.spread(x, axes, shape)
    found.scores = traces.placed(x, axes, shape)
    return found


def _restated(t: Translator, x: Held, shape: Sequence[int]) -> Known:
    if isinstance(x.known, np.ndarray):
        return x.known.reshape(shape)
    if t.is_index(x):
        return t.flat.with_logical(x.known, tuple(shape))
    if t.is_weight(x):
        return t.restated(x.known, tuple(shape) or (1,))
    return t.flat.reshape("placed", x.known, tuple(shape) or (1,))


def reshape(t: Translator, op: Operation) -> Held:
    """`reshape`; patches of an image keep the order that their convolution gives them."""
    (x,) = t.given(op)
    shape = op.type.shape
    if isinstance(x.known, np.ndarray):
        return t.result(
            op,
            x.known.reshape((1,) * len(shape))
            if x.known.size == 1
            else np.broadcast_to(x.known, x.shape).reshape(shape),
        )
    if t.is_index(x) and isinstance(x.known, Ref) and prod(t.flat.logical[x.known.name]) == prod(shape):
        return t.result(op, t.flat.with_logical(x.known, shape))
    if t.is_weight(x) and prod(t.flat.shape(x.known)) == prod(shape):
        return t.result(op, t.restated(x.known, shape or (1,)))
    found = t.result(op, t.flat.reshape(t.name(op), t.whole(x), shape or (1,)))
    found.trace = traces.reshaped(x, shape)
    found.scores = traces.regrouped(x, shape)
    return found


def transpose(t: Translator, op: Operation) -> Held:
    """`transpose`; a weight is stored the other way round in the first place."""
    (x,) = t.given(op)
    order = integers(op.text, "dims")
    if t.is_index(x):
        raise CannotTranslateError("of whole numbers that are given")
    if t.is_weight(x) and order == [1, 0] and isinstance(x.known, Ref):
        return t.result(op, t.flat.transposed(x.known))
    known = x.known
    if isinstance(known, Ref) and len(t.flat.shape(known)) < len(order):
        known = _restated(t, x, (*(1,) * (len(order) - len(t.flat.shape(known))), *t.flat.shape(known)))
    found = t.result(op, t.permuted(t.name(op), known, order))
    found.trace = traces.permuted(x, order)
    found.scores = traces.reordered(x, order)
    return found


def slice_(t: Translator, op: Operation) -> Held:
    """`slice`, with steps."""
    (x,) = t.given(op)
    text = op.text[op.text.index("[") + 1 : op.text.rindex("]")]
    ranges = []
    for part in text.split(","):
        numbers = [int(n) for n in part.split(":")]
        ranges.append((numbers[0], numbers[1], numbers[2] if len(numbers) > 2 else 1))
    return cut(t, op, x, ranges)


def cut(t: Translator, op: Operation, x: Held, ranges: Sequence[tuple[int, int, int]]) -> Held:
    """A range (start, stop, step) of each axis."""
    known = x.known
    own = known.shape if isinstance(known, np.ndarray) else t.flat.shape(known)
    if isinstance(known, np.ndarray):
        parts = tuple(slice(*r) if n > 1 else slice(None) for r, n in zip(ranges, own, strict=True))
        return t.result(op, known[parts])
    refuse_indices(t, x)
    if all(r == (0, n, 1) for r, n in zip(ranges, x.shape, strict=True)):
        return x
    rest = all(r == (0, n, 1) for r, n in zip(ranges[1:], x.shape[1:], strict=True))
    if t.is_weight(x) and rest and ranges[0][1] == ranges[0][0] + 1 and own == x.shape:
        return t.result(op, part_of(t, known, ranges[0][0]))
    ref = t.ref(x)
    part = _columns(t, op, ref, ranges)
    if part is not None:
        return t.result(op, part)
    if len(x.shape) == 3 and ranges[::2] == [(0, n, 1) for n in x.shape[::2]] and op.type.shape[1] == 1:
        taken = t.flat.token(t.name(op), ref, ranges[1][0])
        return t.result(op, t.flat.reshape("rows", taken, op.type.shape))
    starts, stops, steps = zip(*ranges, strict=True)
    return t.result(op, t.flat.op(t.name(op), Slice(starts, stops, steps if set(steps) != {1} else ()), ref))


def _columns(t: Translator, op: Operation, x: Ref, ranges: Sequence[tuple[int, int, int]]) -> Known | None:
    """Some heads of [..., heads, features] as columns of the rows that they were cut from, or columns."""
    made, shape = t.flat.maker(x), t.flat.shape(x)
    if all(r == (0, n, 1) for r, n in zip(ranges[:-1], shape[:-1], strict=True)) and ranges[-1][2] == 1:
        rows = t.flat.rows(x)
        source = t.flat.maker(rows)
        if source is not None and source.op in (Linear(), Binary("add")):
            found = columns(t.flat, t.name(op), rows, *ranges[-1][:2])
            return t.flat.reshape("columns", found, op.type.shape)
    if made is None or not isinstance(made.op, Reshape) or len(shape) < 3:
        return None
    under = (prod(shape[:-2]), shape[-2] * shape[-1])
    others = [r for i, r in enumerate(ranges) if i != len(shape) - 2]
    sizes = [n for i, n in enumerate(shape) if i != len(shape) - 2]
    start, stop, step = ranges[-2]
    whole = all(r == (0, n, 1) for r, n in zip(others, sizes, strict=True)) and step == 1
    if not whole or t.flat.values[made.inputs[0]].type.shape != under:
        return None
    part = columns(t.flat, t.name(op), Ref(made.inputs[0]), start * shape[-1], stop * shape[-1])
    return t.flat.reshape("heads", part, op.type.shape)


def part_of(t: Translator, weight: Ref, index: int) -> Ref:
    """One of stacked weights, as a weight of its own with a first axis of one."""
    value = t.flat.values[weight.name]
    name = f"{weight.name}[{index}:{index + 1}]"
    if name not in t.flat.values:
        t.flat.add(name, "weight", (1, *value.type.shape[1:]), value.type.dtype)
        t.parts[name] = f"{weight.name}[{index}]"
        if weight.name in t.flat.weights:
            t.flat.weights[name] = t.flat.weights[weight.name][index : index + 1]
    return Ref(name)


def dynamic_slice(t: Translator, op: Operation) -> Held:
    """`dynamic_slice` at known positions."""
    x, *starts = t.given(op)
    numbers = [s.number for s in starts]
    if any(n is None for n in numbers):
        raise CannotTranslateError("at positions that are not known while importing")
    sizes = op.type.shape
    at = [
        min(max(int(n or 0), 0), have - size) for n, have, size in zip(numbers, x.shape, sizes, strict=True)
    ]
    return cut(t, op, x, [(a, a + size, 1) for a, size in zip(at, sizes, strict=True)])


def concatenate(t: Translator, op: Operation) -> Held:
    """`concatenate`, or rotated halves."""
    xs = t.given(op)
    axis = integers(op.text, "dim")[0]
    known = [x.array for x in xs]
    if all(x is not None for x in known):
        whole = [np.broadcast_to(x.array, x.shape) for x in xs if x.array is not None]
        return t.result(op, np.concatenate(whole, axis))
    refuse_indices(t, *xs)
    xs = [x for x in xs if prod(x.shape)]
    if len(xs) == 2 and axis == len(op.type.shape) - 1:
        turned = rotated(t.flat, t.name(op), xs[0].known, xs[1].known)
        if turned is not None:
            return t.result(op, turned)
    dtype = next((t.flat.type(x.known).dtype for x in xs if isinstance(x.known, Ref)), "fp32")
    refs = [t.flat.ref(t.flat.cast("cast", t.whole(x), dtype), dtype) for x in xs]
    return t.result(op, refs[0] if len(refs) == 1 else t.flat.op(t.name(op), Concat(axis, len(refs)), *refs))


def pad(t: Translator, op: Operation) -> Held:
    """`pad` outwards with one number."""
    x, value = t.given(op)
    low, high, between = (integers(op.text, key) for key in ("low", "high", "interior"))
    if any(between) or min([*low, *high], default=0) < 0 or value.number is None:
        raise CannotTranslateError("between elements, by negative sizes, or with an unknown number")
    if x.array is not None:
        sides = list(zip(low, high, strict=True))
        return t.result(op, np.pad(np.broadcast_to(x.array, x.shape), sides, constant_values=value.number))
    return t.result(op, t.flat.op(t.name(op), Pad(tuple(low), tuple(high), value.number), t.ref(x)))


_REDUCTIONS = {
    "add": "sum",
    "maximum": "max",
    "minimum": "min",
    "multiply": "prod",
    "and": "all",
    "or": "any",
}


def reduce(t: Translator, op: Operation) -> Held:
    """`reduce` with one operation, over axes one after the other where they are no neighbours."""
    found = re.search(r"applies stablehlo\.(\w+) across dimensions = \[([^\]]*)\]", op.text)
    if found is None or len(op.operands) != 2 or found[1] not in _REDUCTIONS:
        raise CannotTranslateError(found[1] if found else "by a function of its own")
    x = t.given(op)[0]
    axes = sorted(int(n) for n in re.findall(r"\d+", found[2]))
    if x.array is not None:
        whole = np.broadcast_to(x.array, x.shape)
        return t.result(op, held(getattr(np, _REDUCTIONS[found[1]])(whole, axis=tuple(axes)), op.type.dtype))
    func = {"add": "add", "maximum": "max", "minimum": "min"}.get(found[1])
    if func is None or t.is_index(x):
        raise CannotTranslateError(f"{found[1]} of values")
    y: Known = t.ref(x)
    near = axes == list(range(axes[0], axes[0] + len(axes))) if axes else True
    for part in [tuple(axes)] if near and axes else [(axis,) for axis in axes]:
        y = t.flat.op(t.name(op), Reduce(func, part), t.flat.ref(y, "fp32"))
    result = t.result(op, t.flat.reshape(t.name(op), y, op.type.shape or (1,)))
    result.trace = softmax.reduced(x, func, axes)
    return result


SHAPES: dict[str, Translation] = {
    "broadcast_in_dim": broadcast_in_dim,
    "reshape": reshape,
    "transpose": transpose,
    "slice": slice_,
    "dynamic_slice": dynamic_slice,
    "concatenate": concatenate,
    "pad": pad,
    "reduce": reduce,
}
