"""ONNX operators on shapes, constants and elements."""

from __future__ import annotations

import numpy as np

from compiler.ops import Reduce, Select, Softmax
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
from workloads.importers.raising.steps import raised_product, raised_sum

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
    refuse_indices(t, lhs, rhs)
    return t.flat.binary(node.name, func, lhs, rhs)


def refuse_indices(t: Translator, *xs: Known) -> None:
    """Raise CannotTranslateError for whole numbers that only come with the inputs."""
    if any(isinstance(x, Ref) and t.flat.type(x).dtype == "int32" for x in xs):
        raise CannotTranslateError("of indices that are given")


def add(t: Translator, node: OnnxNode) -> Known:
    """`Add`, or the tokens of an image with their positions."""
    lhs, rhs = t.need(node, 0), t.need(node, 1)
    tokens = raised_sum(t.flat, node.name, lhs, rhs)
    return _binary(t, node, "add", "add") if tokens is None else tokens


def mul(t: Translator, node: OnnxNode) -> Known:
    """`Mul`, or the end of a norm."""
    lhs, rhs = t.need(node, 0), t.need(node, 1)
    raised = raised_product(t.flat, node.name, lhs, rhs)
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
    refuse_indices(t, cond)
    return t.flat.elementwise(node.name, Select(), cond, lhs, rhs)


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
