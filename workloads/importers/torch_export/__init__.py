"""Programs of `torch.export` as workloads: `.pt2` archives or their bare `model.json`, without torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
from typing_extensions import override

from compiler.ops.base import Array
from workloads.importers.file_request import FileRequest, check_bound, check_exists
from workloads.importers.flat import FlatGraph, ImportedModel
from workloads.importers.raising.roll import roll
from workloads.importers.torch_export.aten import OPERATORS
from workloads.importers.torch_export.reader import Exported, parse, read_archive
from workloads.importers.torch_export.translator import FLOATS, Translator
from workloads.request import Workload


@dataclass(frozen=True, slots=True)
class Program(FileRequest):
    """An exported program; symbolic sizes and whole numbers that are inputs can be bound."""

    @override
    def model(self, path: Path, bound: Mapping[str, int], opaque: tuple[str, ...]) -> ImportedModel:
        return import_program(path, bound, opaque)


def import_program(
    path: Path,
    bound: Mapping[str, int] | None = None,
    opaque: tuple[str, ...] = (),
    arrays: Mapping[str, Array] | None = None,
) -> ImportedModel:
    """The graph of a file, and its weights where `arrays` gives them by their dotted names.

    `bound` gives sizes to symbolic dimensions, and numbers to inputs that are one whole number (by default
    the last position of the caches). Raises WorkloadError.
    """
    bound = bound or {}
    program = parse(str(path), _archive(path), bound)
    _check_bound(path, program, bound)
    flat = FlatGraph(str(path))
    translator = Translator(flat, program, OPERATORS, opaque, arrays)
    _declare_inputs(translator, program, bound)
    translator.run()
    refs = [flat.ref(translator.env[name], "fp32") for name in program.outputs]
    outputs = [flat.before_reshape(ref) for ref in refs if ref.name not in flat.caches]
    graph = flat.graph(outputs, _meta(program))
    flat.check(str(path))
    rolled = roll(graph, flat.paths, flat.weights)
    return ImportedModel(rolled.graph, rolled.weights)


def _check_bound(path: Path, program: Exported, bound: Mapping[str, int]) -> None:
    """Every size that was given has a place."""
    numbers = [n for n in program.inputs if not program.shapes[n] and program.dtypes[n] not in FLOATS]
    check_bound(path, bound, sorted({*program.symbols, *numbers}))


@cache
def _archive(path: Path) -> Mapping[str, object]:
    return read_archive(path)


def _declare_inputs(t: Translator, program: Exported, bound: Mapping[str, int]) -> None:
    """Inputs as values; caches come to be where they are written, whole numbers are known."""
    mutated = set(program.mutations.values())
    last = max((program.shapes[name][2] - 1 for name in mutated if len(program.shapes[name]) == 4), default=0)
    for name in program.inputs:
        shape, dtype = program.shapes[name], program.dtypes[name]
        if name in mutated:
            continue
        if dtype not in FLOATS and not shape:
            t.env[name] = np.asarray(bound.get(name, last))
        elif dtype not in FLOATS:
            t.env[name] = t.flat.indices(name, shape)
        else:
            t.env[name] = t.flat.add(name, "input", shape or (1,), FLOATS[dtype])
    for name in program.buffers:
        if program.dtypes[name] not in FLOATS:
            t.env[name] = t.flat.indices(name, program.shapes[name])


def _meta(program: Exported) -> dict[str, int | float | str]:
    """Tokens of the first integer input, else images of the first other one."""
    given = [
        name for name in program.inputs if program.shapes[name] and name not in program.mutations.values()
    ]
    tokens = next((n for n in given if program.dtypes[n] not in FLOATS), None)
    if tokens is not None:
        return {"unit": "tokens", "work": int(np.prod(program.shapes[tokens]))}
    return {"unit": "images", "work": program.shapes[given[0]][0] if given else 1}


def is_program(path: Path) -> bool:
    """Whether a JSON file is an exported program rather than a model's config."""
    try:
        with path.open("rb") as file:
            return b'"graph_module"' in file.read(1 << 16)
    except OSError:
        return False


def load(path: Path) -> Workload:
    """The workload in a file, called by its path."""
    check_exists(path)
    _archive(path)
    return Workload(str(path), f"torch.export program in {path}", (Program(str(path)),))
