"""ATen operators that move or make elements -> general ops."""

from __future__ import annotations

from math import prod
from typing import cast

import numpy as np

from compiler.ops import (
    Concat,
    Expand,
    Slice,
)
from workloads.importers.flat import Known
from workloads.importers.torch_export.caches import grown_cache
from workloads.importers.torch_export.reader import Call, Name
from workloads.importers.torch_export.translator import Translator


def first(call: Call) -> object:
    """The operand, whatever its name."""
    return next(iter(call.args.values()))


def view(t: Translator, call: Call) -> Known:
    """The same elements in another shape."""
    return t.flat.reshape(call.name, t.value(first(call)), t.shape(call))


def permute(t: Translator, call: Call) -> Known:
    """Axes in another order."""
    x = t.value(call.args["self"])
    rank = len(t.flat.shape(x))
    return t.flat.permute(call.name, x, [axis % rank for axis in cast("list[int]", call.args["dims"])])


def transpose(t: Translator, call: Call) -> Known:
    """Two axes exchanged."""
    x = t.value(call.args["self"])
    order = list(range(len(t.flat.shape(x))))
    a, b = (cast("int", call.args[key]) % len(order) for key in ("dim0", "dim1"))
    order[a], order[b] = order[b], order[a]
    return t.flat.permute(call.name, x, order)


def expand(t: Translator, call: Call) -> Known:
    """Axes of one repeated."""
    x, shape = t.value(call.args["self"]), t.shape(call)
    if isinstance(x, np.ndarray):
        return np.broadcast_to(x, shape)
    if prod(shape) == prod(t.flat.shape(x)):
        return t.flat.reshape(call.name, x, shape)
    return t.flat.op(call.name, Expand(shape), x)


def repeat(t: Translator, call: Call) -> Known:
    """The whole repeated along axes."""
    x = t.value(call.args["self"])
    if isinstance(x, np.ndarray):
        return np.tile(x, cast("list[int]", call.args["repeats"]))
    return expand(t, call)


def slice_(t: Translator, call: Call) -> Known:
    """A range of one axis."""
    x = t.value(call.args["self"])
    shape = t.flat.shape(x)
    dim = cast("int", call.args.get("dim", 0)) % len(shape)
    size = shape[dim]
    start, stop = cast("int | None", call.args.get("start")), cast("int | None", call.args.get("end"))
    part = slice(start, stop, cast("int", call.args.get("step", 1))).indices(size)
    return cut(t, call.name, x, dim, *part)


def cut(t: Translator, name: str, x: Known, dim: int, start: int, stop: int, step: int = 1) -> Known:
    """A range of one axis."""
    shape = t.flat.shape(x)
    if isinstance(x, np.ndarray):
        return x[(slice(None),) * dim + (slice(start, stop, step),)]
    if (start, stop, step) == (0, shape[dim], 1):
        return x
    starts, stops, steps = [0] * len(shape), list(shape), [1] * len(shape)
    starts[dim], stops[dim], steps[dim] = start, stop, step
    return t.flat.op(name, Slice(tuple(starts), tuple(stops), tuple(steps) if step > 1 else ()), x)


def select(t: Translator, call: Call) -> Known:
    """One place of an axis, which is dropped."""
    x, dim = t.value(call.args["self"]), cast("int", call.args["dim"])
    shape = t.flat.shape(x)
    dim, index = dim % len(shape), cast("int", call.args["index"]) % shape[dim]
    if isinstance(x, np.ndarray):
        return np.asarray(x.take(index, dim))
    if dim == 1 and len(shape) == 3:  # a token of each sequence
        return t.flat.token(call.name, x, index)
    return t.flat.reshape(call.name, cut(t, call.name, x, dim, index, index + 1), t.shape(call))


def split(t: Translator, call: Call) -> Known:
    """All parts; the first is the result, the others are put beside it."""
    x, dim = t.value(call.args["self"]), cast("int", call.args.get("dim", 0))
    dim, at = dim % len(t.flat.shape(x)), 0
    parts = []
    for name in call.outputs:
        size = t.program.shapes[name][dim]
        parts.append(cut(t, name, x, dim, at, at + size))
        at += size
    for name, part in zip(call.outputs, parts, strict=True):
        t.env[name] = part
    return parts[0]


def cat(t: Translator, call: Call) -> Known:
    """Joined along an axis."""
    xs = [
        t.value(name)
        for name in cast("list[Name]", call.args["tensors"])
        if prod(t.program.shapes[name.name])
    ]
    rank = len(t.shape(call))
    dim = cast("int", call.args.get("dim", 0)) % rank
    arrays = [x for x in xs if isinstance(x, np.ndarray)]
    if len(arrays) == len(xs):
        return np.concatenate(arrays, dim)
    if len(xs) == 1:
        return xs[0]
    grown = grown_cache(t, call, xs, dim)
    if grown is not None:
        return grown
    dtype = t.dtype(call)
    return t.flat.op(call.name, Concat(dim, len(xs)), *(t.flat.ref(x, dtype) for x in xs))


def arange(t: Translator, call: Call) -> Known:
    """Numbers in a row, known while importing."""
    start, end = cast("int", call.args.get("start", 0)), cast("int", call.args["end"])
    return np.arange(start, end, cast("int", call.args.get("step", 1)))


def full(t: Translator, call: Call) -> Known:
    """A constant, known while importing."""
    shape = t.shape(call)
    value = call.args.get("fill_value", call.args.get("s", 1))
    return np.full(shape, cast("float", value))
