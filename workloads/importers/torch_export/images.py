"""ATen operators on images -> convolutions, pools and norms of channels."""

from __future__ import annotations

from math import prod
from typing import cast

import numpy as np

from compiler.ops import (
    Conv2d,
    GlobalAvgPool,
    GroupNorm,
    Pad,
    Pool2d,
)
from workloads.errors import WorkloadError
from workloads.importers.flat import Known, Ref
from workloads.importers.torch_export.reader import Call, Name
from workloads.importers.torch_export.translator import Translator


def _pair(value: object, default: int) -> tuple[int, int]:
    items = cast("list[int]", value) if isinstance(value, list) else [default, default]
    return (items[0], items[-1])


def conv2d(t: Translator, call: Call) -> Known:
    """A convolution, padded where torch pads."""
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


def conv1d(t: Translator, call: Call) -> Known:
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


def batch_norm(t: Translator, call: Call) -> Known:
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


def group_norm(t: Translator, call: Call) -> Known:
    """A norm of groups of channels."""
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


def upsample(t: Translator, call: Call) -> Known:
    """Nearest neighbours, by whole factors."""
    x, wanted = t.ref(call.args.get("input", call.args.get("self"))), t.shape(call)
    shape = t.flat.shape(x)
    factors = [w // n for w, n in zip(wanted, shape, strict=True)]
    if factors[:2] != [1, 1] or factors[2] != factors[3] or shape[2] * factors[2] != wanted[2]:
        raise WorkloadError(
            f"{t.flat.name}: {call.name}: {list(shape)} to {list(wanted)}, want a whole factor"
        )
    return t.flat.upsample(call.name, x, factors[2], factors[3])


def max_pool(t: Translator, call: Call) -> Known:
    """The maximum of each window."""
    kernel = _pair(call.args["kernel_size"], 1)
    stride, padding = _pair(call.args.get("stride"), kernel[0]), _pair(call.args.get("padding"), 0)
    op = Pool2d("max", kernel=kernel[0], stride=stride[0], padding=padding[0])
    return t.flat.op(call.name, op, t.ref(call.args["self"]))


def average_pool(t: Translator, call: Call) -> Known:
    """The mean over all pixels; other sizes are refused."""
    if call.args["output_size"] != [1, 1]:
        raise WorkloadError(
            f"{t.flat.name}: {call.name}: got output_size {call.args['output_size']}, want [1, 1]"
        )
    return t.flat.reshape(
        call.name, t.flat.op(call.name, GlobalAvgPool(), t.ref(call.args["self"])), t.shape(call)
    )
