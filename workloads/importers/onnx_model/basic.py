"""ONNX operators on shapes, constants and elements."""

from __future__ import annotations

from math import prod

import numpy as np

from compiler.ops import Concat, Embedding, Expand, Pad, Reduce, Select, Slice, Softmax, TakeRows
from compiler.ops.elementwise import OPERATIONS
from workloads.importers.flat import Known, Ref
from workloads.importers.onnx_model.reader import DTYPES, OnnxNode, int_list
from workloads.importers.onnx_model.translator import (
    FLOATS,
    CannotTranslateError,
    Translation,
    Translator,
    number,
)
from workloads.importers.raising.activations import activation
from workloads.importers.raising.norms import rms_norm
from workloads.importers.raising.tokens import assembled

SMALLEST_WEIGHT = 64  # elements from which a constant matrix is taken for a weight; assumed


def same(t: Translator, node: OnnxNode) -> Known:
    """The operand itself."""
    return t.need(node, 0)


def constant(t: Translator, node: OnnxNode) -> Known:
    """`Constant`, of any spelling."""
    for key in ("value", "value_float", "value_int", "value_floats", "value_ints"):
        if node.attributes.get(key) is not None:
            return _constant(t, node, np.asarray(node.attributes[key]))
    raise CannotTranslateError("no value")


def _constant(t: Translator, node: OnnxNode, array: np.ndarray) -> Known:
    """Matrices and filters among the constants are weights."""
    if array.dtype.kind != "f" or array.ndim not in (2, 4) or array.size < SMALLEST_WEIGHT:
        return array
    name = node.outputs[0]
    t.flat.weights[name] = array.astype(np.float32)
    return t.flat.add(name, "weight", array.shape, "fp32")


def constant_of_shape(t: Translator, node: OnnxNode) -> Known:
    """`ConstantOfShape`."""
    value = node.attributes.get("value")
    fill = np.float32(0.0) if value is None else np.asarray(value).reshape(-1)[0]
    return np.full(t.numbers(node, 0) or [], fill)


def shape_of(t: Translator, node: OnnxNode) -> Known:
    """`Shape`: known, for all sizes are."""
    x = t.need(node, 0)
    shape = t.flat.logical.get(x.name, t.flat.shape(x)) if isinstance(x, Ref) else x.shape
    start, end = node.attributes.get("start", 0), node.attributes.get("end")
    return np.asarray(shape[int_list(start)[0] : None if end is None else int_list(end)[0]], np.int64)


def unary(func: str, numpy: str = "") -> Translation:
    """A function of each element."""

    def translate(t: Translator, node: OnnxNode) -> Known:
        x = t.need(node, 0)
        if isinstance(x, np.ndarray) and numpy:
            return np.asarray(getattr(np, numpy)(x))
        return t.flat.unary(node.name, func, x)

    return translate


def binary(func: str, numpy: str) -> Translation:
    """A function of two operands."""

    return lambda t, node: _binary(t, node, func, numpy)


def _binary(t: Translator, node: OnnxNode, func: str, numpy: str) -> Known:
    lhs, rhs = t.need(node, 0), t.need(node, 1)
    if isinstance(lhs, np.ndarray) and isinstance(rhs, np.ndarray):
        if numpy == "divide" and lhs.dtype.kind in "iu":
            return np.asarray(lhs // rhs)
        return np.asarray(getattr(np, numpy)(lhs, rhs))
    _refuse_indices(t, lhs, rhs)
    return t.flat.binary(node.name, func, lhs, rhs)


def _refuse_indices(t: Translator, *xs: Known) -> None:
    if any(isinstance(x, Ref) and t.flat.type(x).dtype == "int32" for x in xs):
        raise CannotTranslateError("of indices that are given")


def add(t: Translator, node: OnnxNode) -> Known:
    """`Add`, or the tokens of an image with their positions."""
    lhs, rhs = t.need(node, 0), t.need(node, 1)
    for x, other in ((lhs, rhs), (rhs, lhs)):
        tokens = assembled(t.flat, node.name, x, other)
        if tokens is not None:
            return tokens
    return _binary(t, node, "add", "add")


def mul(t: Translator, node: OnnxNode) -> Known:
    """`Mul`, or the end of a norm."""
    lhs, rhs = t.need(node, 0), t.need(node, 1)
    for gain, y in ((lhs, rhs), (rhs, lhs)):
        normed = rms_norm(t.flat, node.name, gain, y)
        if normed is not None:
            return normed
    raised = activation(t.flat, node.name, lhs, rhs)
    return _binary(t, node, "mul", "multiply") if raised is None else raised


def power(t: Translator, node: OnnxNode) -> Known:
    """`Pow`."""
    exponent = t.array(node, 1)
    if exponent is not None and exponent.size == 1 and float(exponent.reshape(())) == 2.0:
        return t.flat.unary(node.name, "square", t.need(node, 0))
    return _binary(t, node, "pow", "power")


def is_nan(t: Translator, node: OnnxNode) -> Known:
    """`IsNaN`: no value of a program is; exporters guard rows that a mask hides wholly with it."""
    x = t.need(node, 0)
    return np.isnan(x) if isinstance(x, np.ndarray) else np.zeros((), bool)


def cumsum(t: Translator, node: OnnxNode) -> Known:
    """`CumSum` of known numbers."""
    x, axis = t.array(node, 0), t.array(node, 1)
    if x is None or axis is None:
        raise CannotTranslateError("of values")
    return np.cumsum(x, int(axis.reshape(())))


def gather_nd(t: Translator, node: OnnxNode) -> Known:
    """`GatherND` of known numbers."""
    x, at = t.array(node, 0), t.array(node, 1)
    if x is None or at is None or number(node.attributes, "batch_dims", 0):
        raise CannotTranslateError("of values")
    return np.asarray(x[tuple(np.moveaxis(at.astype(np.int64), -1, 0))])


def variadic(func: str, numpy: str) -> Translation:
    """`Max`, `Min`, `Sum` of any number of operands."""

    def translate(t: Translator, node: OnnxNode) -> Known:
        total = t.need(node, 0)
        for i in range(1, len(node.inputs)):
            other = t.need(node, i)
            if isinstance(total, np.ndarray) and isinstance(other, np.ndarray):
                total = np.asarray(getattr(np, numpy)(total, other))
            else:
                total = t.flat.binary(node.name, func, total, other)
        return total

    return translate


def comparison(numpy: str) -> Translation:
    """Comparisons and logic of what is known while importing."""

    def translate(t: Translator, node: OnnxNode) -> Known:
        xs = [t.need(node, i) for i in range(len(node.inputs))]
        known = [x for x in xs if isinstance(x, np.ndarray)]
        if len(known) == len(xs):
            return np.asarray(getattr(np, numpy)(*known))
        if numpy not in OPERATIONS or all(name in t.model.indices for name in node.outputs):
            raise CannotTranslateError("of values that are not known while importing")
        return t.flat.binary(node.name, numpy, *(t.flat.numbers(x) for x in xs))  # 1.0 or 0.0

    return translate


def cast(t: Translator, node: OnnxNode) -> Known:
    """`Cast` and `CastLike`."""
    x = t.need(node, 0)
    to = node.attributes.get("to")
    if to is None:
        like = t.need(node, 1)
        dtype = t.flat.type(like).dtype if isinstance(like, Ref) else "fp32"
    else:
        dtype = DTYPES.get(int_list(to)[0], "")
    if isinstance(x, np.ndarray):
        if dtype == "bool":
            return x.astype(bool)
        return (
            x.astype(np.int64)
            if dtype in ("int64", "int32")
            else x.astype(np.float32)
            if to is not None
            else x
        )
    if dtype not in FLOATS:
        if t.flat.type(x).dtype == "int32":
            return x
        raise CannotTranslateError(f"to {dtype}")
    return t.flat.cast(node.name, t.flat.numbers(x), FLOATS[dtype])


def clip(t: Translator, node: OnnxNode) -> Known:
    """`Clip`, `Relu6`."""
    x = t.need(node, 0)
    for func, i, key in (("max", 1, "min"), ("min", 2, "max")):
        bound = t.array(node, i) if i < len(node.inputs) else None
        value = number(node.attributes, key, np.nan) if bound is None else float(bound.reshape(()))
        if not np.isnan(value):
            x = t.flat.binary(f"{node.name}.{key}", func, x, value)
    return x


def hard_sigmoid(t: Translator, node: OnnxNode) -> Known:
    """`max(0, min(1, alpha x + beta))`."""
    alpha, beta = number(node.attributes, "alpha", 0.2), number(node.attributes, "beta", 0.5)
    return _hard(t, node, t.need(node, 0), alpha, beta)


def _hard(t: Translator, node: OnnxNode, x: Known, alpha: float, beta: float) -> Known:
    y = t.flat.binary(f"{node.name}.alpha", "mul", x, alpha)
    y = t.flat.binary(f"{node.name}.beta", "add", y, beta)
    return t.flat.binary(node.name, "max", t.flat.binary(f"{node.name}.one", "min", y, 1.0), 0.0)


def hard_swish(t: Translator, node: OnnxNode) -> Known:
    """`x * HardSigmoid(x, 1/6, 1/2)`."""
    x = t.need(node, 0)
    return t.flat.binary(f"{node.name}.mul", "mul", x, _hard(t, node, x, 1 / 6, 0.5))


def gelu(t: Translator, node: OnnxNode) -> Known:
    """`Gelu`, exact or by tanh."""
    func = "gelu" if node.attributes.get("approximate") == "tanh" else "gelu_erf"
    return t.flat.unary(node.name, func, t.need(node, 0))


def where(t: Translator, node: OnnxNode) -> Known:
    """`Where`."""
    cond, lhs, rhs = (t.need(node, i) for i in range(3))
    if all(isinstance(x, np.ndarray) for x in (cond, lhs, rhs)):
        return np.where(*(np.asarray(x) for x in (cond, lhs, rhs)))
    if isinstance(cond, np.ndarray) and cond.size == 1:
        chosen = lhs if cond.reshape(()) else rhs
        if t.flat.shape(chosen) == np.broadcast_shapes(*(t.flat.shape(x) for x in (cond, lhs, rhs))):
            return chosen
    _refuse_indices(t, cond)
    return t.flat.elementwise(node.name, Select(), cond, lhs, rhs)


# ---- shapes --------------------------------------------------------------------------------------


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
    _refuse_indices(t, x)
    shape = t.flat.shape(x)
    gone = [a % len(shape) for a in axes] if axes is not None else [i for i, s in enumerate(shape) if s == 1]
    return t.flat.reshape(node.name, x, [s for i, s in enumerate(shape) if i not in gone])


def transpose(t: Translator, node: OnnxNode) -> Known:
    """`Transpose`; a weight is stored the other way round in the first place."""
    x = t.need(node, 0)
    _refuse_indices(t, x)
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
    _refuse_indices(t, x)
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
    _refuse_indices(t, *xs)
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
    _refuse_indices(t, x)
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
        rows = t.flat.reshape("rows", x, (shape[0] * shape[1], shape[2]))
        assert isinstance(rows, Ref)
        return t.flat.op(node.name, TakeRows(shape[1], at), rows)
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


def reduce(func: str) -> Translation:
    """`ReduceMean`, `ReduceSum`, ... over neighbouring axes."""

    def translate(t: Translator, node: OnnxNode) -> Known:
        x = t.need(node, 0)
        shape = t.flat.shape(x)
        given = t.numbers(node, 1, "axes") or list(range(len(shape)))
        axes = sorted(a % len(shape) for a in given)
        keep = number(node.attributes, "keepdims", 1)
        if isinstance(x, np.ndarray):
            return np.asarray(
                getattr(np, {"add": "sum"}.get(func, func))(x, axis=tuple(axes), keepdims=bool(keep))
            )
        y: Known = x
        for axis in (
            axes if axes != list(range(axes[0], axes[0] + len(axes))) else [axes]
        ):  # one by one, or at once
            part = (axis,) if isinstance(axis, int) else tuple(axis)
            y = t.flat.op(node.name, Reduce(func, part), t.flat.ref(y, t.dtype(node)))
        return y if keep else t.flat.reshape(node.name, y, [s for i, s in enumerate(shape) if i not in axes])

    return translate


def softmax(t: Translator, node: OnnxNode) -> Known:
    """`Softmax` over the last axis."""
    x = t.ref(node, 0)
    rank = len(t.flat.shape(x))
    axis = int(number(node.attributes, "axis", 1 if t.model.opset < 13 else -1)) % rank
    if axis != rank - 1:
        raise CannotTranslateError(f"over axis {axis} of {rank}")
    return t.flat.op(node.name, Softmax(), x)


def range_(t: Translator, node: OnnxNode) -> Known:
    """`Range` of known numbers."""
    found = [t.array(node, i) for i in range(3)]
    bounds = [x.reshape(()).item() for x in found if x is not None]
    if len(bounds) < len(found):
        raise CannotTranslateError("of values")
    return np.arange(*bounds)
