"""A softmax spelled out: subtract the maximum, exponentiate, divide by the sum."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from compiler.ops import Softmax
from workloads.importers.stablehlo.reader import Operation
from workloads.importers.stablehlo.traces import own
from workloads.importers.stablehlo.translator import Held, Trace, Translator


def reduced(x: Held, func: str, axes: Sequence[int]) -> Trace | None:
    """The maximum of a value, or the sum of its exponentials, over one axis."""
    trace = own(x)
    if len(axes) != 1 or (trace.over >= 0 and trace.kind != "exp"):
        return None
    over = trace.axes[axes[0]]
    rest = tuple(a for i, a in enumerate(trace.axes) if i != axes[0])
    if func == "max" and trace.kind == "same" and over >= 0:
        return Trace("max", trace.base, rest, over)
    if func == "add" and trace.kind == "exp" and over == trace.over:
        return Trace("sum", trace.base, rest, over)
    return None


def centred(func: str, lhs: Held, rhs: Held) -> Trace | None:
    """A value less its maximum."""
    low = rhs.trace
    if func != "sub" or low is None or low.kind != "max":
        return None
    trace = own(lhs)
    if trace.kind != "same" or trace.base is not low.base or not _aligned(trace, low):
        return None
    return replace(trace, kind="centred", over=low.over, source=lhs)


def _aligned(whole: Trace, part: Trace) -> bool:
    """Whether the axes of `part` are those of `whole` without the one that was reduced."""
    want = tuple(-1 if a == part.over else a for a in whole.axes)
    return part.axes == want and part.over in whole.axes


def exponential(x: Held) -> Trace | None:
    """Of a value less its maximum."""
    return replace(x.trace, kind="exp") if x.trace is not None and x.trace.kind == "centred" else None


def step(t: Translator, op: Operation, func: str, lhs: Held, rhs: Held) -> Held | None:
    """The quotient of exponentials and their sum, if it is over the last axis."""
    top, total = lhs.trace, rhs.trace
    if func != "div" or top is None or total is None or top.kind != "exp" or total.kind != "sum":
        return None
    if top.base is not total.base or top.source is None or not _aligned(top, total):
        return None
    if top.axes[-1] != top.over:
        return None
    source = top.source
    found = t.result(op, t.flat.op(t.name(op), Softmax(), t.ref(source)))
    label = source.scores.labels[-1] if source.scores is not None else None
    if source.scores is not None and label is not None:
        found.scores = replace(source.scores, softmax=label)
    return found
