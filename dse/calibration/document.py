"""The result as an architecture file that extends the one that was fitted."""

from __future__ import annotations

import json
import re

from arch_configs.units import BYTES, PICOSECONDS, format_quantity
from dse.calibration.calibrate import Calibration, Fitted

Tree = dict[str, "Tree | str"]
_PLAIN = re.compile(r"[A-Za-z_./][A-Za-z0-9_./-]*")


def calibrated_text(found: Calibration, *, name: str, extends: str, source: str) -> str:
    """A YAML file; `source` is what its comments call the file of the rows."""
    unseen = found.unseen
    error = f"{unseen.name} error {unseen.after.mean_abs:.1%}"
    why = f"calibrated: {num_fitted(found)} rows of {' '.join(source.split())}, {error}"
    head = [
        f"# {quoted(extends)} with constants that dse calibrate fitted; seed {found.request.seed}.",
        f"# Mean absolute error, {unseen.name} ({unseen.after.count} rows):",
        f"# {unseen.before.mean_abs:.1%} before, {unseen.after.mean_abs:.1%} now; standard errors in ().",
        f"name: {quoted(name)}",
        f"extends: {quoted(extends)}",
    ]
    tree: Tree = {}
    for item in found.fitted:
        _put(tree, item.constant.path.split("."), _value(item, why))
    return "\n".join([*head, *_lines(tree, 0), *_coverage(found, source)]) + "\n"


def num_fitted(found: Calibration) -> int:
    """Rows that the fit saw."""
    return sum(not row.is_held_out for row in found.rows)


def quoted(text: str) -> str:
    """A text as YAML, in quotes where it needs them."""
    return text if _PLAIN.fullmatch(text) else json.dumps(text)


def _value(item: Fitted, why: str) -> str:
    constant = item.constant
    about = f"was {constant.show(constant.documented)} ({constant.show_error(item.error)})"
    return f"{constant.show(item.value)}  # {why}; {about}{', ' + item.remark if item.remark else ''}"


def _put(tree: Tree, path: list[str], text: str) -> None:
    for part in path[:-1]:
        below = tree.setdefault(part, {})
        assert isinstance(below, dict), path
        tree = below
    tree[path[-1]] = text


def _lines(tree: Tree, depth: int) -> list[str]:
    found = []
    for key, below in tree.items():
        if isinstance(below, dict):
            found += [f"{'  ' * depth}{key}:", *_lines(below, depth + 1)]
        else:
            found.append(f"{'  ' * depth}{key}: {below}")
    return found


def _coverage(found: Calibration, source: str) -> list[str]:
    cover = found.coverage
    ranges = [
        (f"{name}_{end}", text)
        for name, values, show in (
            ("time", _outward(cover.time_ps), lambda value: format_quantity(value, PICOSECONDS)),
            ("dram_bytes", _outward(cover.dram_bytes), lambda value: format_quantity(value, BYTES)),
            ("macs", cover.macs, str),
        )
        for end, text in zip(("min", "max"), map(show, values), strict=True)
    ]
    lines = [
        ("source", json.dumps(source)),
        ("rows", f"{num_fitted(found)}"),
        ("unseen_error_pct", f"{100 * found.unseen.after.mean_abs:.2f}"),
        ("classes", f"[{', '.join(map(json.dumps, cover.classes))}]"),
        ("ops", f"[{', '.join(map(json.dumps, cover.kinds))}]"),
        *ranges,
    ]
    return ["calibration:  # dse run warns outside of this", *(f"  {key}: {text}" for key, text in lines)]


def _outward(ends: tuple[int, int]) -> tuple[int, int]:
    """A range with its ends at four digits, rounded so that nothing inside gets outside."""
    low, high = (10 ** max(0, len(str(end)) - 4) for end in ends)
    return ends[0] // low * low, -(-ends[1] // high) * high
