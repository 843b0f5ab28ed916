"""ONNX operators that move elements: shapes, slices, joins, gathers."""

from __future__ import annotations

from math import prod

import numpy as np

from compiler.ops import Concat, Embedding, Expand, Pad, Slice
from workloads.importers.flat import Known, Ref
from workloads.importers.onnx_model.basic import refuse_indices
from workloads.importers.onnx_model.reader import OnnxNode, int_list
from workloads.importers.onnx_model.translator import (
    CannotTranslateError,
    Translator,
    number,
)


def reshape(t: Translator, node: OnnxNode) -> Known:
    """`Reshape`, with 0 for the operand's size and -1 for what is left."""
    x, wanted = t.need(node, 0), t.numbers(node, 1, "shape")
    shape = t.flat.logical.get(x.name, t.flat.shape(x)) if isinstance(x, Ref) else x.shape
    if wanted is None:
        raise CannotTranslateError("no shape")
    if not node.attributes.get("allowzero"):
        wanted = [shape[i] if size == 0 else size for i, size in enumerate(wanted)]
    known = prod(size for size in wanted if size != -1)
    final = [prod(shape) // max(1, known) if size == -1 else size for size in wanted]
    return _reshaped(t, node, x, final)


def _reshaped(t: Translator, node: OnnxNode, x: Known, shape: list[int]) -> Known:
    if isinstance(x, Ref) and x.name in t.flat.logical:
        return t.flat.with_logical(x, tuple(shape))
    return t.flat.reshape(node.name, x, shape)


def flatten(t: Translator, node: OnnxNode) -> Known:
    """`Flatten` to a matrix."""
    x = t.need(node, 0)
    shape = t.flat.shape(x)
    axis = int(number(node.attributes, "axis", 1)) % (len(shape) + 1)
    return t.flat.reshape(node.name, x, (prod(shape[:axis]), prod(shape[axis:])))


def unsqueeze(t: Translator, node: OnnxNode) -> Known:
    """`Unsqueeze`."""
    x, axes = t.need(node, 0), t.numbers(node, 1, "axes") or []
    shape = list(t.flat.logical.get(x.name, t.flat.shape(x)) if isinstance(x, Ref) else x.shape)
    rank = len(shape) + len(axes)
    for axis in sorted(a % rank for a in axes):
        shape.insert(axis, 1)
    return _reshaped(t, node, x, shape)


def squeeze(t: Translator, node: OnnxNode) -> Known:
    """`Squeeze`."""
    x, axes = t.need(node, 0), t.numbers(node, 1, "axes")
    refuse_indices(t, x)
    shape = t.flat.shape(x)
    gone = [a % len(shape) for a in axes] if axes is not None else [i for i, s in enumerate(shape) if s == 1]
    return t.flat.reshape(node.name, x, [s for i, s in enumerate(shape) if i not in gone])


def transpose(t: Translator, node: OnnxNode) -> Known:
    """`Transpose`; a weight is stored the other way round in the first place."""
    x = t.need(node, 0)
    refuse_indices(t, x)
    rank = len(t.flat.shape(x))
    order = int_list(node.attributes.get("perm") or list(range(rank))[::-1])
    if isinstance(x, Ref) and rank == 2 and order == [1, 0] and t.flat.values[x.name].kind == "weight":
        return t.flat.transposed(x)
    return t.flat.permute(node.name, x, order)


def expand(t: Translator, node: OnnxNode) -> Known:
    """`Expand`."""
    x, wanted = t.need(node, 0), t.numbers(node, 1) or []
    if isinstance(x, Ref) and not all(name in t.model.indices for name in node.outputs):
        x = t.flat.numbers(x)
    refuse_indices(t, x)
    shape = np.broadcast_shapes(t.flat.shape(x), tuple(wanted))
    if isinstance(x, np.ndarray):
        return np.broadcast_to(x, shape)
    return (
        t.flat.reshape(node.name, x, shape)
        if prod(shape) == prod(t.flat.shape(x))
        else t.flat.op(node.name, Expand(shape), x)
    )


def tile(t: Translator, node: OnnxNode) -> Known:
    """`Tile`, of known arrays."""
    x, repeats = t.need(node, 0), t.numbers(node, 1) or []
    if not isinstance(x, np.ndarray):
        if all(r == 1 for r in repeats):
            return x
        raise CannotTranslateError("of values")
    return np.tile(x, repeats)


def concat(t: Translator, node: OnnxNode) -> Known:
    """`Concat`."""
    xs = [t.need(node, i) for i in range(len(node.inputs))]
    axis = int(number(node.attributes, "axis", 0)) % len(t.flat.shape(xs[0]))
    known = [x for x in xs if isinstance(x, np.ndarray)]
    if len(known) == len(xs):
        return np.concatenate(known, axis)
    refuse_indices(t, *xs)
    xs = [x for x in xs if prod(t.flat.shape(x))]
    dtype = t.dtype(node)
    return (
        xs[0]
        if len(xs) == 1
        else t.flat.op(node.name, Concat(axis, len(xs)), *(t.flat.ref(x, dtype) for x in xs))
    )


def slice_(t: Translator, node: OnnxNode) -> Known:
    """`Slice`; steps forwards only."""
    x = t.need(node, 0)
    starts, ends = t.numbers(node, 1, "starts") or [], t.numbers(node, 2, "ends") or []
    rank = len(t.flat.shape(x))
    axes = t.numbers(node, 3, "axes") or list(range(len(starts)))
    steps = t.numbers(node, 4) or [1] * len(starts)
    parts = [slice(None)] * rank
    for axis, start, end, step in zip(axes, starts, ends, steps, strict=True):
        parts[axis % rank] = slice(start, end, step)
    if isinstance(x, np.ndarray):
        return x[tuple(parts)]
    refuse_indices(t, x)
    ranges = [part.indices(size) for part, size in zip(parts, t.flat.shape(x), strict=True)]
    if any(step < 1 for _, _, step in ranges):
        raise CannotTranslateError("backwards")
    return cut(t, node, x, ranges)


def cut(t: Translator, node: OnnxNode, x: Ref, ranges: list[tuple[int, int, int]]) -> Known:
    """A range (start, stop, step) of each axis."""
    if all(r == (0, size, 1) for r, size in zip(ranges, t.flat.shape(x), strict=True)):
        return x
    starts, stops, steps = zip(*ranges, strict=True)
    return t.flat.op(node.name, Slice(starts, stops, steps if set(steps) != {1} else ()), x)


def split(t: Translator, node: OnnxNode) -> None:
    """`Split`."""
    x = t.need(node, 0)
    shape = t.flat.shape(x)
    axis = int(number(node.attributes, "axis", 0)) % len(shape)
    parts = len(node.outputs)
    sizes = t.numbers(node, 1, "split") or [-(-shape[axis] // parts)] * (parts - 1)
    sizes = [*sizes, shape[axis] - sum(sizes)][:parts]
    at = 0
    for name, size in zip(node.outputs, sizes, strict=True):
        ranges = [(0, s, 1) for s in shape]
        ranges[axis] = (at, at + size, 1)
        known = x[tuple(slice(*r) for r in ranges)] if isinstance(x, np.ndarray) else cut(t, node, x, ranges)
        t.env[name] = known
        at += size


def gather(t: Translator, node: OnnxNode) -> Known:
    """`Gather`: rows of a weight by given indices, or known positions of anything."""
    x, index = t.need(node, 0), t.need(node, 1)
    shape = t.flat.shape(x)
    axis = int(number(node.attributes, "axis", 0)) % len(shape)
    if isinstance(x, np.ndarray) and isinstance(index, np.ndarray):
        return np.asarray(np.take(x, index, axis))
    if isinstance(x, Ref) and t.flat.values[x.name].kind == "weight" and axis == 0 and len(shape) == 2:
        lead = t.flat.logical.get(index.name, t.flat.shape(index)) if isinstance(index, Ref) else index.shape
        ids = t.flat.ref(index if isinstance(index, Ref) else index.reshape(-1), "int32")
        return t.flat.reshape(node.name, t.flat.op(node.name, Embedding(), ids, x), (*lead, shape[1]))
    if not isinstance(index, np.ndarray) or index.size != 1 or not isinstance(x, Ref):
        raise CannotTranslateError("of more than one position")
    at = int(index.reshape(())) % shape[axis]
    if axis == 1 and len(shape) == 3 and not index.shape:  # a token of each sequence
        return t.flat.token(node.name, x, at)
    ranges = [(0, s, 1) for s in shape]
    ranges[axis] = (at, at + 1, 1)
    return t.flat.reshape(
        node.name, cut(t, node, x, ranges), (*shape[:axis], *index.shape, *shape[axis + 1 :])
    )


def pad(t: Translator, node: OnnxNode) -> Known:
    """`Pad` with a constant."""
    x, pads = t.ref(node, 0), t.numbers(node, 1, "pads") or []
    if node.attributes.get("mode", "constant") != "constant":
        raise CannotTranslateError(f"mode {node.attributes['mode']}")
    value = t.array(node, 2) if len(node.inputs) > 2 else None
    rank = len(t.flat.shape(x))
    fill = number(node.attributes, "value", 0.0) if value is None else float(value.reshape(()))
    return t.flat.op(node.name, Pad(tuple(pads[:rank]), tuple(pads[rank:]), fill), x)
