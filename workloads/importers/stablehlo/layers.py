"""StableHLO operations that do the work: products, convolutions, gathers, caches."""

from __future__ import annotations

import re
from collections.abc import Sequence
from math import prod

import numpy as np

from compiler.ops import Conv2d, Embedding, Linear, Pad, Pool2d, Scalar
from workloads.importers.flat import Cache, Known, Ref
from workloads.importers.stablehlo.attention import over_values
from workloads.importers.stablehlo.reader import Operation, integers, pairs
from workloads.importers.stablehlo.translator import (
    CannotTranslateError,
    Held,
    Scores,
    Translation,
    Translator,
)

SMALLEST_WEIGHT = 64  # elements from which a constant operand of a product is taken for a weight; assumed


def dot_general(t: Translator, op: Operation) -> Held:
    """`dot_general`: a linear layer, an attention with its values, or a stack of products."""
    sides = t.given(op)
    batch, contracted = pairs(op.text, "batching_dims"), pairs(op.text, "contracting_dims")
    if any(t.is_index(x) for x in sides):
        raise CannotTranslateError("of whole numbers that are given")
    if all(x.array is not None for x in sides):
        raise CannotTranslateError("of two constants")
    if not contracted[0]:
        return _outer(t, op, sides, batch)
    if not batch[0]:
        for i in (1, 0):
            weight = _as_weight(t, sides[i])
            if weight is not None and (found := _linear(t, op, sides, i, weight, contracted)) is not None:
                return t.result(op, found)
    whole = over_values(t, op, sides, batch, contracted)
    if whole is not None:
        return t.result(op, whole)
    result = t.result(op, _product(t, op, sides, batch, contracted))
    if len(contracted[0]) == 1 and not any(t.is_weight(x) for x in sides):
        result.scores = _scores(sides, batch, contracted)
    return result


def _scores(
    sides: Sequence[Held], batch: tuple[list[int], list[int]], contracted: tuple[list[int], list[int]]
) -> Scores:
    labels: list[tuple[str, int] | None] = [("b", i) for i in range(len(batch[0]))]
    sizes = [sides[0].shape[i] for i in batch[0]]
    for letter, x, b, c in zip("lr", sides, batch, contracted, strict=True):
        labels += [(letter, i) for i in x.free(b, c)]
        sizes += [x.shape[i] for i in x.free(b, c)]
    shown = tuple(label if size > 1 else None for label, size in zip(labels, sizes, strict=True))
    ends = (contracted[0][0], contracted[1][0])
    return Scores((sides[0], sides[1]), (tuple(batch[0]), tuple(batch[1])), ends, shown)


def _as_weight(t: Translator, x: Held) -> Ref | None:
    """A weight, also one that is a constant of the text."""
    if x.array is not None and x.array.dtype.kind == "f" and x.array.size >= SMALLEST_WEIGHT:
        t._count += 1
        ref = t.flat.add(f"constant_{t._count}", "weight", x.shape, "fp32")
        t.flat.weights[ref.name] = np.broadcast_to(x.array, x.shape)
        return ref
    return x.known if t.is_weight(x) and isinstance(x.known, Ref) else None


def _linear(
    t: Translator,
    op: Operation,
    sides: Sequence[Held],
    which: int,
    weight: Ref,
    contracted: tuple[list[int], list[int]],
) -> Known | None:
    """Rows times a weight that is contracted over its first or last axes; it is operand `which`."""
    both = sorted(zip(contracted[which], contracted[1 - which], strict=True))
    mine, others = [m for m, _ in both], [o for _, o in both]
    shape, x = sides[which].shape, sides[1 - which]
    inner = prod(shape[i] for i in mine)
    if mine == list(range(len(mine))):
        matrix = t.restated(weight, (inner, prod(shape[len(mine) :])))
    elif mine == list(range(len(shape) - len(mine), len(shape))):
        matrix = t.flat.transposed(t.restated(weight, (prod(shape) // inner, inner)))
    else:
        return None
    free = x.free(others)
    turned = t.permuted("turned", t.whole(x), [*free, *others])
    dtype = t.flat.type(weight).dtype
    rows = t.flat.ref(t.flat.reshape("rows", turned, (prod(x.shape[i] for i in free), inner)), dtype)
    if t.flat.type(rows).dtype != dtype:
        cast = t.flat.cast("cast", rows, dtype)
        assert isinstance(cast, Ref)
        rows = cast
    out = {"f32": "fp32", "i32": "fp32", "bf16": "bf16"}.get(op.type.dtype)
    narrow = dtype in ("int8", "fp8e4", "fp8e5")  # products of these are not kept in their type
    y = t.flat.op(t.name(op), Linear(out_dtype=out if narrow else None), rows, matrix)
    ends = [shape[i] for i in sides[which].free(mine)]
    found = t.flat.reshape("out", y, [*(x.shape[i] for i in free), *ends] or [1])
    if which == 1 or not free:
        return found
    order = [*range(len(free), len(free) + len(ends)), *range(len(free))]
    return t.permuted("out", found, order)


def _outer(t: Translator, op: Operation, sides: Sequence[Held], batch: tuple[list[int], list[int]]) -> Held:
    """Nothing is contracted: a product of elements; by ones it is the other operand, its batch axes first."""
    for i in (0, 1):
        one, x = sides[i], sides[1 - i]
        if one.number == 1.0 and len(one.shape) == len(batch[i]):
            order = [*batch[1 - i], *x.free(batch[1 - i])]
            found = t.result(op, t.permuted(t.name(op), t.whole(x), order))
            if x.scores is not None:
                labels = tuple(x.scores.labels[j] for j in order)
                found.scores = Scores(
                    x.scores.sides, x.scores.batch, x.scores.contracted, labels,
                    x.scores.scale, x.scores.masks, x.scores.softmax,
                )  # fmt: skip
            return found
    free = [x.free(b) for x, b in zip(sides, batch, strict=True)]
    parts = []
    for i, (x, b) in enumerate(zip(sides, batch, strict=True)):
        turned = t.permuted("turned", t.whole(x), [*b, *free[i]])
        sizes = [x.shape[j] for j in free[i]]
        ends = [*sizes, *[1] * len(free[1])] if i == 0 else [*[1] * len(free[0]), *sizes]
        parts.append(t.flat.reshape("outer", turned, [*(x.shape[j] for j in b), *ends]))
    return t.result(op, t.flat.binary(t.name(op), "mul", parts[0], parts[1]))


def _product(
    t: Translator,
    op: Operation,
    sides: Sequence[Held],
    batch: tuple[list[int], list[int]],
    contracted: tuple[list[int], list[int]],
) -> Known:
    """[batch, m, k] x [batch, k, n]."""
    stacks = []
    for i, (x, b, c) in enumerate(zip(sides, batch, contracted, strict=True)):
        free = x.free(b, c)
        order = [*b, *free, *c] if i == 0 else [*b, *c, *free]
        turned = t.permuted("turned", t.whole(x), order)
        sizes = prod(x.shape[j] for j in free), prod(x.shape[j] for j in c)
        ends = sizes if i == 0 else sizes[::-1]
        stacks.append(t.flat.reshape("stack", turned, [*(x.shape[j] for j in b), *ends]))
    dtype = next(t.flat.type(x).dtype for x in stacks if isinstance(x, Ref))
    lhs, rhs = (t.flat.ref(t.flat.cast("cast", x, dtype), dtype) for x in stacks)
    return t.flat.reshape("out", t.flat.matmul(t.name(op), lhs, rhs), op.type.shape or (1,))


# ---- rows ----------------------------------------------------------------------------------------


def gather(t: Translator, op: Operation) -> Held:
    """`gather` of rows of a weight by given indices, or of known numbers."""
    table, ids = t.given(op)
    sizes = integers(op.text, "slice_sizes")
    rows = (
        integers(op.text, "start_index_map") == [0]
        and integers(op.text, "collapsed_slice_dims") == [0]
        and sizes == [1, *table.shape[1:]]
        and "batching_dims" not in op.text
    )
    last = integers(op.text, "offset_dims") == list(
        range(len(op.type.shape) - len(table.shape) + 1, len(op.type.shape))
    )
    if not rows or not last:
        raise CannotTranslateError("of more than rows of the first axis")
    if table.array is not None and ids.array is not None:
        whole = np.broadcast_to(table.array, table.shape)
        at = np.broadcast_to(ids.array, ids.shape).reshape(
            op.type.shape[: len(op.type.shape) - len(table.shape) + 1]
        )
        return t.result(op, whole[np.clip(at, 0, table.shape[0] - 1)])
    weight = _as_weight(t, table)
    if weight is None or len(table.shape) != 2:
        raise CannotTranslateError("of rows of values")
    known = ids.known if isinstance(ids.known, Ref) else np.broadcast_to(ids.known, ids.shape).reshape(-1)
    if isinstance(known, Ref) and not t.is_index(ids):
        raise CannotTranslateError("by computed indices")
    found = t.flat.op(t.name(op), Embedding(), t.flat.ref(known, "int32"), weight)
    return t.result(op, t.flat.reshape("rows", found, op.type.shape))


def dynamic_update_slice(t: Translator, op: Operation) -> Held:
    """`dynamic_update_slice` of a KV cache [batch, context, heads, head_dim] that is an argument."""
    cache, new, *starts = t.given(op)
    at = [s.number for s in starts]
    if any(n is None for n in at):
        raise CannotTranslateError("at positions that are not known while importing")
    if all(x.array is not None for x in (cache, new)):
        whole = np.array(np.broadcast_to(np.asarray(cache.array), cache.shape))
        whole[tuple(slice(int(a or 0), int(a or 0) + n) for a, n in zip(at, new.shape, strict=True))] = (
            new.array
        )
        return t.result(op, whole)
    axes = [i for i, (a, b) in enumerate(zip(cache.shape, new.shape, strict=True)) if a != b]
    is_input = isinstance(cache.known, Ref) and t.flat.values[cache.known.name].kind == "input"
    if (
        len(cache.shape) != 4
        or len(axes) != 1
        or axes[0] not in (1, 2)
        or not is_input
        or new.array is not None
    ):
        raise CannotTranslateError("of what is no cache that is given")
    axis, position = axes[0], int(at[axes[0]] or 0)
    if new.shape[axis] != 1:
        raise CannotTranslateError(f"of {new.shape[axis]} positions of a cache")
    if not 0 <= position < cache.shape[axis]:
        raise ValueError(f"got position {position}, want 0 to {cache.shape[axis] - 1}")
    name = t.name(op)
    ref = t.flat.add(f"{name}.updated", "input", cache.shape, t.flat.type(t.ref(new)).dtype)
    t.stands[ref.name] = name
    rows = new.known if axis == 1 else t.flat.permute("tokens", t.whole(new), (0, 2, 1, 3))
    batch, heads = cache.shape[0], cache.shape[3 - axis]
    flat_rows = t.flat.reshape("rows", rows, (batch, heads * cache.shape[3]))
    assert isinstance(flat_rows, Ref)
    assert isinstance(cache.known, Ref)
    shape = (batch, heads, cache.shape[axis], cache.shape[3])
    t.flat.caches[ref.name] = Cache(cache.known.name, flat_rows, position, shape)
    return t.result(op, ref)


# ---- images --------------------------------------------------------------------------------------


def convolution(t: Translator, op: Operation) -> Held:
    """`convolution` of two axes, in any order of axes."""
    x, weight = t.given(op)
    found = re.search(r"dim_numbers = \[([^\]]*)\]x\[([^\]]*)\]->\[([^\]]*)\]", op.text)
    if found is None or len(x.shape) != 4:
        raise CannotTranslateError(f"of {len(x.shape) - 2} axes")
    image, taps, out = ([n.strip() for n in part.split(",")] for part in found.groups())
    strides, pads = integers(op.text, "stride", (1, 1)), _pads(op.text)
    groups = (re.search(r"feature_group_count = (\d+)", op.text) or ["", "1"])[1]
    dilated = [*integers(op.text, "lhs_dilate"), *integers(op.text, "rhs_dilate")]
    if any(d != 1 for d in dilated) or len(set(strides)) > 1 or "batch_group_count = 1" not in op.text:
        raise CannotTranslateError(f"strides {strides}, dilations {dilated}")
    filters = _as_weight(t, weight)
    if filters is None:
        raise CannotTranslateError("by computed filters")
    wanted = _stored(t, filters, weight.shape, [taps.index(n) for n in ("o", "i", "0", "1")])
    pixels = _image(t, x, [image.index(n) for n in ("b", "f", "0", "1")])
    known = t.flat.ref(pixels, t.flat.type(wanted).dtype)
    padding = pads[0][0] if len({n for pair in pads for n in pair}) == 1 else 0
    if not padding and any(n for pair in pads for n in pair):
        low, high = zip(*pads, strict=True)
        known = t.flat.op(f"{t.name(op)}.pad", Pad((0, 0, *low), (0, 0, *high), 0.0), known)
    y = t.flat.op(t.name(op), Conv2d(strides[0], padding, int(groups)), known, wanted)
    order = [("b", "f", "0", "1").index(n) for n in out]
    return t.result(op, t.flat.permute("out", y, order))


def _image(t: Translator, x: Held, order: list[int]) -> Known:
    """[n, c, h, w]; an input is asked for in that order in the first place."""
    known = t.whole(x)
    is_input = isinstance(known, Ref) and t.flat.values[known.name].kind == "input"
    if not isinstance(known, Ref) or not is_input or order == [0, 1, 2, 3]:
        return t.flat.permute("image", known, order)
    name = f"{known.name}.nchw"
    if name not in t.flat.values:
        t.flat.add(name, "input", [x.shape[i] for i in order], t.flat.type(known).dtype)
    return Ref(name)


def _pads(text: str) -> list[tuple[int, int]]:
    found = re.search(r"pad(?:ding)? = (?:dense<)?\[(\[.*?\])\]", text)
    numbers = [int(n) for n in re.findall(r"-?\d+", found[1])] if found else [0, 0, 0, 0]
    return list(zip(numbers[::2], numbers[1::2], strict=True))


def _stored(t: Translator, weight: Ref, shape: tuple[int, ...], order: list[int]) -> Ref:
    """Filters stored as [k, c, h, w] in the first place."""
    if order == [0, 1, 2, 3]:
        return weight
    name = f"{weight.name}.filters"
    if name not in t.flat.values:
        t.flat.add(name, "weight", [shape[i] for i in order], t.flat.type(weight).dtype)
        if weight.name in t.flat.weights:
            t.flat.weights[name] = t.flat.weights[weight.name].transpose(order)
    return Ref(name)


def reduce_window(t: Translator, op: Operation) -> Held:
    """`reduce_window` of square windows of an image: pools."""
    x = t.given(op)[0]
    inner = op.regions[0].operations[0].kind.removeprefix("stablehlo.") if op.regions else ""
    window, strides = integers(op.text, "window_dimensions"), integers(op.text, "window_strides")
    channels = next((i for i in (1, 3) if len(window) == 4 and window[0] == window[i] == 1), None)
    if channels is None or inner not in ("maximum", "add") or x.array is not None:
        raise CannotTranslateError(f"window {window} of {inner}")
    axes = [i for i in range(1, 4) if i != channels]
    found = re.search(r"padding = dense<(\[.*?\]\]|\d+)>", op.text)
    numbers = [int(n) for n in re.findall(r"\d+", found[1])] if found else [0]
    sides = np.broadcast_to(np.asarray(numbers).reshape(-1, 2) if len(numbers) > 1 else numbers[0], (4, 2))[
        axes
    ]
    size, step = window[axes[0]], strides[axes[0]]
    dilated = any(d != 1 for key in ("base_dilations", "window_dilations") for d in integers(op.text, key))
    if window[axes[1]] != size or strides[axes[1]] != step or dilated:
        raise CannotTranslateError(f"window {window}, strides {strides}")
    image = t.flat.ref(t.flat.permute("image", t.whole(x), [0, channels, *axes]), "fp32")
    same = len(set(sides.reshape(-1))) == 1
    if not same:
        low, high = (tuple(int(n) for n in side) for side in sides.T)
        fill = -3.0e38 if inner == "maximum" else 0.0
        image = t.flat.op(f"{t.name(op)}.pad", Pad((0, 0, *low), (0, 0, *high), fill), image)
    func, padding = ("max" if inner == "maximum" else "mean"), int(sides[0, 0]) if same else 0
    y = t.flat.op(t.name(op), Pool2d(func, size, step, padding), image)
    if func == "mean":
        y = t.flat.op(t.name(op), Scalar("mul", float(size * size)), y)
    order = [0, 1, 2, 3] if channels == 1 else [0, 2, 3, 1]
    return t.result(op, t.flat.permute("out", y, order))


LAYERS: dict[str, Translation] = {
    "dot_general": dot_general,
    "gather": gather,
    "dynamic_update_slice": dynamic_update_slice,
    "convolution": convolution,
    "reduce_window": reduce_window,
}
