"""Turns what pydantic found into our messages: got X, want Y, did you mean Z."""

from __future__ import annotations

import re
from collections.abc import Mapping

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from arch_configs import schema
from arch_configs.document import Entry, Mark
from arch_configs.rules import Path, Problem, RuleError, closest, dotted, nearest
from arch_configs.spec import ArchSpec

# What to write where something is missing, by the name of the key.
_WANTED: Mapping[str, str] = {
    **dict.fromkeys(("rows", "cols", "lanes", "queues", "engines"), "a whole number from 1"),
    "name": "a name; it is not inherited by extends",
    "kind": "one of the kinds",
    "clock": "a frequency such as 1.4 GHz",
    "capacity": "a size such as 24 MiB",
    "bandwidth": "a bandwidth such as 820 GB/s",
    "engine_bandwidth": "a bandwidth such as 17 GB/s",
    "passes": "a mapping such as {bf16: 1, fp32: 4}",
    "ops": "a mapping such as {copy: 1, tensor_op: 2}",
    "reads": "a list of memories",
    "writes": "a list of memories",
}
_WANTED_TYPES: Mapping[str, str] = {
    "model_type": "a mapping",
    "model_attributes_type": "a mapping",
    "dict_type": "a mapping",
    "tuple_type": "a list",
    "string_type": "text (put it in quotes)",
    "bool_parsing": "true or false",
    "bool_type": "true or false",
}


def place(tree: Entry, path: Path) -> Mark:
    """The mark of the deepest entry on `path` that exists."""
    entry = tree
    for part in path:
        below = _below(entry, part)
        if below is None:
            break
        entry = below
    return entry.mark


def _below(entry: Entry, part: str | int) -> Entry | None:
    if isinstance(entry.value, dict):
        return entry.value.get(str(part))
    if isinstance(entry.value, list) and isinstance(part, int) and part < len(entry.value):
        return entry.value[part]
    return None


def explain(error: ValidationError, tree: Entry) -> list[Problem]:
    """All problems of `error` with paths as they are written in the file."""
    found: list[Problem] = []
    for detail in error.errors(include_url=False):
        broken = detail.get("ctx", {}).get("error")
        if isinstance(broken, RuleError):
            found += broken.problems
            continue
        path = _written(detail["loc"], tree)
        found.append((path, _text(detail, path, tree)))
    return found


def _written(loc: Path, tree: Entry) -> Path:
    """`loc` without what pydantic adds: the engine kind, `[key]`, and fields of a cost given as a number."""
    path: list[str | int] = []
    entry: Entry | None = tree
    for index, part in enumerate(loc):
        if index == 2 and loc[0] == "engines" and part in schema.ENGINE_KINDS and index + 1 < len(loc):
            continue
        if part == "[key]" or (entry is not None and not isinstance(entry.value, (dict, list))):
            continue
        path.append(part)
        entry = None if entry is None else _below(entry, part)
    return tuple(path)


def _text(detail: ErrorDetails, path: Path, tree: Entry) -> str:
    kind, got = detail["type"], detail["input"]
    if kind == "value_error":
        return str(detail["ctx"]["error"])
    if kind == "missing":
        wanted = "a mapping" if path == ("engines",) else _WANTED.get(str(path[-1]), "a value")
        return f"got nothing, want {wanted}"
    if kind == "extra_forbidden":
        return _unknown_key(path, tree)
    if kind == "literal_error":
        return _choice(got, re.findall(r"'([^']*)'", detail["ctx"]["expected"]))
    if kind in ("union_tag_invalid", "union_tag_not_found"):
        tag = got.get("kind") if isinstance(got, dict) else None
        return f"kind: {_choice(tag, list(schema.ENGINE_KINDS))}"
    wanted = _WANTED_TYPES.get(kind, detail["msg"])
    return f"got {_shown(got)}, want {wanted}"


def _choice(got: object, known: list[str]) -> str:
    hint = nearest(got, known) if isinstance(got, str) else ""
    return f"got {_shown(got)}, want one of {', '.join(known)}{hint}"


def _shown(got: object) -> str:
    if got is None:
        return "nothing"
    if isinstance(got, dict):
        return "a mapping"
    return "a list" if isinstance(got, (list, tuple)) else repr(got)


def _unknown_key(path: Path, tree: Entry) -> str:
    """A key that is not of this place: the nearest one, or where it belongs."""
    shape: schema.Shape = ArchSpec
    entry: Entry | None = tree
    for part in path[:-1]:
        shape = schema.child(shape, str(part), entry.plain() if entry else None)
        entry = _below(entry, part) if entry else None
    known = schema.fields(shape, entry.plain() if entry else None)
    return unknown_key(str(path[-1]), known)


def unknown_key(key: str, known: tuple[str, ...]) -> str:
    """The message for a `key` where only `known` may stand."""
    hint = nearest(key, known)
    meant = key if hint else closest(key, schema.all_keys()) or key
    homes = schema.homes(meant)
    belongs = f"; {meant!r} belongs at {' or '.join(homes)}" if homes else ""
    return f"got an unknown key, want one of {', '.join(known)}{hint}{belongs}"


def line(problem: Problem, tree: Entry) -> tuple[Mark, str]:
    """The mark of a problem and its full text `where: path: got X, want Y`."""
    path, text = problem
    mark = place(tree, path)
    return mark, f"{mark}: {dotted(path)}: {text}" if path else f"{mark}: {text}"
