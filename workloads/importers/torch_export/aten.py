"""ATen operators -> general ops. One function for each; `OPERATORS` lists them."""

from __future__ import annotations

from math import prod
from typing import cast

import numpy as np

from compiler.ops import (
    Binary,
    Embedding,
    LayerNorm,
    Linear,
    Reduce,
    Select,
    Softmax,
)
from workloads.errors import WorkloadError
from workloads.importers.flat import Known, Ref
from workloads.importers.raising.heads import attention
from workloads.importers.raising.steps import raised_product, raised_sum
from workloads.importers.torch_export import images, shapes
from workloads.importers.torch_export.caches import index_put
from workloads.importers.torch_export.reader import Call, Name
from workloads.importers.torch_export.translator import Translation, Translator


def _same(t: Translator, call: Call) -> Known:
    """Copies and aliases."""
    return t.value(shapes.first(call))


def _unary(func: str) -> Translation:
    return lambda t, call: t.flat.unary(call.name, func, t.value(shapes.first(call)))


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
    tokens = raised_sum(t.flat, call.name, lhs, rhs)
    return _binary("add", "add")(t, call) if tokens is None else tokens


def _mul(t: Translator, call: Call) -> Known:
    lhs, rhs = (t.value(call.args[key]) for key in ("self", "other"))
    raised = raised_product(t.flat, call.name, lhs, rhs)
    return _binary("mul", "multiply")(t, call) if raised is None else raised


def _pow(t: Translator, call: Call) -> Known:
    x, exponent = t.value(call.args["self"]), call.args["exponent"]
    if exponent == 2:
        return t.flat.unary(call.name, "square", x)
    return t.flat.binary(call.name, "pow", x, t.value(exponent))


def _cast(t: Translator, call: Call) -> Known:
    x = t.value(shapes.first(call))
    if isinstance(x, np.ndarray):
        return x.astype(bool) if t.program.dtypes[call.outputs[0]] == "bool" else x
    return t.flat.cast(call.name, t.flat.numbers(x), t.dtype(call))


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
    y = t.flat.op(call.name, Linear(), t.flat.rows(x, t.dtype(call)), t.weight(weight.name, "T"))
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
    shape, dtype = t.shape(call), t.dtype(call)
    features = shape[-1]
    rows = t.flat.rows(t.value(call.args["input"]), dtype)
    gain, beta = call.args.get("weight"), call.args.get("bias")
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
    **dict.fromkeys(("view", "reshape", "_unsafe_view", "unsqueeze", "squeeze", "flatten"), shapes.view),
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
    "arange": shapes.arange,
    **dict.fromkeys(("full", "full_like", "new_ones", "scalar_tensor", "ones", "zeros"), shapes.full),
    "permute": shapes.permute,
    "transpose": shapes.transpose,
    "expand": shapes.expand,
    "repeat": shapes.repeat,
    "slice": shapes.slice_,
    "select": shapes.select,
    "split_with_sizes": shapes.split,
    "split": shapes.split,
    "cat": shapes.cat,
    "mean": _mean("mean"),
    "sum": _mean("add"),
    "amax": _mean("max"),
    "softmax": _softmax,
    "_softmax": _softmax,
    "linear": _linear,
    "embedding": _embedding,
    "layer_norm": _layer_norm,
    "group_norm": images.group_norm,
    "upsample_nearest2d": images.upsample,
    "gelu": _gelu,
    "scaled_dot_product_attention": _attention,
    "conv2d": images.conv2d,
    "conv1d": images.conv1d,
    "dse.attention": _dse_attention,
    "_native_batch_norm_legit_no_training": images.batch_norm,
    "max_pool2d_with_indices": images.max_pool,
    "max_pool2d": images.max_pool,
    "adaptive_avg_pool2d": images.average_pool,
    "where": _where,
    "index": _index,
    "index_put": index_put,
}  # fmt: skip
