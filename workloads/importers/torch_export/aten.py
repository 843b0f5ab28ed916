"""ATen operators -> general ops. One function for each; `OPERATORS` lists them."""

from __future__ import annotations

from math import prod
from typing import cast

import numpy as np

from compiler.ops import (
    Binary,
    Concat,
    Conv2d,
    Embedding,
    Expand,
    GlobalAvgPool,
    GroupNorm,
    LayerNorm,
    Linear,
    Pad,
    Pool2d,
    Reduce,
    Select,
    Slice,
    Softmax,
    TakeRows,
)
from workloads.errors import WorkloadError
from workloads.importers.flat import Known, Ref
from workloads.importers.raising.activations import activation
from workloads.importers.raising.heads import attention
from workloads.importers.raising.norms import rms_norm
from workloads.importers.raising.tokens import assembled
from workloads.importers.torch_export.caches import grown_cache, index_put
from workloads.importers.torch_export.reader import Call, Name
from workloads.importers.torch_export.translator import Translation, Translator


def _same(t: Translator, call: Call) -> Known:
    """Copies and aliases."""
    return t.value(_first(call))


def _first(call: Call) -> object:
    return next(iter(call.args.values()))


def _unary(func: str) -> Translation:
    return lambda t, call: t.flat.unary(call.name, func, t.value(_first(call)))


def _binary(func: str, numpy: str) -> Translation:
    def translate(t: Translator, call: Call) -> Known:
        lhs, rhs = (t.value(call.args[key]) for key in ("self", "other"))
        if call.args.get("alpha", 1) != 1:
            rhs = t.flat.binary(f"{call.name}.alpha", "mul", rhs, cast("float", call.args["alpha"]))
        if isinstance(lhs, np.ndarray) and isinstance(rhs, np.ndarray):
            return np.asarray(getattr(np, numpy)(lhs, rhs))
        return t.flat.binary(call.name, func, lhs, rhs)

    return translate


def _add(t: Translator, call: Call) -> Known:
    lhs, rhs = (t.value(call.args[key]) for key in ("self", "other"))
    for x, other in ((lhs, rhs), (rhs, lhs)):
        tokens = assembled(t.flat, call.name, x, other)
        if tokens is not None:
            return tokens
    return _binary("add", "add")(t, call)


def _mul(t: Translator, call: Call) -> Known:
    lhs, rhs = (t.value(call.args[key]) for key in ("self", "other"))
    for gain, y in ((lhs, rhs), (rhs, lhs)):
        normed = rms_norm(t.flat, call.name, gain, y)
        if normed is not None:
            return normed
    raised = activation(t.flat, call.name, lhs, rhs)
    return _binary("mul", "multiply")(t, call) if raised is None else raised


def _pow(t: Translator, call: Call) -> Known:
    x, exponent = t.value(call.args["self"]), call.args["exponent"]
    if exponent == 2:
        return t.flat.unary(call.name, "square", x)
    return t.flat.binary(call.name, "pow", x, t.value(exponent))


def _rsqrt_like(t: Translator, call: Call) -> Known:
    return t.flat.unary(call.name, "rsqrt", t.value(_first(call)))


def _cast(t: Translator, call: Call) -> Known:
    x = t.value(_first(call))
    if isinstance(x, np.ndarray):
        return x.astype(bool) if t.program.dtypes[call.outputs[0]] == "bool" else x
    return t.flat.cast(call.name, t.flat.numbers(x), t.dtype(call))


def _arange(t: Translator, call: Call) -> Known:
    start, end = cast("int", call.args.get("start", 0)), cast("int", call.args["end"])
    return np.arange(start, end, cast("int", call.args.get("step", 1)))


def _full(t: Translator, call: Call) -> Known:
    shape = t.shape(call)
    value = call.args.get("fill_value", call.args.get("s", 1))
    return np.full(shape, cast("float", value))


def _view(t: Translator, call: Call) -> Known:
    return t.flat.reshape(call.name, t.value(_first(call)), t.shape(call))


def _permute(t: Translator, call: Call) -> Known:
    x = t.value(call.args["self"])
    rank = len(t.flat.shape(x))
    return t.flat.permute(call.name, x, [axis % rank for axis in cast("list[int]", call.args["dims"])])


def _transpose(t: Translator, call: Call) -> Known:
    x = t.value(call.args["self"])
    order = list(range(len(t.flat.shape(x))))
    a, b = (cast("int", call.args[key]) % len(order) for key in ("dim0", "dim1"))
    order[a], order[b] = order[b], order[a]
    return t.flat.permute(call.name, x, order)


def _expand(t: Translator, call: Call) -> Known:
    x, shape = t.value(call.args["self"]), t.shape(call)
    if isinstance(x, np.ndarray):
        return np.broadcast_to(x, shape)
    if prod(shape) == prod(t.flat.shape(x)):
        return t.flat.reshape(call.name, x, shape)
    return t.flat.op(call.name, Expand(shape), x)


def _repeat(t: Translator, call: Call) -> Known:
    x = t.value(call.args["self"])
    if isinstance(x, np.ndarray):
        return np.tile(x, cast("list[int]", call.args["repeats"]))
    return _expand(t, call)


def _slice(t: Translator, call: Call) -> Known:
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


def _select(t: Translator, call: Call) -> Known:
    x, dim = t.value(call.args["self"]), cast("int", call.args["dim"])
    shape = t.flat.shape(x)
    dim, index = dim % len(shape), cast("int", call.args["index"]) % shape[dim]
    if isinstance(x, np.ndarray):
        return np.asarray(x.take(index, dim))
    if dim == 1 and len(shape) == 3:  # a token of each sequence
        rows = t.flat.reshape("rows", x, (shape[0] * shape[1], shape[2]))
        assert isinstance(rows, Ref)
        return t.flat.op(call.name, TakeRows(shape[1], index), rows)
    return t.flat.reshape(call.name, cut(t, call.name, x, dim, index, index + 1), t.shape(call))


def _split(t: Translator, call: Call) -> Known:
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


def _cat(t: Translator, call: Call) -> Known:
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


def _mean(func: str) -> Translation:
    def translate(t: Translator, call: Call) -> Known:
        x = t.value(call.args["self"])
        shape = t.flat.shape(x)
        dims = call.args.get("dim")
        wanted = cast(
            "list[int]",
            dims if isinstance(dims, list) else list(range(len(shape))) if dims is None else [dims],
        )
        axes = tuple(sorted(axis % len(shape) for axis in wanted))
        if isinstance(x, np.ndarray):
            return np.asarray(getattr(x, {"add": "sum"}.get(func, func))(axis=axes)).reshape(t.shape(call))
        return t.flat.reshape(call.name, t.flat.op(call.name, Reduce(func, axes), x), t.shape(call))

    return translate


def _softmax(t: Translator, call: Call) -> Known:
    x = t.ref(call.args["self"])
    rank = len(t.flat.shape(x))
    if cast("int", call.args["dim"]) % rank != rank - 1:
        raise WorkloadError(
            f"{t.flat.name}: {call.name}: softmax over axis {call.args['dim']}, want the last"
        )
    return t.flat.op(call.name, Softmax(), x)


def _linear(t: Translator, call: Call) -> Known:
    x, weight = t.value(call.args["input"]), cast("Name", call.args["weight"])
    shape, dtype = t.flat.shape(x), t.dtype(call)
    rows = t.flat.ref(t.flat.reshape("rows", x, (prod(shape[:-1]), shape[-1])), dtype)
    y = t.flat.op(call.name, Linear(), rows, t.weight(weight.name, "T"))
    bias = call.args.get("bias")
    if isinstance(bias, Name):
        y = t.flat.op(f"{call.name}.bias", Binary("add"), y, t.weight(bias.name))
    return t.flat.reshape(call.name, y, t.shape(call))


def _embedding(t: Translator, call: Call) -> Known:
    indices = t.value(call.args["indices"])
    shape = t.shape(call)
    ids = t.flat.ref(t.flat.reshape("ids", indices, (prod(shape[:-1]),)), "int32")
    table = t.weight(cast("Name", call.args["weight"]).name)
    return t.flat.reshape(call.name, t.flat.op(call.name, Embedding(), ids, table), shape)


def _layer_norm(t: Translator, call: Call) -> Known:
    x, shape = t.value(call.args["input"]), t.shape(call)
    features = shape[-1]
    rows = t.flat.ref(t.flat.reshape("rows", x, (prod(shape[:-1]), features)), t.dtype(call))
    gain, beta = call.args.get("weight"), call.args.get("bias")
    dtype = t.dtype(call)
    scale = (
        t.weight(gain.name) if isinstance(gain, Name) else t.flat.ref(np.ones(features, np.float32), dtype)
    )
    shift = (
        t.weight(beta.name) if isinstance(beta, Name) else t.flat.ref(np.zeros(features, np.float32), dtype)
    )
    op = LayerNorm(cast("float", call.args.get("eps", 1e-5)))
    return t.flat.reshape(call.name, t.flat.op(call.name, op, rows, scale, shift), shape)


def _gelu(t: Translator, call: Call) -> Known:
    func = "gelu" if call.args.get("approximate") == "tanh" else "gelu_erf"
    return t.flat.unary(call.name, func, t.value(call.args["self"]))


def _attention(t: Translator, call: Call) -> Known:
    q, k, v = (t.ref(call.args[key]) for key in ("query", "key", "value"))
    mask = call.args.get("attn_mask")
    known = t.value(mask) if isinstance(mask, Name) else None
    scale = cast("float | None", call.args.get("scale")) or t.flat.shape(q)[3] ** -0.5
    return attention(t.flat, call.name, q, k, v, known, scale, bool(call.args.get("is_causal")))


def _pair(value: object, default: int) -> tuple[int, int]:
    items = cast("list[int]", value) if isinstance(value, list) else [default, default]
    return (items[0], items[-1])


def _conv2d(t: Translator, call: Call) -> Known:
    x, weight = t.ref(call.args["input"]), cast("Name", call.args["weight"])
    strides, pads = _pair(call.args.get("stride"), 1), _pair(call.args.get("padding"), 0)
    dilation = _pair(call.args.get("dilation"), 1)
    if strides[0] != strides[1] or pads[0] != pads[1] or dilation != (1, 1):
        got = f"stride {strides}, padding {pads}, dilation {dilation}"
        raise WorkloadError(f"{t.flat.name}: {call.name}: got {got}, want square ones without dilation")
    bias = call.args.get("bias")
    op = Conv2d(strides[0], pads[0], cast("int", call.args.get("groups", 1)), bias=isinstance(bias, Name))
    operands = [t.weight(bias.name)] if isinstance(bias, Name) else []
    return t.flat.op(call.name, op, x, t.weight(weight.name), *operands)


def _conv1d(t: Translator, call: Call) -> Known:
    """A convolution of images one row high; padding comes first, for that of images is square."""
    x, weight = t.ref(call.args["input"]), cast("Name", call.args["weight"])
    n, c, length = t.flat.shape(x)
    padding = _pair(call.args.get("padding"), 0)[0]
    image = t.flat.reshape(f"{call.name}.image", x, (n, c, 1, length))
    assert isinstance(image, Ref)
    if padding:
        image = t.flat.op(f"{call.name}.pad", Pad((0, 0, 0, padding), (0, 0, 0, padding)), image)
    filters = t.weight(weight.name)
    k, channels, taps = t.flat.shape(filters)
    bias = call.args.get("bias")
    stride, groups = _pair(call.args.get("stride"), 1)[0], cast("int", call.args.get("groups", 1))
    op = Conv2d(stride, 0, groups, bias=isinstance(bias, Name))
    operands = [t.weight(bias.name)] if isinstance(bias, Name) else []
    y = t.flat.op(call.name, op, image, t.flat.restated(filters, (k, channels, 1, taps)), *operands)
    return t.flat.reshape(call.name, y, t.shape(call))


def _dse_attention(t: Translator, call: Call) -> Known:
    """`dse::attention`: one op for attention, [batch, seq, heads, head_dim] out; see docs/models.md."""
    for key, plain in (("window", 0), ("softcap", 0.0)):
        if call.args.get(key, plain) not in (plain, None):
            raise WorkloadError(f"{t.flat.name}: {call.name}: {key} {call.args[key]} is not translated yet")
    q, k, v = (t.ref(call.args[key]) for key in ("q", "k", "v"))
    mask = call.args.get("mask")
    known = t.value(mask) if isinstance(mask, Name) else None
    scale = cast("float | None", call.args.get("scale")) or t.flat.shape(q)[3] ** -0.5
    y = attention(t.flat, call.name, q, k, v, known, scale, bool(call.args.get("causal")))
    return t.flat.permute(call.name, y, (0, 2, 1, 3))


def _batch_norm(t: Translator, call: Call) -> Known:
    """Folded into the convolution in front: its filters are scaled, and the shift becomes a bias."""
    x = t.ref(call.args["input"])
    made = t.flat.maker(x)
    if made is None or not isinstance(made.op, Conv2d) or made.op.bias:
        raise WorkloadError(
            f"{t.flat.name}: {call.name}: a batch norm that no convolution without bias precedes"
        )
    keys = ("weight", "bias", "running_mean", "running_var")
    names = [cast("Name", call.args[key]).name for key in keys]
    dotted = [t.program.parameters.get(n) or t.program.buffers[n] for n in names]
    arrays = [t.arrays.get(name) for name in dotted]
    filters = made.inputs[1]
    shift = t.flat.add(f"{dotted[1]}.folded", "weight", t.flat.shape(x)[1:2], t.dtype(call))
    if all(a is not None for a in arrays) and filters in t.flat.weights:
        gain, beta, mean, variance = (np.asarray(a, np.float32) for a in arrays)
        factor = gain / np.sqrt(variance + cast("float", call.args["eps"]))
        t.flat.weights[filters] = t.flat.weights[filters] * factor[:, None, None, None]
        t.flat.weights[shift.name] = beta - mean * factor
    op = Conv2d(made.op.stride, made.op.padding, made.op.groups, bias=True)
    return t.flat.op(call.name, op, Ref(made.inputs[0]), Ref(filters), shift)


def _group_norm(t: Translator, call: Call) -> Known:
    x, groups = t.ref(call.args["input"]), cast("int", call.args["num_groups"])
    shape, dtype = t.flat.shape(x), t.dtype(call)
    gain, beta = call.args.get("weight"), call.args.get("bias")
    ones, zeros = (np.full(shape[1], v, np.float32) for v in (1.0, 0.0))
    scale = t.weight(gain.name) if isinstance(gain, Name) else t.flat.ref(ones, dtype)
    shift = t.weight(beta.name) if isinstance(beta, Name) else t.flat.ref(zeros, dtype)
    image = x if len(shape) == 4 else t.flat.reshape("image", x, (*shape[:2], 1, prod(shape[2:])))
    assert isinstance(image, Ref)
    op = GroupNorm(groups, cast("float", call.args.get("eps", 1e-5)))
    return t.flat.reshape(call.name, t.flat.op(call.name, op, image, scale, shift), shape)


def _upsample(t: Translator, call: Call) -> Known:
    x, wanted = t.ref(call.args.get("input", call.args.get("self"))), t.shape(call)
    shape = t.flat.shape(x)
    factors = [w // n for w, n in zip(wanted, shape, strict=True)]
    if factors[:2] != [1, 1] or factors[2] != factors[3] or shape[2] * factors[2] != wanted[2]:
        raise WorkloadError(
            f"{t.flat.name}: {call.name}: {list(shape)} to {list(wanted)}, want a whole factor"
        )
    return t.flat.upsample(call.name, x, factors[2], factors[3])


def _max_pool(t: Translator, call: Call) -> Known:
    kernel = _pair(call.args["kernel_size"], 1)
    stride, padding = _pair(call.args.get("stride"), kernel[0]), _pair(call.args.get("padding"), 0)
    op = Pool2d("max", kernel=kernel[0], stride=stride[0], padding=padding[0])
    return t.flat.op(call.name, op, t.ref(call.args["self"]))


def _average_pool(t: Translator, call: Call) -> Known:
    if call.args["output_size"] != [1, 1]:
        raise WorkloadError(
            f"{t.flat.name}: {call.name}: got output_size {call.args['output_size']}, want [1, 1]"
        )
    return t.flat.reshape(
        call.name, t.flat.op(call.name, GlobalAvgPool(), t.ref(call.args["self"])), t.shape(call)
    )


def _where(t: Translator, call: Call) -> Known:
    cond, lhs, rhs = (t.value(call.args[key]) for key in ("condition", "self", "other"))
    if all(isinstance(x, np.ndarray) for x in (cond, lhs, rhs)):
        return np.where(*(np.asarray(x) for x in (cond, lhs, rhs)))
    return t.flat.elementwise(call.name, Select(), cond, lhs, rhs)


def _known(func: str) -> Translation:
    """Operators that importing can only do on known arrays: masks and positions."""

    def translate(t: Translator, call: Call) -> Known:
        xs = [t.value(v) for v in call.args.values() if isinstance(v, (Name, int, float, bool))]
        arrays = [x for x in xs if isinstance(x, np.ndarray)]
        if len(arrays) < len(xs):
            shape = t.shape(call)
            return t.flat.opaque(call.target, call.name, shape, t.dtype(call) or "fp32")
        if func == "diff":
            return _diff(t, call, arrays[0])
        if func == "cumsum":
            return np.cumsum(arrays[0], axis=int(arrays[1]))
        return np.asarray(getattr(np, func)(*arrays))

    return translate


def _diff(t: Translator, call: Call, x: np.ndarray) -> Known:
    """Differences of neighbours, of a value put in front as well."""
    before, dim = call.args.get("prepend"), cast("int", call.args.get("dim", -1))
    given = t.value(before) if isinstance(before, Name) else None
    if isinstance(given, np.ndarray):
        x = np.concatenate([given, x], dim)
    return np.asarray(np.diff(x, axis=dim))


def _index(t: Translator, call: Call) -> Known:
    x = t.value(call.args["self"])
    indices = [
        t.value(i) if isinstance(i, Name) else slice(None) for i in cast("list[object]", call.args["indices"])
    ]
    if isinstance(x, Ref) and len(indices) == 1 and t.flat.values[x.name].kind == "weight":
        ids = (
            t.flat.ref(np.asarray(indices[0]).reshape(-1), "int32")
            if isinstance(indices[0], np.ndarray)
            else None
        )
        if ids is not None:
            return t.flat.reshape(call.name, t.flat.op(call.name, Embedding(), ids, x), t.shape(call))
    known = [i for i in indices if not isinstance(i, Ref)]
    if isinstance(x, np.ndarray) and len(known) == len(indices):
        return np.asarray(x[tuple(known)])
    return t.flat.opaque(call.target, call.name, t.shape(call), t.dtype(call) or "fp32")


OPERATORS: dict[str, Translation] = {
    **dict.fromkeys(("alias", "clone", "contiguous", "detach", "dropout", "lift_fresh_copy"), _same),
    **dict.fromkeys(("view", "reshape", "_unsafe_view", "unsqueeze", "squeeze", "flatten"), _view),
    **dict.fromkeys(("_to_copy", "to"), _cast),
    **{name: _unary(func) for name, func in {
        "neg": "negate", "relu": "relu", "silu": "silu", "sigmoid": "sigmoid", "tanh": "tanh", "exp": "exp",
        "cos": "cos", "sin": "sin",
        "rsqrt": "rsqrt", "sqrt": "sqrt", "reciprocal": "reciprocal", "abs": "abs",
        "log": "log", "erf": "erf", "square": "square", "softplus": "softplus",
    }.items()},
    **{name: _binary(func, numpy) for name, (func, numpy) in {
        "sub": ("sub", "subtract"), "div": ("div", "divide"), "maximum": ("max", "maximum"),
        "minimum": ("min", "minimum"),
    }.items()},
    "add": _add,
    "mul": _mul,
    "pow": _pow,
    **{name: _known(func) for name, func in {
        "le": "less_equal", "lt": "less", "ge": "greater_equal", "gt": "greater", "eq": "equal",
        "ne": "not_equal",
        "bitwise_and": "logical_and", "__and__": "logical_and", "logical_and": "logical_and",
        "bitwise_or": "logical_or", "bitwise_not": "logical_not", "logical_not": "logical_not",
        "cumsum": "cumsum", "diff": "diff",
    }.items()},
    "arange": _arange,
    **dict.fromkeys(("full", "full_like", "new_ones", "scalar_tensor", "ones", "zeros"), _full),
    "permute": _permute,
    "transpose": _transpose,
    "expand": _expand,
    "repeat": _repeat,
    "slice": _slice,
    "select": _select,
    "split_with_sizes": _split,
    "split": _split,
    "cat": _cat,
    "mean": _mean("mean"),
    "sum": _mean("add"),
    "amax": _mean("max"),
    "softmax": _softmax,
    "_softmax": _softmax,
    "linear": _linear,
    "embedding": _embedding,
    "layer_norm": _layer_norm,
    "group_norm": _group_norm,
    "upsample_nearest2d": _upsample,
    "gelu": _gelu,
    "scaled_dot_product_attention": _attention,
    "conv2d": _conv2d,
    "conv1d": _conv1d,
    "dse.attention": _dse_attention,
    "_native_batch_norm_legit_no_training": _batch_norm,
    "max_pool2d_with_indices": _max_pool,
    "max_pool2d": _max_pool,
    "adaptive_avg_pool2d": _average_pool,
    "where": _where,
    "index": _index,
    "index_put": index_put,
}  # fmt: skip
