"""Patches of an image behind a class token, plus positions: to our op."""

from __future__ import annotations

from dataclasses import replace

from compiler.ir.graph import Node
from compiler.ops import AssembleTokens, Concat, Conv2d, Expand, Permute, Reshape, Tokens
from workloads.importers.flat import FlatGraph, Known, Ref


def assembled(flat: FlatGraph, name: str, x: Known, positions: Known) -> Known | None:
    """`cat(class token, patches) + positions` if `x` is that of image features [n, f, h, w]."""
    joined = flat.maker(x)
    if joined is None or joined.op != Concat(1) or not isinstance(positions, Ref):
        return None
    first, patches = (flat.makers.get(name) for name in joined.inputs)
    if first is None or not isinstance(first.op, Expand) or patches is None:
        return None
    source = _image(flat, patches)
    image = flat.shape(source) if source else ()
    if source is None or len(image) != 4:
        return None
    n, features, height, width = image
    tokens = height * width + 1
    cls, place = flat.values[first.inputs[0]], flat.shape(positions)
    if cls.type.elements != features or place != (1, tokens, features) or cls.kind != "weight":
        return None
    vector = flat.restated(Ref(cls.name), (features,))
    table = flat.restated(positions, (tokens, features))
    rows = flat.op(name, AssembleTokens(), source, vector, table)
    return flat.reshape(name, rows, (n, tokens, features))


def _image(flat: FlatGraph, patches: Node) -> Ref | None:
    """The image [n, f, h, w] that `patches` [n, h * w, f] are the pixels of."""
    made: Node | None = patches
    if isinstance(patches.op, Reshape):
        made = flat.makers.get(patches.inputs[0])
        return Ref(made.inputs[0]) if made is not None and isinstance(made.op, Tokens) else None
    if not isinstance(patches.op, Permute) or patches.op.order != (0, 2, 1):
        return None
    made = flat.makers.get(patches.inputs[0])
    return Ref(made.inputs[0]) if made is not None and isinstance(made.op, Reshape) else None


def biased(flat: FlatGraph, name: str, x: Known, bias: Known) -> Known | None:
    """`x + bias` if `x` is the pixels of a convolution with the channels last: one with a bias."""
    under = flat.maker(x)
    while under is not None and isinstance(under.op, Reshape):
        under = flat.makers.get(under.inputs[0])
    made = flat.makers.get(under.inputs[0]) if under is not None and isinstance(under.op, Tokens) else None
    if made is None or not isinstance(made.op, Conv2d) or made.op.bias or made.op.activation is not None:
        return None
    if not isinstance(bias, Ref) or flat.values[bias.name].kind != "weight" or len(flat.shape(bias)) != 1:
        return None
    if flat.shape(bias) != flat.shape(x)[-1:]:
        return None
    inputs = (*map(Ref, made.inputs[:2]), bias)
    image = flat.op(made.name, replace(made.op, bias=True), *inputs)
    return flat.reshape(name, flat.op(name, Tokens(), image), flat.shape(x))
