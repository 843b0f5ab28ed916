"""Which axis of a product, or of a softmax, each axis of a later value is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import isfinite

import numpy as np

from compiler.ops import Select
from workloads.importers.raising.heads import HIDDEN, MASKED
from workloads.importers.stablehlo.translator import Held, Scores, Trace, Translator


def own(x: Held) -> Trace:
    """The trace of a value, which starts at itself if it has none."""
    if x.trace is None:
        x.trace = Trace("same", x, tuple(i if n > 1 else -1 for i, n in enumerate(x.shape)))
    return x.trace


def kept(x: Held) -> Trace | None:
    """The same of another type; so that its steps are found whichever of the two they start from."""
    return x.trace if x.trace is not None else own(x)


def permuted(x: Held, order: Sequence[int]) -> Trace | None:
    """Of a transpose."""
    trace = own(x)
    return replace(trace, axes=tuple(trace.axes[i] for i in order)) if trace.source is None else None


def spread(x: Held, axes: Sequence[int], shape: Sequence[int]) -> Trace | None:
    """Of a broadcast."""
    trace = own(x)
    found = [-1] * len(shape)
    for axis, old, size in zip(axes, trace.axes, x.shape, strict=True):
        found[axis] = old if size == shape[axis] else -1
    return replace(trace, axes=tuple(found)) if trace.source is None else None


def _matched(old: Sequence[int], new: Sequence[int]) -> list[int] | None:
    """For each new axis the old one, -1 for one of size 1; None if more than sizes of 1 come and go."""
    rest = [i for i, n in enumerate(old) if n > 1]
    if [old[i] for i in rest] != [n for n in new if n > 1]:
        return None
    found = iter(rest)
    return [next(found) if n > 1 else -1 for n in new]


def reshaped(x: Held, shape: Sequence[int]) -> Trace | None:
    """Of a reshape that only adds or drops axes of size 1."""
    trace, found = own(x), _matched(x.shape, shape)
    if found is None or trace.source is not None:
        return None
    return replace(trace, axes=tuple(trace.axes[i] if i >= 0 else -1 for i in found))


# ---- scores --------------------------------------------------------------------------------------


def reordered(x: Held, order: Sequence[int]) -> Scores | None:
    """Of a transpose."""
    return x.scores and replace(x.scores, labels=tuple(x.scores.labels[i] for i in order))


def regrouped(x: Held, shape: Sequence[int]) -> Scores | None:
    """Of a reshape that only adds or drops axes of size 1."""
    found = _matched(x.shape, shape)
    if x.scores is None or found is None:
        return None
    return replace(x.scores, labels=tuple(x.scores.labels[i] if i >= 0 else None for i in found))


def placed(x: Held, axes: Sequence[int], shape: Sequence[int]) -> Scores | None:
    """Of a broadcast that only adds axes of size 1."""
    if x.scores is None or [shape[a] for a in axes] != list(x.shape):
        return None
    labels: list[tuple[str, int] | None] = [None] * len(shape)
    for axis, label in zip(axes, x.scores.labels, strict=True):
        labels[axis] = label
    return replace(x.scores, labels=tuple(labels))


def changed(t: Translator, func: str, lhs: Held, rhs: Held) -> Scores | None:
    """Scores scaled by a number, or with a mask added."""
    for x, other in ((lhs, rhs), (rhs, lhs)):
        scores = x.scores
        if scores is None or scores.softmax is not None or x.shape != lhs.shape:
            continue
        if other.number is not None and func in ("mul", "div") and x is (lhs if func == "div" else x):
            factor = other.number if func == "mul" else 1.0 / other.number
            masks = scores.masks
            return replace(scores, scale=scores.scale * factor) if not masks else None
        if func == "add" and other.scores is None:
            return replace(scores, masks=(*scores.masks, (t.real(other), scores.labels)))
    return None


def masked(t: Translator, cond: Held, lhs: Held, rhs: Held) -> Scores | None:
    """Scores of which some are set to what does not count."""
    scores = lhs.scores
    hides = rhs.number is not None and (rhs.number < HIDDEN or not isfinite(rhs.number))
    if scores is None or scores.softmax is not None or not hides:
        return None
    if cond.array is None:
        ends = np.zeros(1, np.float32), np.full(1, MASKED, np.float32)
        bias = t.flat.elementwise("bias", Select(), t.real(cond), *ends)
        return replace(scores, masks=(*scores.masks, (bias, scores.labels)))
    return replace(scores, masks=(*scores.masks, (cond.array.astype(bool), scores.labels)))


def combined(masks: Sequence[np.ndarray]) -> np.ndarray:
    """Several masks of keys that count as one."""
    whole = masks[0]
    for mask in masks[1:]:
        whole = np.logical_and(whole, mask)
    return whole
