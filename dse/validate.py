"""Suites of measured rows, what was predicted of them, and how far off that is by device, op and regime."""

from __future__ import annotations

import csv
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, median

from dse.accuracy import Accuracy, accuracy_of_groups
from dse.bands import Band, workload_name
from dse.errors import SpaceError, did_you_mean
from dse.measured import Measured, load_measured
from dse.predict import Prediction
from dse.store import Cell

ALL = "all"


@dataclass(frozen=True, slots=True)
class Suite:
    """A file of measured rows, by its name."""

    name: str
    rows: tuple[Measured, ...]


@dataclass(frozen=True, slots=True)
class Unmapped:
    """Published rows that no point of ours answers, and why."""

    source: str
    reason: str
    ids: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Line:
    """Errors of one group of rows that nothing was fitted to; `all` stands for every value."""

    suite: str
    device: str
    op: str
    regime: str
    accuracy: Accuracy
    roofline: float | None  # mean absolute error of the lower bounds of the same rows; null where some lack


@dataclass(frozen=True, slots=True)
class Validation:
    """Suites with their predictions, in the order of the rows."""

    suites: tuple[Suite, ...]
    predictions: tuple[tuple[str, Prediction], ...]  # suite, prediction

    @property
    def lines(self) -> list[Line]:
        """Errors by suite, then by device, op and regime."""
        return [line for suite in self.suites for line in _lines(suite.name, self._tested(suite.name))]

    @property
    def conditions(self) -> dict[str, Accuracy]:
        """Errors by how the values came about, over all suites."""
        groups: dict[str, list[Prediction]] = defaultdict(list)
        for suite in self.suites:
            for item in self._tested(suite.name):
                groups[item.row.conditions].append(item)
        return {name: accuracy_of_groups(_pairs(items)) for name, items in groups.items()}

    @property
    def fitted(self) -> list[tuple[str, Prediction]]:
        """Rows with a value that something of ours was derived from."""
        return [(suite, item) for suite, item in self.predictions if item.row.fitted and item.ratio]

    @property
    def without(self) -> list[tuple[str, Prediction]]:
        """Rows without a value."""
        return [(suite, item) for suite, item in self.predictions if item.ratio is None]

    def worst(self, count: int) -> list[tuple[str, Prediction]]:
        """The rows whose time is furthest from the measured one, as a factor either way."""
        ranked = [(suite, item) for suite, item in self.predictions if item.ratio and not item.row.fitted]
        ranked.sort(key=lambda found: -_factor(found[1]))
        return ranked[:count]

    def _tested(self, suite: str) -> list[Prediction]:
        found = (item for name, item in self.predictions if name == suite)
        return [item for item in found if item.ratio is not None and not item.row.fitted]


def _factor(item: Prediction) -> float:
    ratio = item.ratio or 1.0
    return max(ratio, 1 / ratio)


def suite_files(folder: Path) -> dict[str, Path]:
    """Files of suites by name."""
    return {file.stem: file for file in sorted(folder.glob("*.csv"))}


def load_suites(folder: Path, names: Sequence[str]) -> tuple[Suite, ...]:
    """The named suites, or all; a name that is a CSV file is a suite of one's own.

    Raises: SpaceError with the problems of all.
    """
    known = suite_files(folder)
    problems, found = [], []
    for name in dict.fromkeys(names or known):
        file = known.get(name, Path(name))
        if name not in known and file.suffix != ".csv":
            problems.append(f"--suite: got {name!r}{did_you_mean(name, known)}")
            continue
        try:
            found.append(Suite(file.stem, load_measured(file)))
        except SpaceError as error:
            problems += error.problems
    if problems:
        raise SpaceError(problems)
    return tuple(found)


def load_unmapped(folder: Path) -> list[Unmapped]:
    """Every reason of every source, with the ids it covers."""
    found = []
    for file in sorted(folder.glob("*.csv")):
        with file.open(newline="", encoding="utf-8") as text:
            found += [
                Unmapped(file.stem, row["reason"], tuple(row["ids"].split())) for row in csv.DictReader(text)
            ]
    return found


def device_of(row: Measured) -> str:
    """Name of the row's architecture, without folder and suffix."""
    return Path(row.arch).stem


def _lines(suite: str, tested: Sequence[Prediction]) -> list[Line]:
    """All rows of a suite; each device; each of its ops; each regime of these."""
    found = [_line(suite, ALL, ALL, ALL, tested)] if tested else []
    for device, rows in _grouped(tested, lambda item: device_of(item.row)):
        found.append(_line(suite, device, ALL, ALL, rows))
        found += [_line(suite, device, ALL, name, items) for name, items in _grouped(rows, _regime)]
        for op, items in _grouped(rows, lambda item: item.row.op):
            found.append(_line(suite, device, op, ALL, items))
            found += [_line(suite, device, op, name, part) for name, part in _grouped(items, _regime)]
    return found


def _regime(item: Prediction) -> str:
    return item.regime or ""


def _grouped(
    items: Iterable[Prediction], key: Callable[[Prediction], str]
) -> list[tuple[str, list[Prediction]]]:
    groups: dict[str, list[Prediction]] = defaultdict(list)
    for item in items:
        groups[key(item)].append(item)
    return sorted(groups.items())


def _line(suite: str, device: str, op: str, regime: str, items: Sequence[Prediction]) -> Line:
    """Errors of a group; mean and bias over the means of its devices and ops."""
    has_bounds = all(item.bound_ps is not None for item in items)
    roofline = accuracy_of_groups(_pairs(items, bounds=True)).mean_abs if has_bounds else None
    return Line(suite, device, op, regime, accuracy_of_groups(_pairs(items)), roofline)


def _pairs(
    items: Iterable[Prediction], *, bounds: bool = False
) -> dict[tuple[str, str], list[tuple[float, float]]]:
    """Measured and predicted times, or lower bounds in place of these, by device and op."""
    pairs = defaultdict(list)
    for item in items:
        if item.times_ps is not None:
            measured, predicted = item.times_ps
            answer = float(item.bound_ps or 0) if bounds else predicted
            pairs[device_of(item.row), item.row.op].append((measured, answer))
    return pairs


def row_cells(suite: str, item: Prediction) -> dict[str, Cell]:
    """A prediction as a flat row of a table."""
    row, ratio = item.row, item.ratio
    return {
        "suite": suite,
        "id": row.id,
        "device": device_of(row),
        "op": row.op,
        "regime": item.regime,
        "workload": short_workload(row),
        "set": ";".join("=".join(pair) for pair in row.overrides),
        "dtype": row.dtype,
        "metric": row.metric,
        "unit": row.unit,
        "measured": row.reference,
        "predicted": item.value,
        "ratio": ratio,
        "error_pct": None if ratio is None else 100 * (ratio - 1),
        "duration_ps": item.duration_ps,
        "bound_ps": item.bound_ps,
        "conditions": row.conditions,
        "fitted": row.fitted,
        "status": item.status,
        "reason": item.reason,
        "source": row.source,
        "note": row.note,
    }


def short_workload(row: Measured) -> str:
    """The row's workload, a file in it without its folder."""
    head, colon, tail = row.workload.partition(":")
    return f"{Path(head).name}{colon}{tail}"


def line_cells(line: Line) -> dict[str, Cell]:
    """A line as a flat row of a table; errors in per cent."""
    found = line.accuracy
    return {
        "suite": line.suite,
        "device": line.device,
        "op": line.op,
        "regime": line.regime,
        "rows": found.count,
        "mean_abs_pct": 100 * found.mean_abs,
        "median_abs_pct": 100 * found.median_abs,
        "max_abs_pct": 100 * found.max_abs,
        "bias_pct": 100 * found.bias,
        "geomean_ratio": found.geomean,
        "rank_correlation": found.rank,
        "within_10_pct": 100 * found.within_10,
        "within_25_pct": 100 * found.within_25,
        "roofline_mean_abs_pct": None if line.roofline is None else 100 * line.roofline,
    }


def bands_of(predictions: Iterable[Prediction]) -> list[Band]:
    """Bands of predictions on silicon; closed forms and rows that something was fitted to are left out."""
    groups: dict[tuple[str, str], list[Prediction]] = defaultdict(list)
    for item in predictions:
        if item.ratio is not None and not item.row.fitted and item.row.conditions != "computed":
            groups[device_of(item.row), item.row.op].append(item)
    return [_band(device, op, items) for (device, op), items in sorted(groups.items())]


def _band(device: str, op: str, items: Sequence[Prediction]) -> Band:
    errors = [(item.ratio or 1.0) - 1 for item in items]
    sizes = [abs(error) for error in errors]
    names = sorted({workload_name(item.row.workload) for item in items if not item.row.is_kernel})
    return Band(
        device=device,
        op=op,
        rows=len(items),
        mean_abs=round(fmean(sizes), 4),
        median_abs=round(median(sizes), 4),
        bias=round(fmean(errors), 4),
        workloads=tuple(name for name in names if "/" not in name),
    )
