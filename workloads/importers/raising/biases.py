"""A bias that is added after the residual: before it, where it costs nothing."""

from __future__ import annotations

from compiler.ops import Binary, Linear
from workloads.importers.flat import FlatGraph, Known, Ref
from workloads.importers.raising.norms import under


def bias_first(flat: FlatGraph, name: str, x: Known, bias: Known) -> Known | None:
    """`(r + y @ w) + bias` as `r + (y @ w + bias)`; the sums differ by rounding only."""
    made = flat.maker(under(flat, x))
    if made is None or made.op != Binary("add") or not isinstance(bias, Ref):
        return None
    if flat.values[bias.name].kind != "weight" or flat.shape(bias) != flat.shape(x)[-1:]:
        return None
    for residual, product in (made.inputs, made.inputs[::-1]):
        source, shape = flat.makers.get(product), flat.values[product].type.shape
        if source is not None and source.op == Linear() and flat.values[residual].type.shape == shape:
            whole = flat.op(f"{name}.bias", Binary("add"), Ref(product), bias)
            return flat.reshape(name, flat.op(name, Binary("add"), Ref(residual), whole), flat.shape(x))
    return None
