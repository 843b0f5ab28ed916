"""StableHLO text as workloads, as `jax.jit(f).lower(...).as_text(debug_info=True)` gives it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from math import prod
from pathlib import Path

from typing_extensions import override

from compiler.ops.base import Array
from workloads.errors import WorkloadError
from workloads.importers.file_request import FileRequest, check_bound, check_exists
from workloads.importers.flat import FlatGraph, ImportedModel, Ref
from workloads.importers.raising.periods import with_periods
from workloads.importers.raising.roll import roll
from workloads.importers.stablehlo.layers import LAYERS
from workloads.importers.stablehlo.ops import OPERATIONS
from workloads.importers.stablehlo.reader import Module, read_module
from workloads.importers.stablehlo.roles import argument_names, positions
from workloads.importers.stablehlo.shapes import SHAPES
from workloads.importers.stablehlo.translator import Translator
from workloads.request import Workload


@dataclass(frozen=True, slots=True)
class StableHloRequest(FileRequest):
    """A lowered function; all its sizes are fixed, only positions in caches can be bound."""

    @override
    def model(self, path: Path, bound: Mapping[str, int], opaque: tuple[str, ...]) -> ImportedModel:
        return import_module(path, bound, opaque)


def import_module(
    path: Path,
    bound: Mapping[str, int] | None = None,
    opaque: tuple[str, ...] = (),
    arrays: Mapping[str, Array] | None = None,
) -> ImportedModel:
    """The graph of a file, and its weights where `arrays` gives them by the names of arguments.

    `bound` gives positions in caches, also by these. Images that a convolution reads are asked for as
    [n, c, h, w] under the name `<argument>.nchw`. Raises WorkloadError.
    """
    module, bound = _module(path), bound or {}
    have = positions(module)
    check_bound(path, bound, have)
    flat = FlatGraph(str(path))
    translator = Translator(
        flat, module, {**OPERATIONS, **SHAPES, **LAYERS}, {**have, **bound}, opaque, arrays
    )
    results = [translator.whole(held) for held in translator.run()]
    outputs = [
        flat.before_reshape(flat.ref(x, "fp32"))
        for x in results
        if not (isinstance(x, Ref) and x.name in flat.caches)
    ]
    graph = flat.graph(outputs, _meta(module, flat, have))
    translator.check_caches(graph)
    flat.check(str(path))
    rolled = roll(graph, with_periods(graph, flat.paths), flat.weights)
    return ImportedModel(rolled.graph, rolled.weights)


@cache
def _module(path: Path) -> Module:
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise WorkloadError(f"{path}: cannot be read as text: {error}") from error
    return read_module(str(path), text)


def _meta(module: Module, flat: FlatGraph, have: dict[str, int]) -> dict[str, int | float | str]:
    """Tokens of the first whole-number argument, else images or rows of the first one that is no weight."""
    meta: dict[str, int | float | str] = {"unit": "images", "work": 1}
    if module.shardings:
        meta["shardings"] = module.shardings
    named = [n for name in argument_names(module) for n in (f"{name}.nchw", name)]
    inputs = [n for n in named if n in flat.values and flat.values[n].kind == "input"]
    tokens = [n for n in inputs if n in flat.logical and n not in have]
    if tokens:
        return {**meta, "unit": "tokens", "work": prod(flat.logical[tokens[0]])}
    if inputs:
        shape = flat.values[inputs[0]].type.shape
        rows = len(shape) < 4
        meta |= {"unit": "tokens" if rows else "images", "work": prod(shape[:-1]) if rows else shape[0]}
    return meta


def load(path: Path) -> Workload:
    """The workload in a file, called by its path."""
    check_exists(path)
    _module(path)
    return Workload(str(path), f"StableHLO module in {path}", (StableHloRequest(str(path)),))
