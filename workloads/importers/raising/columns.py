"""Some columns of a linear layer's result: a layer of its own with these columns of the weight."""

from __future__ import annotations

from compiler.ops import Binary, Linear, Slice
from workloads.importers.flat import FlatGraph, Ref


def columns(flat: FlatGraph, name: str, rows: Ref, start: int, stop: int) -> Ref:
    """Columns `start` to `stop` of `rows` [t, f]; of `x @ w + b`, x times columns of w plus elements of b.

    Fused projections, as of queries, keys and values, become one layer for each part of their result.
    """
    made = flat.maker(rows)
    if made is not None and made.op == Binary("add"):
        inner, bias = flat.makers.get(made.inputs[0]), Ref(made.inputs[1])
        if inner is not None and inner.op == Linear() and _is_weight(flat, bias, 1):
            part = _columns_of(flat, name, Ref(inner.inputs[0]), Ref(inner.inputs[1]), start, stop)
            if part is not None:
                return flat.op(f"{name}.bias", Binary("add"), part, _cut(flat, bias, start, stop))
    if made is not None and made.op == Linear():
        part = _columns_of(flat, name, Ref(made.inputs[0]), Ref(made.inputs[1]), start, stop)
        if part is not None:
            return part
    return flat.op(name, Slice((0, start), (flat.shape(rows)[0], stop)), rows)


def _columns_of(flat: FlatGraph, name: str, x: Ref, weight: Ref, start: int, stop: int) -> Ref | None:
    if not _is_weight(flat, weight, 2):
        return None
    return flat.op(name, Linear(), x, _cut(flat, weight, start, stop))


def _is_weight(flat: FlatGraph, x: Ref, rank: int) -> bool:
    return flat.values[x.name].kind == "weight" and len(flat.shape(x)) == rank


def _cut(flat: FlatGraph, weight: Ref, start: int, stop: int) -> Ref:
    """The last axis of a weight from `start` to `stop`, stored so in the first place."""
    shape = flat.shape(weight)
    name = f"{weight.name}[{':, ' * (len(shape) - 1)}{start}:{stop}]"
    if name not in flat.values:
        flat.add(name, "weight", (*shape[:-1], stop - start), flat.type(weight).dtype)
        if weight.name in flat.weights:
            flat.weights[name] = flat.weights[weight.name][..., start:stop]
    return Ref(name)
