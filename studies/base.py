"""What a study is: a question, a table that answers it, and figures of the table."""

from __future__ import annotations

import abc
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import pandas as pd
from matplotlib.figure import Figure

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


def axes_of(results: Sequence[Record]) -> dict[str, list[str]]:
    """What was varied, by column: overrides and options with more than one value, values in order.

    Axes that always change together are one, called by the first of them.
    """
    rows = [coordinates(record) for record in results]
    names = dict.fromkeys(name for row in rows for name in row)
    found: dict[str, list[str]] = {}
    patterns: list[list[int]] = []
    for name in names:
        texts = [row.get(name, "") for row in rows]
        values = list(dict.fromkeys(texts))
        pattern = [values.index(text) for text in texts]
        if len(values) > 1 and pattern not in patterns:
            found[name] = values
            patterns.append(pattern)
    return found


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
    workloads = {record["point"]["workload"] for record in results}
    found = []
    for record in results:
        here = coordinates(record)
        parts = [arch_name(record)]
        if len(workloads) > 1:
            parts.append(record["point"]["workload"])
        parts += [f"{short(axis)}={here[axis]}" for axis in axes if axis in here]
        found.append(", ".join(parts))
    return found


def failure(record: Record) -> str:
    """Why a record has no result; empty if it has one."""
    if record["status"] == "ok":
        return ""
    reason = record["reason"]
    return f"{record['status']}: {reason['code'] if reason else 'unknown'}"
