"""The product of a softmax of scores and values, in any order of axes: to our attention."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from compiler.ops import Expand, Reshape, Scalar
from workloads.importers.flat import Known, Ref
from workloads.importers.raising.heads import attention
from workloads.importers.stablehlo.reader import Operation
from workloads.importers.stablehlo.traces import combined
from workloads.importers.stablehlo.translator import Held, Scores, Translator

Label = tuple[str, int]
Axes = tuple[list[int], list[int]]


@dataclass(frozen=True, slots=True)
class _Roles:
    """Labels of batch, key-value head, query position and group; "" where there is none."""

    batch: Label | None
    head: Label | None
    query: Label | None
    group: Label | None
    key: Label


def over_values(
    t: Translator, op: Operation, sides: Sequence[Held], batch: Axes, contracted: Axes
) -> Known | None:
    """The attention, as the result of `op`; None if it is none."""
    for i in (0, 1):
        scores = sides[i].scores
        if scores is None or scores.softmax is None or len(contracted[0]) != 1:
            continue
        if scores.labels[contracted[i][0]] != scores.softmax:
            continue
        roles = _roles(t, scores)
        if roles is not None:
            return _attention(t, op, scores, roles, sides, i, batch, contracted)
    return None


def _sides(scores: Scores) -> tuple[int, int]:
    """Which operand of the scores the queries are, and which the keys."""
    assert scores.softmax is not None
    return (0, 1) if scores.softmax[0] == "r" else (1, 0)


def _roles(t: Translator, scores: Scores) -> _Roles | None:
    if scores.softmax is None or scores.softmax[0] == "b":
        return None
    q, k = _sides(scores)
    free_q = scores.sides[q].free(scores.batch[q], (scores.contracted[q],))
    free_k = scores.sides[k].free(scores.batch[k], (scores.contracted[k],))
    count = len(scores.batch[0])
    if len(free_k) != 1 or len(free_q) not in (1, 2) or count > 2:
        return None
    labels: list[Label] = [("lr"[q], i) for i in free_q]
    varied = [label for label in labels if any(_varies(t, m, label) for m in scores.masks)]
    query = varied[0] if len(varied) == 1 else labels[0]
    group = next((label for label in labels if label != query), None)
    heads: list[Label | None] = [("b", i) for i in range(count)]
    outer, head = [None, None, *heads][-2:]
    return _Roles(outer, head, query, group, scores.softmax)


def _varies(t: Translator, mask: tuple[Known, tuple[Label | None, ...]], label: Label) -> bool:
    known, labels = mask
    shape = t.flat.shape(known)
    if label not in labels:
        return False
    at = labels.index(label) - len(labels) + len(shape)
    return at >= 0 and shape[at] > 1


def _attention(
    t: Translator,
    op: Operation,
    scores: Scores,
    roles: _Roles,
    sides: Sequence[Held],
    which: int,
    batch: Axes,
    contracted: Axes,
) -> Known | None:
    """`which` operand is the weights of the values, the other one the values."""
    v, labels = sides[1 - which], scores.labels
    pairs = {labels[w]: other for w, other in zip(batch[which], batch[1 - which], strict=True)}
    used = [scores.batch[0][label[1]] for label in pairs if label is not None and label[0] == "b"]
    wide = [b for b in range(len(scores.batch[0])) if scores.sides[0].shape[scores.batch[0][b]] > 1]
    free_v = v.free(batch[1 - which], contracted[1 - which])
    if len(free_v) != 1 or len(used) != len(wide):
        return None
    axes_v = [pairs.get(roles.batch), contracted[1 - which][0], pairs.get(roles.head), free_v[0]]
    q, k = _sides(scores)
    axes_q = [_axis(scores, q, label) for label in (roles.batch, roles.query, roles.head, roles.group)]
    axes_k = [_axis(scores, k, label) for label in (roles.batch, roles.key, roles.head)]
    queries = _heads(t, scores.sides[q], [*axes_q, scores.contracted[q]], grouped=True)
    keys = _heads(t, scores.sides[k], [*axes_k, scores.contracted[k]])
    values = _heads(t, v, axes_v)
    formed, mask = _mask(t, scores, roles)
    if not formed:
        return None
    sizes = [scores.sides[q].shape[a] if a is not None else 1 for a in axes_q]
    factor = scores.scale * queries[1] * keys[1]
    y = attention(t.flat, t.name(op), queries[0], keys[0], values[0], mask, factor)
    rows = t.flat.permute("tokens", y, (0, 2, 1, 3))
    cut = t.flat.reshape("cut", rows, (*sizes, v.shape[free_v[0]]))
    return _as_result(t, op, cut, scores, roles, sides[which], which, batch, contracted)


def _axis(scores: Scores, side: int, label: Label | None) -> int | None:
    if label is None:
        return None
    return scores.batch[side][label[1]] if label[0] == "b" else label[1]


def _heads(t: Translator, x: Held, axes: list[int | None], grouped: bool = False) -> tuple[Ref, float]:
    """[batch, heads, tokens, features] of an operand with these axes, and a factor taken off it."""
    known, factor = _unscaled(t, t.ref(x))
    known = known if grouped else _narrow(t, known, x.shape, axes)
    shape = t.flat.shape(known)
    sizes = [shape[a] if a is not None else 1 for a in axes]
    order = [a for a in axes if a is not None]
    order += [a for a in range(len(shape)) if a not in order]  # of size 1
    turned = t.permuted("tokens", known, order)
    if grouped:
        sizes = [sizes[0], sizes[1], sizes[2] * sizes[3], sizes[4]]
    tokens = t.flat.reshape("cut", turned, sizes)
    heads = t.flat.permute("heads", tokens, (0, 2, 1, 3))
    assert isinstance(heads, Ref)
    if known.name in t.flat.caches:
        t.flat.caches[heads.name] = t.flat.caches[known.name]
    return heads, factor


def _unscaled(t: Translator, x: Ref) -> tuple[Ref, float]:
    """What `x` is times a number, under another shape or not."""
    made = t.flat.maker(x)
    if (
        made is not None
        and isinstance(made.op, Scalar)
        and made.op.func in ("mul", "div")
        and not made.op.swapped
    ):
        value = made.op.value if made.op.func == "mul" else 1.0 / made.op.value
        return Ref(made.inputs[0]), value
    if made is not None and isinstance(made.op, Reshape):
        inner, factor = _unscaled(t, Ref(made.inputs[0]))
        if factor != 1.0:
            found = t.flat.reshape("unscaled", inner, made.op.shape)
            assert isinstance(found, Ref)
            return found, factor
    return x, 1.0


def _narrow(t: Translator, x: Ref, shape: tuple[int, ...], axes: list[int | None]) -> Ref:
    """Keys or values before each head was repeated for the queries of its group."""
    made = t.flat.maker(x)
    if made is None or not isinstance(made.op, Reshape) or axes[2] is None:
        return x
    spread, head = t.flat.makers.get(made.inputs[0]), axes[2]
    if spread is None or not isinstance(spread.op, Expand):
        return x
    wide, before = spread.op.shape, t.flat.shape(Ref(spread.inputs[0]))
    grown = [i for i, (a, b) in enumerate(zip(wide, before, strict=True)) if a != b]
    joined = (
        (*wide[:head], wide[head] * wide[head + 1], *wide[head + 2 :]) if len(wide) == len(shape) + 1 else ()
    )
    if grown != [head + 1] or joined != shape:
        return x
    found = t.flat.reshape("kv", Ref(spread.inputs[0]), (*wide[: head + 1], *wide[head + 2 :]))
    assert isinstance(found, Ref)
    return found


def _mask(t: Translator, scores: Scores, roles: _Roles) -> tuple[bool, Known | None]:
    """Whether the mask is [batch or 1, 1, queries, keys] or none, and which."""
    found: list[Known] = []
    for known, labels in scores.masks:
        shape = t.flat.shape(known)
        offset = len(labels) - len(shape)
        wanted = (roles.batch, roles.head, roles.group, roles.query, roles.key)
        places = [labels.index(x) - offset if x in labels and x is not None else -1 for x in wanted]
        axes = [a if a >= 0 else None for a in places]
        sizes = [shape[a] if a is not None else 1 for a in axes]
        order = [a for a in axes if a is not None]
        order += [a for a in range(len(shape)) if a not in order]
        if sizes[1] != 1 or sizes[2] != 1:
            return False, None  # NOTE: one that differs between heads of a group is left to general ops
        turned = t.flat.permute("mask", known, order)
        found.append(t.flat.reshape("mask", turned, (sizes[0], 1, sizes[3], sizes[4])))
    if not found:
        return True, None
    arrays = [m for m in found if isinstance(m, np.ndarray)]
    if len(found) == 1:
        return True, found[0]
    plain = [m for m in arrays if not (m.dtype != bool and not np.any(m))]
    if len(arrays) == len(found) and all(m.dtype == bool for m in plain):
        return True, combined(plain) if plain else None
    return False, None


def _as_result(
    t: Translator,
    op: Operation,
    cut: Known,
    scores: Scores,
    roles: _Roles,
    weights: Held,
    which: int,
    batch: Axes,
    contracted: Axes,
) -> Known:
    """[batch, queries, heads, group, features] in the order of axes of the result."""
    place = {roles.batch: 0, roles.query: 1, roles.head: 2, roles.group: 3}
    place.pop(None, None)
    first = [place.get(scores.labels[i]) for i in batch[which]]
    free = [place.get(scores.labels[i]) for i in weights.free(batch[which], contracted[which])]
    order = [*first, *free, 4] if which == 0 else [*first, 4, *free]
    kept = [a for a in order if a is not None]
    kept += [a for a in range(5) if a not in kept]
    return t.flat.reshape("out", t.permuted("out", cut, kept), op.type.shape)
