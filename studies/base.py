"""What a study is: a question, a table that answers it, and figures of the table."""

from __future__ import annotations

import abc
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import pandas as pd
from matplotlib.figure import Figure

from arch_configs.units import BYTES, BYTES_PER_SECOND, HERTZ, PICOSECONDS
from dse.result import Record


@dataclass(frozen=True, slots=True)
class StudyFigure:
    """A drawn figure with its caption and the very numbers in it."""

    name: str  # file name without suffix
    title: str
    caption: str
    figure: Figure
    data: pd.DataFrame


class Study(abc.ABC):
    """Computes first, then draws: `table` is tested, `figures` is looked at."""

    name: ClassVar[str]
    question: ClassVar[str]

    @abc.abstractmethod
    def table(self, results: Sequence[Record]) -> pd.DataFrame:
        """The numbers, one row a mark; column names carry units. Points without a result stay in."""

    @abc.abstractmethod
    def figures(self, table: pd.DataFrame) -> list[StudyFigure]:
        """Figures of the table; of a table with nothing to draw, one that says so."""


@dataclass(frozen=True, slots=True)
class SweptAxis:
    """Something that was varied: a dotted path (or several that always change together)."""

    path: str  # the first of them: the key in `coordinates`
    label: str  # short names of all of them
    values: tuple[str, ...]  # by size where they are numbers or quantities, else as they came


def axes_of(results: Sequence[Record]) -> dict[str, SweptAxis]:
    """Overrides and options with more than one value, by path."""
    rows = [coordinates(record) for record in results]
    names = dict.fromkeys(name for row in rows for name in row)
    groups: dict[tuple[int, ...], list[str]] = {}
    for name in names:
        texts = [row.get(name, "") for row in rows]
        values = list(dict.fromkeys(texts))
        if len(values) > 1:
            groups.setdefault(tuple(values.index(text) for text in texts), []).append(name)
    found = {}
    for paths in groups.values():
        texts = [row.get(paths[0], "") for row in rows]
        label = " = ".join(short(path) for path in paths)
        found[paths[0]] = SweptAxis(paths[0], label, in_order(texts))
    return found


def in_order(texts: Sequence[str]) -> tuple[str, ...]:
    """Distinct texts; by size if each is a number or a quantity."""
    distinct = tuple(dict.fromkeys(texts))
    sizes = [magnitude(text) for text in distinct]
    if any(size is None for size in sizes):
        return distinct
    return tuple(text for _, text in sorted(zip(sizes, distinct, strict=True), key=lambda pair: pair[0] or 0))


def magnitude(text: str) -> float | None:
    """Size of `24 MiB` or `128`; None for anything else."""
    number, _, unit = text.strip().partition(" ")
    scales = {"": 1, **BYTES, **BYTES_PER_SECOND, **HERTZ, **PICOSECONDS}
    try:
        return float(number) * scales[unit.strip()]
    except (ValueError, KeyError):
        return None


def coordinates(record: Record) -> dict[str, str]:
    """Overrides and options of a record as text."""
    point = record["point"]
    options = {f"options.{name}": str(value).lower() for name, value in point["options"].items()}
    return {**options, **point["overrides"]}


def arch_name(record: Record) -> str:
    """Name of an architecture, or of the file it is in."""
    return record["point"]["arch"].rpartition("/")[2].removesuffix(".yaml")


def short(path: str) -> str:
    """The last two parts of a dotted path: what tells axes apart in a figure."""
    return ".".join(path.split(".")[-2:])


def labels(results: Sequence[Record]) -> list[str]:
    """A short name for every record: what differs between them."""
    axes = axes_of(results)
    workloads = short_workloads(results)
    found = []
    for record in results:
        here = coordinates(record)
        parts = [arch_name(record)]
        if len(workloads) > 1:
            parts.append(workloads[record["point"]["workload"]])
        parts += [f"{axis.label} {here[axis.path]}" for axis in axes.values() if axis.path in here]
        found.append(", ".join(parts))
    return found


def short_workloads(results: Sequence[Record]) -> dict[str, str]:
    """Workload texts without their keys, where that still tells them apart."""
    texts = list(dict.fromkeys(record["point"]["workload"] for record in results))
    names = [re.sub(r"[:,][^:,]*=.*", "", text) for text in texts]
    return {text: name if names.count(name) == 1 else text for text, name in zip(texts, names, strict=True)}


def failure(record: Record) -> str:
    """Why a record has no result; empty if it has one."""
    if record["status"] == "ok":
        return ""
    reason = record["reason"]
    return f"{record['status']}: {reason['code'] if reason else 'unknown'}"
