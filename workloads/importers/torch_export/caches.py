"""KV caches that an exported program is given and changes in place."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import numpy as np

from workloads.errors import WorkloadError
from workloads.importers.flat import Cache, Known, Ref
from workloads.importers.raising.heads import as_rows
from workloads.importers.torch_export.reader import Call, Name
from workloads.importers.torch_export.translator import Translator


def index_put(t: Translator, call: Call) -> Known:
    """New keys or values at one position of a cache [batch, kv_heads, context, head_dim]."""
    where, target = f"{t.flat.name}: {call.name}", call.args["self"]
    indices = cast("list[object]", call.args["indices"])
    values = t.value(call.args["values"])
    is_cache = isinstance(target, Name) and target.name in t.program.inputs and len(indices) == 3
    position = t.value(indices[2]) if is_cache and isinstance(indices[2], Name) else None
    if not isinstance(position, np.ndarray) or position.size != 1 or not isinstance(values, Ref):
        shape = t.shape(call)
        return t.flat.opaque(call.target, call.name, shape, t.dtype(call))
    name, shape = cast("Name", target).name, t.shape(call)
    if not 0 <= int(position.reshape(())) < shape[2]:
        raise WorkloadError(f"{where}: got position {int(position.reshape(()))}, want 0 to {shape[2] - 1}")
    stands_for = t.flat.add(f"{call.name}.updated", "input", shape, t.dtype(call))
    rows = as_rows(t.flat, values).rows
    t.flat.caches[stands_for.name] = Cache(name, rows, int(position.reshape(())), shape)
    return stands_for


def grown_cache(t: Translator, call: Call, xs: Sequence[Known], dim: int) -> Known | None:
    """A cache that a program returns one position longer: it is given the room from the start."""
    shape = t.shape(call)
    if len(shape) != 4 or dim != 2 or len(xs) != 2:
        return None
    old, new = xs
    if not isinstance(old, Ref) or not isinstance(new, Ref) or old.name not in t.program.inputs:
        return None
    if t.flat.shape(new)[2] != 1:
        return None
    stands_for = t.flat.add(f"{call.name}.updated", "input", shape, t.dtype(call))
    t.flat.caches[stands_for.name] = Cache(old.name, as_rows(t.flat, new).rows, shape[2] - 1, shape)
    return stands_for
