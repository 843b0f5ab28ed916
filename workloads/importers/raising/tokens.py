"""Patches of an image behind a class token, plus positions: to our op."""

from __future__ import annotations

from compiler.ops import AssembleTokens, Concat, Expand, Permute, Reshape
from workloads.importers.flat import FlatGraph, Known, Ref


def assembled(flat: FlatGraph, name: str, x: Known, positions: Known) -> Known | None:
    """`cat(class token, patches) + positions` if `x` is that of image features [n, f, h, w]."""
    joined = flat.maker(x)
    if joined is None or joined.op != Concat(1) or not isinstance(positions, Ref):
        return None
    first, patches = (flat.makers.get(name) for name in joined.inputs)
    if first is None or not isinstance(first.op, Expand) or patches is None:
        return None
    if not isinstance(patches.op, Permute) or patches.op.order != (0, 2, 1):
        return None
    flattened = flat.makers.get(patches.inputs[0])
    image = flat.values[flattened.inputs[0]].type.shape if flattened else ()
    if flattened is None or not isinstance(flattened.op, Reshape) or len(image) != 4:
        return None
    n, features, height, width = image
    tokens = height * width + 1
    cls, place = flat.values[first.inputs[0]], flat.shape(positions)
    if cls.type.elements != features or place != (1, tokens, features) or cls.kind != "weight":
        return None
    vector = flat.restated(Ref(cls.name), (features,))
    table = flat.restated(positions, (tokens, features))
    rows = flat.op(name, AssembleTokens(), Ref(flattened.inputs[0]), vector, table)
    return flat.reshape(name, rows, (n, tokens, features))
