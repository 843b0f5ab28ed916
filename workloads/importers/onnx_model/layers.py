"""ONNX operators that do the work: products, convolutions, norms, attention."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from compiler.ops import Binary, Conv2d, GlobalAvgPool, LayerNorm, Linear, Pad, Pool2d, Reduce, RmsNorm, Slice
from workloads.importers.flat import Known, Ref
from workloads.importers.onnx_model.reader import OnnxNode, int_list
from workloads.importers.onnx_model.translator import CannotTranslateError, Translator, number
from workloads.importers.raising.heads import attention, attention_of


def matmul(t: Translator, node: OnnxNode) -> Known:
    """`MatMul`: a linear layer, the second product of an attention, or a stack of products."""
    lhs, rhs = t.need(node, 0), t.need(node, 1)
    if isinstance(lhs, np.ndarray) and isinstance(rhs, np.ndarray):
        return np.asarray(lhs @ rhs)
    right = t.flat.ref(rhs, t.dtype(node))
    if t.flat.values[right.name].kind == "weight" and len(t.flat.shape(right)) == 2:
        return linear(t, node, lhs, right)
    whole = attention_of(t.flat, node.name, lhs, right)
    if whole is not None:
        return whole
    left = t.flat.ref(lhs, t.dtype(node))
    if len(t.flat.shape(left)) < 2 or len(t.flat.shape(right)) < 2:
        raise CannotTranslateError("of a vector")
    return t.flat.matmul(node.name, left, right)


def linear(t: Translator, node: OnnxNode, x: Known, weight: Ref) -> Known:
    """Rows times a weight."""
    y = t.flat.op(node.name, Linear(), t.flat.rows(x, t.dtype(node)), weight)
    return t.flat.reshape(node.name, y, (*t.flat.shape(x)[:-1], t.flat.shape(weight)[1]))


def gemm(t: Translator, node: OnnxNode) -> Known:
    """`Gemm` with a weight on the right."""
    x, weight = t.ref(node, 0), t.ref(node, 1)
    if number(node.attributes, "transA", 0) or t.flat.values[weight.name].kind != "weight":
        raise CannotTranslateError("with a transposed left or a computed right operand")
    if number(node.attributes, "transB", 0):
        weight = t.flat.transposed(weight)
    y = t.flat.op(node.name, Linear(scale=number(node.attributes, "alpha", 1.0)), x, weight)
    if len(node.inputs) < 3 or not node.inputs[2]:
        return y
    return t.flat.elementwise(f"{node.name}.bias", Binary("add"), y, t.need(node, 2))


def layer_norm(t: Translator, node: OnnxNode) -> Known:
    """`LayerNormalization` over the last axis."""
    x = t.need(node, 0)
    shape = t.flat.shape(x)
    if int(number(node.attributes, "axis", -1)) % len(shape) != len(shape) - 1:
        raise CannotTranslateError("over more than the last axis")
    dtype = t.dtype(node)
    rows = t.flat.rows(x, dtype)
    gain = t.ref(node, 1, dtype)
    beta = t.value(node, 2) if len(node.inputs) > 2 else None
    shift = t.flat.ref(np.zeros(shape[-1], np.float32) if beta is None else beta, dtype)
    op = LayerNorm(number(node.attributes, "epsilon", 1e-5))
    return t.flat.reshape(node.name, t.flat.op(node.name, op, rows, gain, shift), shape)


def rms_norm(t: Translator, node: OnnxNode) -> Known:
    """`RMSNormalization` over the last axis."""
    x = t.need(node, 0)
    op = RmsNorm(number(node.attributes, "epsilon", 1e-5))
    y = t.flat.op(node.name, op, t.flat.rows(x, t.dtype(node)), t.ref(node, 1))
    return t.flat.reshape(node.name, y, t.flat.shape(x))


def attention_node(t: Translator, node: OnnxNode) -> Known:
    """`Attention` of opset 23, without a past."""
    q, k, v = (t.ref(node, i) for i in range(3))
    if len(node.inputs) > 4 and any(node.inputs[4:]):
        raise CannotTranslateError("with past keys")
    if number(node.attributes, "softcap", 0.0):
        raise CannotTranslateError("with a soft cap")
    rank = len(t.flat.shape(q))
    if rank == 3:
        counts = [int(number(node.attributes, key, 0)) for key in ("q_num_heads", "kv_num_heads")]
        q, k, v = (
            _cut_heads(t, x, n) for x, n in zip((q, k, v), (counts[0], counts[1], counts[1]), strict=True)
        )
    scale = number(node.attributes, "scale", 0.0) or t.flat.shape(q)[3] ** -0.5
    mask = t.value(node, 3) if len(node.inputs) > 3 else None
    y = attention(t.flat, node.name, q, k, v, mask, scale, bool(number(node.attributes, "is_causal", 0)))
    if rank == 4:
        return y
    batch, heads, seq, width = t.flat.shape(y)
    return t.flat.reshape(node.name, t.flat.permute(node.name, y, (0, 2, 1, 3)), (batch, seq, heads * width))


def _cut_heads(t: Translator, x: Ref, heads: int) -> Ref:
    batch, seq, width = t.flat.shape(x)
    turned = t.flat.permute(
        "heads", t.flat.reshape("cut", x, (batch, seq, heads, width // heads)), (0, 2, 1, 3)
    )
    assert isinstance(turned, Ref)
    return turned


# ---- images --------------------------------------------------------------------------------------


def conv(t: Translator, node: OnnxNode) -> Known:
    """`Conv` of images or, as images one row high, of sequences."""
    x, weight = t.ref(node, 0), t.ref(node, 1)
    shape, taps = t.flat.shape(x), t.flat.shape(weight)
    strides = int_list(node.attributes.get("strides") or [1] * (len(shape) - 2))
    if any(d != 1 for d in int_list(node.attributes.get("dilations") or [1])):
        raise CannotTranslateError(f"dilations {node.attributes['dilations']}")
    if len(shape) not in (3, 4):
        raise CannotTranslateError(f"of {len(shape) - 2} axes")
    pads = _pads(node, shape[2:], taps[2:], strides)
    if len(shape) == 3:
        image = t.flat.reshape("image", x, (*shape[:2], 1, shape[2]))
        assert isinstance(image, Ref)
        x, weight = image, t.flat.restated(weight, (*taps[:2], 1, taps[2]))
        pads = [0, pads[0], 0, pads[1]]
    x, padding = padded(t, node, x, pads)
    bias = t.value(node, 2) if len(node.inputs) > 2 else None
    step = min(strides)  # NOTE: with unequal steps the smaller one is taken, and what is too much cut away
    op = Conv2d(step, padding, int(number(node.attributes, "group", 1)), bias=bias is not None)
    operands = [] if bias is None else [t.flat.ref(bias, t.dtype(node))]
    y = t.flat.op(node.name, op, x, weight, *operands)
    if len(set(strides)) > 1:
        return _every(t, node, y, [stride // step for stride in strides])
    if len(shape) == 4:
        return y
    n, k, _, length = t.flat.shape(y)
    return t.flat.reshape(node.name, y, (n, k, length))


def _every(t: Translator, node: OnnxNode, x: Ref, steps: list[int]) -> Known:
    """Only every so many rows and columns."""
    sizes = t.flat.shape(x)
    return t.flat.op(f"{node.name}.every", Slice((0, 0, 0, 0), sizes, (1, 1, *steps)), x)


def _pads(node: OnnxNode, sizes: tuple[int, ...], taps: tuple[int, ...], strides: list[int]) -> list[int]:
    """Zeros in front of each axis, then behind each."""
    auto = node.attributes.get("auto_pad", "NOTSET")
    if auto in ("NOTSET", "", None):
        return int_list(node.attributes.get("pads") or [0] * (2 * len(sizes)))
    if auto == "VALID":
        return [0] * (2 * len(sizes))
    totals = [max(0, (-(-n // s) - 1) * s + k - n) for n, k, s in zip(sizes, taps, strides, strict=True)]
    halves = [total // 2 for total in totals]
    rests = [total - half for total, half in zip(totals, halves, strict=True)]
    return [*halves, *rests] if auto == "SAME_UPPER" else [*rests, *halves]


def padded(t: Translator, node: OnnxNode, x: Ref, pads: list[int], value: float = 0.0) -> tuple[Ref, int]:
    """`x` and the padding that is left to the op: all if it is the same on all sides, else none."""
    if len(set(pads)) == 1:
        return x, pads[0]
    half = len(pads) // 2
    op = Pad((0, 0, *pads[:half]), (0, 0, *pads[half:]), value)
    return t.flat.op(f"{node.name}.pad", op, x), 0


def batch_norm(t: Translator, node: OnnxNode) -> Known:
    """`BatchNormalization`: folded into the convolution in front, or a scale and a shift a channel."""
    x = t.ref(node, 0)
    arrays = [_data(t, t.need(node, i)) for i in range(1, 5)]
    made = t.flat.maker(x)
    folds = made is not None and isinstance(made.op, Conv2d) and made.op.activation is None
    gain = beta = mean = variance = None
    known = all(a is not None for a in arrays)
    if known:
        gain, beta, mean, variance = (np.asarray(a, np.float32) for a in arrays)
        factor = gain / np.sqrt(variance + number(node.attributes, "epsilon", 1e-5))
        shift = beta - mean * factor
    if folds and made is not None and isinstance(made.op, Conv2d):
        return _folded(t, node, x, (factor, shift) if known else None)
    if not known:
        raise CannotTranslateError("without data, and no convolution in front")
    lanes = (1, -1, *(1,) * (len(t.flat.shape(x)) - 2))
    scaled = t.flat.elementwise(f"{node.name}.scale", Binary("mul"), x, factor.reshape(lanes))
    return t.flat.elementwise(node.name, Binary("add"), scaled, shift.reshape(lanes))


def _data(t: Translator, x: Known) -> np.ndarray | None:
    return x if isinstance(x, np.ndarray) else t.flat.weights.get(x.name)


def _folded(t: Translator, node: OnnxNode, x: Ref, terms: tuple[np.ndarray, np.ndarray] | None) -> Known:
    """The convolution with scaled filters and the shift in its bias."""
    made = t.flat.makers[x.name]
    assert isinstance(made.op, Conv2d)
    filters, size = Ref(made.inputs[1]), t.flat.shape(x)[1]
    dtype = t.flat.type(filters).dtype
    names = [f"{node.name}.{part}" for part in ("filters", "shift")]
    scaled = t.flat.add(names[0], "weight", t.flat.shape(filters), dtype)
    bias = t.flat.add(names[1], "weight", (size,), dtype)
    if terms is not None and filters.name in t.flat.weights:
        factor, shift = terms
        old = t.flat.weights.get(made.inputs[2], 0.0) if made.op.bias else 0.0
        t.flat.weights[names[0]] = t.flat.weights[filters.name] * factor[:, None, None, None]
        t.flat.weights[names[1]] = shift + np.asarray(old) * factor
    return t.flat.op(node.name, replace(made.op, bias=True), Ref(made.inputs[0]), scaled, bias)


def pool(func: str):  # type: ignore[no-untyped-def]
    """`MaxPool` and `AveragePool` with square windows."""

    def translate(t: Translator, node: OnnxNode) -> Known:
        x = t.ref(node, 0)
        shape = t.flat.shape(x)
        kernel = int_list(node.attributes.get("kernel_shape") or [1])
        strides = int_list(node.attributes.get("strides") or kernel)
        pads = _pads(node, shape[2:], tuple(kernel), strides)
        if kernel == strides and not any(pads) and len(set(kernel)) > 1 and len(shape) == 4:
            return _side_by_side(t, node, x, kernel, func)
        if len(set(kernel)) > 1 or len(set(strides)) > 1 or len(shape) != 4:
            raise CannotTranslateError(f"kernel {kernel}, strides {strides}")
        if number(node.attributes, "ceil_mode", 0) or (func == "mean" and any(pads)):
            raise CannotTranslateError("with ceil_mode or padded means")
        x, padding = padded(t, node, x, pads, -3.0e38)
        return t.flat.op(node.name, Pool2d(func, kernel[0], strides[0], padding), x)

    return translate


def _side_by_side(t: Translator, node: OnnxNode, x: Ref, kernel: list[int], func: str) -> Known:
    """Windows that lie side by side: reductions over two axes of their own."""
    n, c, h, w = t.flat.shape(x)
    rows, columns = h // kernel[0], w // kernel[1]
    whole = (n, c, rows * kernel[0], columns * kernel[1])
    if whole != (n, c, h, w):
        x = t.flat.op(f"{node.name}.whole", Slice((0, 0, 0, 0), whole), x)
    y = t.flat.reshape(node.name, x, (n, c, rows, kernel[0], columns, kernel[1]))
    for axis in (5, 3):
        assert isinstance(y, Ref)
        y = t.flat.op(node.name, Reduce(func, (axis,)), y)
    return t.flat.reshape(node.name, y, (n, c, rows, columns))


def global_average(t: Translator, node: OnnxNode) -> Known:
    """`GlobalAveragePool`."""
    x = t.ref(node, 0)
    shape = t.flat.shape(x)
    if len(shape) != 4:
        axes = tuple(range(2, len(shape)))
        return t.flat.op(node.name, Reduce("mean", axes), x)
    return t.flat.reshape(node.name, t.flat.op(node.name, GlobalAvgPool(), x), (*shape[:2], 1, 1))


def global_max(t: Translator, node: OnnxNode) -> Known:
    """`GlobalMaxPool`."""
    x = t.ref(node, 0)
    return t.flat.op(node.name, Reduce("max", tuple(range(2, len(t.flat.shape(x))))), x)


def resize(t: Translator, node: OnnxNode) -> Known:
    """`Resize` and `Upsample` of images by whole factors to the nearest pixel."""
    x = t.ref(node, 0)
    shape = t.flat.shape(x)
    scales = t.array(node, 2 if node.kind == "Resize" else 1)
    sizes = t.numbers(node, 3) if len(node.inputs) > 3 else None
    wanted = sizes or [
        round(float(f) * n) for f, n in zip([] if scales is None else scales, shape, strict=True)
    ]
    factors = [w // n for w, n in zip(wanted, shape, strict=True)]
    is_whole = all(f * n == w for f, n, w in zip(factors, shape, wanted, strict=True))
    is_image = len(shape) == 4 and factors[:2] == [1, 1]
    if node.attributes.get("mode", "nearest") != "nearest" or not is_whole or not is_image:
        raise CannotTranslateError(f"mode {node.attributes.get('mode')}, {list(shape)} to {wanted}")
    return t.flat.upsample(node.name, x, factors[2], factors[3])


def conv_transpose(t: Translator, node: OnnxNode) -> Known:
    """`ConvTranspose` without overlaps: a 1x1 convolution to all pixels of each window, set side by side."""
    x, weight = t.ref(node, 0), t.ref(node, 1)
    c, k, r, s = t.flat.shape(weight)
    strides = int_list(node.attributes.get("strides") or [1, 1])
    plain = not any(int_list(node.attributes.get("pads") or [0])) and number(node.attributes, "group", 1) == 1
    if strides != [r, s] or not plain or any(int_list(node.attributes.get("output_padding") or [0])):
        raise CannotTranslateError(f"strides {strides} of a {r}x{s} window")
    name = f"{node.name}.filters"
    filters = t.flat.add(name, "weight", (k * r * s, c, 1, 1), t.flat.type(weight).dtype)
    if weight.name in t.flat.weights:
        t.flat.weights[name] = t.flat.weights[weight.name].reshape(c, k * r * s).T.reshape(k * r * s, c, 1, 1)
    pixels = t.flat.op(node.name, Conv2d(), x, filters)
    n, _, h, w = t.flat.shape(x)
    cut = t.flat.permute(node.name, t.flat.reshape(node.name, pixels, (n, k, r, s, h, w)), (0, 1, 4, 2, 5, 3))
    y = t.flat.reshape(node.name, cut, (n, k, h * r, w * s))
    if len(node.inputs) < 3 or not node.inputs[2]:
        return y
    bias = t.flat.restated(t.ref(node, 2), (1, k, 1, 1))
    return t.flat.elementwise(f"{node.name}.bias", Binary("add"), y, bias)
