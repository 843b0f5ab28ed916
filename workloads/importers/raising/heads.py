"""Attention with its heads cut and turned by views, and rotary positions spelled out: to our ops."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from compiler.ir.graph import Node
from compiler.ops import (
    Attention,
    BatchMatmul,
    Binary,
    Concat,
    DecodeAttention,
    Expand,
    KvWrite,
    Reshape,
    Rope,
    Scalar,
    Slice,
    Softmax,
    Unary,
)
from workloads.importers.flat import FlatGraph, Known, Ref

MASKED = -3.0e4  # added to the score of a key that must not count; within the range of fp16
HIDDEN = -1.0e4  # what is added to the score of a key that must not count is below this; assumed


@dataclass(frozen=True, slots=True)
class Heads:
    """Heads of tokens as rows [batch * seq, heads * head_dim]."""

    rows: Ref
    batch: int
    heads: int
    seq: int
    head_dim: int


def as_rows(flat: FlatGraph, x: Ref) -> Heads:
    """[batch, heads, seq, head_dim] as rows, rotary positions applied as an op of their own."""
    batch, heads, seq, head_dim = flat.shape(x)
    turned = _rope(flat, x)
    if turned is None:
        rows = flat.reshape("rows", flat.permute("tokens", x, (0, 2, 1, 3)), (batch * seq, heads * head_dim))
        assert isinstance(rows, Ref)
        turned = rows
    return Heads(turned, batch, heads, seq, head_dim)


def from_rows(flat: FlatGraph, rows: Ref, like: Heads) -> Known:
    """Rows as [batch, heads, seq, head_dim]."""
    cut = flat.reshape("cut", rows, (like.batch, like.seq, like.heads, flat.shape(rows)[1] // like.heads))
    return flat.permute("heads", cut, (0, 2, 1, 3))


def without_groups(flat: FlatGraph, x: Ref) -> Ref:
    """Keys or values before they were repeated for the query heads of a group."""
    made = flat.maker(x)
    if made is None or not isinstance(made.op, Reshape):
        return x
    spread = flat.makers.get(made.inputs[0])
    if spread is None or not isinstance(spread.op, Expand) or len(spread.op.shape) != 5:
        return x
    batch, kv, _, seq, head_dim = spread.op.shape
    if flat.shape(x) != (batch, kv * spread.op.shape[2], seq, head_dim):
        return x
    narrow = flat.reshape("kv", Ref(spread.inputs[0]), (batch, kv, seq, head_dim))
    return narrow if isinstance(narrow, Ref) else x


# ---- rotary positions ----------------------------------------------------------------------------


def _made(flat: FlatGraph, x: Ref, op: object) -> Node | None:
    node = flat.maker(x)
    return node if node is not None and node.op == op else None


def _rope(flat: FlatGraph, x: Ref) -> Ref | None:
    """`t * cos + cat(-t[half:], t[:half]) * sin` of heads [batch, heads, seq, head_dim], as rows."""
    total = _made(flat, x, Binary("add"))
    if total is None:
        return None
    for left, right in (total.inputs, total.inputs[::-1]):
        found = _rotation(flat, Ref(left), Ref(right))
        if found is not None:
            return _rope_op(flat, *found)
    return None


def _rotation(flat: FlatGraph, direct: Ref, crossed: Ref) -> tuple[Ref, Ref, Ref] | None:
    """(t, cos, sin) if `direct` is t * cos and `crossed` the swapped halves times sin."""
    first, second = (_made(flat, r, Binary("mul")) for r in (direct, crossed))
    if first is None or second is None:
        return None
    for halves, sin in (second.inputs, second.inputs[::-1]):
        t = _swapped_halves(flat, Ref(halves))
        if t is not None and t.name in first.inputs:
            cos = first.inputs[1] if first.inputs[0] == t.name else first.inputs[0]
            return t, Ref(cos), Ref(sin)
    return None


def _swapped_halves(flat: FlatGraph, x: Ref) -> Ref | None:
    """t, if x is [-second half of t, first half] along the last axis."""
    shape = flat.shape(x)
    joined = _made(flat, x, Concat(len(shape) - 1))
    if joined is None:
        return None
    minus = _made(flat, Ref(joined.inputs[0]), Unary("negate"))
    high = flat.makers.get(minus.inputs[0]) if minus else None
    low = flat.makers.get(joined.inputs[1])
    if high is None or low is None or not isinstance(high.op, Slice) or not isinstance(low.op, Slice):
        return None
    half, size = shape[-1] // 2, shape[-1]
    ends = (high.op.starts[-1], high.op.stops[-1], low.op.starts[-1], low.op.stops[-1])
    return Ref(low.inputs[0]) if high.inputs == low.inputs and ends == (half, size, 0, half) else None


def _rope_op(flat: FlatGraph, t: Ref, cos: Ref, sin: Ref) -> Ref | None:
    heads = as_rows(flat, t)
    tables = []
    for table in (cos, sin):
        sizes = flat.shape(table)
        if sizes[-1] != heads.head_dim or np.prod(sizes) != heads.seq * heads.head_dim:
            return None
        tables.append(flat.found(("half", table.name)) or _half(flat, table, heads))
    rope = Rope(heads.heads, heads.head_dim, heads.seq)
    return flat.op("rope", rope, heads.rows, *tables)


def _half(flat: FlatGraph, table: Ref, heads: Heads) -> Ref:
    """The first half of [seq, head_dim] angles, whose second is the same; it belongs to no layer."""
    path, flat.path = flat.path, ""
    whole = flat.reshape("angles", table, (heads.seq, heads.head_dim))
    assert isinstance(whole, Ref)
    half = flat.op("angles.half", Slice((0, 0), (heads.seq, heads.head_dim // 2)), whole)
    flat.path = path
    return flat.remember(("half", table.name), half)


# ---- attention -----------------------------------------------------------------------------------


def attention(
    flat: FlatGraph, name: str, q: Ref, k: Ref, v: Ref, mask: Known | None, scale: float, causal: bool = False
) -> Known:
    """`softmax(scale * q k^T + mask) v` of [batch, heads, seq, head_dim]: our op, or products spelled out.

    A boolean mask says which keys count.
    """
    cached = _over_cache(flat, name, q, (k, v), mask, scale)
    if cached is not None:
        return cached
    kind = "causal" if causal else mask_kind(mask)
    if kind == "causal" and flat.shape(q)[2] != flat.shape(k)[2]:
        kind = "other"
    bias = _bias(flat, mask, q, k) if kind == "other" else None
    if kind == "other" and bias is None:
        return spelled_out(flat, name, q, k, v, mask, scale)
    narrow = [without_groups(flat, x) for x in (k, v)]
    if flat.shape(narrow[0])[1] != flat.shape(narrow[1])[1]:
        narrow = [k, v]
    first, keys, values = (as_rows(flat, x) for x in (q, *narrow))
    op = Attention(
        first.batch,
        first.heads,
        keys.heads,
        first.head_dim,
        causal=kind == "causal",
        scale=scale,
        value_dim=values.head_dim if values.head_dim != first.head_dim else 0,
        bias=bias is not None,
    )
    extra = (bias,) if bias is not None else ()
    return from_rows(flat, flat.op(name, op, first.rows, keys.rows, values.rows, *extra), first)


def _bias(flat: FlatGraph, mask: Known | None, q: Ref, k: Ref) -> Ref | None:
    """A mask as numbers to add, [batch or 1, heads or 1, queries, keys], if it has that shape."""
    sizes = flat.shape(q)[2], flat.shape(k)[2]
    if mask is None or len(flat.shape(mask)) != 4 or flat.shape(mask)[2:] != sizes:
        return None
    if any(have not in (1, want) for have, want in zip(flat.shape(mask), flat.shape(q)[:2], strict=False)):
        return None
    if isinstance(mask, np.ndarray) and mask.dtype == bool:
        mask = np.where(mask, np.float32(0.0), np.float32(MASKED))
    return flat.ref(mask, flat.type(q).dtype)


def attention_of(flat: FlatGraph, name: str, weights: Known, v: Known) -> Known | None:
    """`softmax(scale * q k^T + mask) v` spelled out, as an op, if `weights` is such a softmax."""
    soft = flat.maker(weights)
    if soft is None or not isinstance(soft.op, Softmax) or not isinstance(v, Ref) or len(flat.shape(v)) != 4:
        return None
    scores, mask, scale = Ref(soft.inputs[0]), None, 1.0
    while True:
        made = flat.maker(scores)
        if made is None:
            return None
        if made.op == Binary("add") and mask is None and scale == 1.0:
            shapes = [flat.values[n].type.shape for n in made.inputs]
            inner = 0 if flat.values[made.outputs[0]].type.shape == shapes[0] else 1
            scores, other = Ref(made.inputs[inner]), made.inputs[1 - inner]
            mask = flat.array(Ref(other))
        elif isinstance(made.op, Scalar) and made.op.func in ("mul", "div") and not made.op.swapped:
            scale *= made.op.value if made.op.func == "mul" else 1.0 / made.op.value
            scores = Ref(made.inputs[0])
        elif made.op == BatchMatmul(transpose_rhs=True):
            break
        else:
            return None
    q, k = (_unscaled(flat, Ref(n)) for n in made.inputs)
    return attention(flat, name, q[0], k[0], v, mask, scale * q[1] * k[1])


def _unscaled(flat: FlatGraph, x: Ref) -> tuple[Ref, float]:
    """(y, factor) if x is y times a number."""
    made = flat.maker(x)
    if made is not None and isinstance(made.op, Scalar) and made.op.func == "mul":
        return Ref(made.inputs[0]), made.op.value
    return x, 1.0


def _over_cache(
    flat: FlatGraph, name: str, q: Ref, kv: tuple[Ref, Ref], mask: Known | None, scale: float
) -> Known | None:
    """Attention of one new token over caches that were just written."""
    caches = [flat.caches.get(without_groups(flat, x).name) for x in kv]
    if caches[0] is None or caches[1] is None or flat.shape(q)[2] != 1:
        return None
    length = caches[0].position + 1
    if isinstance(mask, np.ndarray):
        allowed = mask if mask.dtype == bool else mask > HIDDEN
        if not (allowed[..., :length].all() and not allowed[..., length:].any()):
            return None
    states = []
    for cache, axis_k in zip(caches, (True, False), strict=True):
        assert cache is not None
        batch, heads, context, head_dim = cache.shape
        shape = (batch, heads, head_dim, context) if axis_k else cache.shape
        dtype = flat.type(cache.rows).dtype
        states.append(flat.add(f"{cache.name}.cache", "state", shape, dtype))
        flat.update(f"{cache.name}.write", KvWrite(cache.position, axis_k=axis_k), states[-1], cache.rows)
    first = as_rows(flat, q)
    op = DecodeAttention(first.batch, first.heads, caches[0].shape[1], first.head_dim, scale, length)
    return from_rows(flat, flat.op(name, op, first.rows, *states), first)


def spelled_out(
    flat: FlatGraph, name: str, q: Ref, k: Ref, v: Ref, mask: Known | None, scale: float
) -> Known:
    """The same with general ops."""
    scores: Known = flat.op(f"{name}.qk", BatchMatmul(transpose_rhs=True), q, k)
    assert isinstance(scores, Ref)
    scores = flat.op(f"{name}.scale", Scalar("mul", scale), scores)
    if mask is not None:
        if isinstance(mask, np.ndarray) and mask.dtype == bool:
            mask = np.where(mask, np.float32(0.0), np.float32(MASKED))
        scores = flat.binary(f"{name}.mask", "add", scores, mask)
    assert isinstance(scores, Ref)
    weights = flat.op(f"{name}.softmax", Softmax(), scores)
    return flat.op(name, BatchMatmul(), weights, v)


def mask_kind(mask: Known | None) -> str:
    """What a known mask lets through: "full", "causal", or "other"."""
    if mask is None:
        return "full"
    if isinstance(mask, Ref) or mask.ndim < 2:
        return "other"
    allowed = mask if mask.dtype == bool else mask > HIDDEN
    if allowed.all() and (mask.dtype == bool or not np.any(mask)):
        return "full"
    queries, keys = mask.shape[-2:]
    is_causal = queries == keys and bool((allowed == np.tri(queries, dtype=bool)).all())
    return "causal" if is_causal and (mask.dtype == bool or not np.any(mask[allowed])) else "other"
