"""Overrides: dotted paths such as ``engines.tensor.rows`` set after `extends` is resolved."""

from __future__ import annotations

from collections.abc import Mapping

from arch_configs import schema
from arch_configs.document import DocumentError, Entry, Mark, Plain, parse_value
from arch_configs.explain import unknown_key
from arch_configs.rules import dotted, nearest
from arch_configs.spec import ArchSpec


def apply_overrides(tree: Entry, overrides: Mapping[str, str]) -> list[str]:
    """Set every path of `overrides` in `tree`, in order; return the problems as complete lines.

    A key that the file leaves out may be set, but what holds it must be in the file.
    """
    problems: list[str] = []
    for path, text in overrides.items():
        mark = Mark(f"override {path}={text}", 0)
        try:
            _set(tree, path.split("."), parse_value(str(text), mark))
        except DocumentError as error:
            problems += error.problems
        except _Refused as error:
            problems.append(f"{mark}: {error}")
    return problems


class _Refused(Exception):
    """The path leads nowhere; the text says where it ends."""


def _set(tree: Entry, path: list[str], value: Entry) -> None:
    holder = tree
    shape: schema.Shape = ArchSpec
    for depth, key in enumerate(path):
        plain = holder.plain()
        _check_key(shape, plain, path[: depth + 1], last=depth == len(path) - 1)
        if depth == len(path) - 1:
            _put(holder, key, value)
            return
        shape = schema.child(shape, key, plain)
        if schema.is_cost(shape):
            _spell_out(holder, key)
        holder = _get(holder, key)
        if not isinstance(holder.value, (dict, list)):
            found = holder.plain()
            raise _Refused(f"{dotted(path[: depth + 1])}: got the value {found!r}, want something with keys")


def _check_key(shape: schema.Shape, plain: Plain, path: list[str], *, last: bool) -> None:
    """Refuse a key that the schema does not know here, or whose holder is not in the file."""
    key, where = path[-1], dotted(path) or "''"
    if schema.is_list(shape):
        size = len(plain) if isinstance(plain, list) else 0
        if not key.isdecimal() or len(key) > 6 or int(key) >= size:
            raise _Refused(f"{where}: got entry {key!r}, want one from 0 to {size - 1}")
        return
    present = tuple(plain) if isinstance(plain, dict) else ()
    known = schema.fields(shape, plain)
    if known and key not in known:
        raise _Refused(f"{where}: {unknown_key(key, known)}")
    if key in present or (last and (known or not schema.is_mapping(schema.child(shape, key, plain), None))):
        return
    names = present or ("nothing",)
    raise _Refused(
        f"{where}: got a name that is not in the file, want one of {', '.join(names)}{nearest(key, names)}"
    )


def _get(holder: Entry, key: str) -> Entry:
    if isinstance(holder.value, list):
        return holder.value[int(key)]
    assert isinstance(holder.value, dict), holder
    return holder.value[key]


def _put(holder: Entry, key: str, value: Entry) -> None:
    if isinstance(holder.value, list):
        holder.value[int(key)] = value
    elif isinstance(holder.value, dict):
        holder.value[key] = value


def _spell_out(holder: Entry, key: str) -> None:
    """Turn a cost given as a bare number into a mapping, so that its parts can be set."""
    cost = _get(holder, key)
    if not isinstance(cost.value, (dict, list)):
        _put(holder, key, Entry({"base": cost}, cost.mark))
