"""Rows of published or own measurements: what was run, what was seen, and what of ours answers it.

A file is CSV with a header. How a row maps to an architecture and a workload stands in the row.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from dse.errors import SpaceError, did_you_mean
from dse.point import Point

REQUIRED = ("id", "arch", "workload", "metric", "value", "unit", "op", "conditions", "source")
OPTIONAL = ("set", "options", "dtype", "margin", "fitted", "note")
COLUMNS = (*REQUIRED, *OPTIONAL)

TIMES_PS = {"ps": 1.0, "ns": 1e3, "us": 1e6, "ms": 1e9, "s": 1e12}
CYCLES = "cycles"  # of the engine that the metric names
WORK = {"GB/s": 1e9, "TFLOP/s": 1e12}  # DRAM bytes moved, or FLOPs of the model, by time
THROUGHPUTS = ("tokens/s", "images/s", "steps/s", "ops/s")  # as the workload counts its work
UNITS = (*TIMES_PS, CYCLES, *WORK, *THROUGHPUTS)

BUSY = "busy:"  # of an engine: `busy:tensor`
METRICS = ("time", "kernel", f"{BUSY}ENGINE")
CONDITIONS = {
    "measured": "on silicon, by whoever published it",
    "baseline": "a vendor's stored regression baseline, taken on silicon",
    "threshold": "a regression limit: `margin` times what was measured",
    "report": "by a user, with less known of how",
    "computed": "by a closed form or from RTL: no silicon",
}


@dataclass(frozen=True, slots=True)
class Measured:
    """One measured value and the point that answers it.

    `metric` is the duration that is compared: `time` of a run with its launch, `kernel` without, or
    `busy:ENGINE`. `unit` says how the value expresses it: as a time, in cycles of that engine, or as a
    rate over it. `fitted` names what in our files was derived from this row; such a row is no test of it.
    """

    id: str
    arch: str
    workload: str
    metric: str
    value: float
    unit: str
    op: str
    conditions: str
    source: str
    overrides: tuple[tuple[str, str], ...] = ()
    options: tuple[tuple[str, str], ...] = ()
    dtype: str = ""
    margin: float = 1.0
    fitted: str = ""
    note: str = ""
    where: str = ""  # file:line

    @property
    def point(self) -> Point:
        """What to evaluate."""
        return Point(self.arch, self.workload, self.overrides, self.options)

    @property
    def is_kernel(self) -> bool:
        """Whether the workload is a tile kernel, `FILE.py:NAME,size=number`, in place of a graph."""
        return self.workload.partition(":")[0].endswith(".py")

    @property
    def reference(self) -> float:
        """The value that was measured, in `unit`: a limit without its margin."""
        return self.value / self.margin

    @property
    def is_rate(self) -> bool:
        """Whether more is faster."""
        return self.unit not in TIMES_PS and self.unit != CYCLES

    @property
    def engine(self) -> str | None:
        """The engine whose busy time is compared."""
        return self.metric.removeprefix(BUSY) if self.metric.startswith(BUSY) else None


def load_measured(file: Path) -> tuple[Measured, ...]:
    """Rows of a CSV file in its order. An `arch` or workload that is a file beside it is taken from there.

    Raises: SpaceError with every problem, as file:line, what was got and what is wanted.
    """
    header, lines = _read(file)
    problems = _header_problems(file, header)
    if problems:
        raise SpaceError(problems)
    rows, seen = [], dict[str, str]()
    for number, cells in lines:
        where = f"{file}:{number}"
        if len(cells) != len(header):
            problems.append(f"{where}: got {len(cells)} cells, want {len(header)}; quote a cell with commas")
            continue
        found = {name: cell.strip() for name, cell in zip(header, cells, strict=True)}
        wrong = [f"{where}: {line}" for line in _problems(found)]
        if found["id"] in seen:
            wrong.append(
                f"{where}: id: got {found['id']!r} again, want it once; it is at {seen[found['id']]}"
            )
        seen.setdefault(found["id"], where)
        problems += wrong
        if not wrong:
            rows.append(_row(found, file, where))
    if not problems and not rows:
        problems.append(f"{file}: got no row, want at least one")
    if problems:
        raise SpaceError(problems)
    return tuple(rows)


def _read(file: Path) -> tuple[list[str], list[tuple[int, list[str]]]]:
    """Header, and the other lines that are not empty with the number of their last line."""
    try:
        with file.open(newline="", encoding="utf-8-sig") as text:
            reader = csv.reader(text, strict=True)
            header = [name.strip() for name in next(reader, [])]
            return header, [(reader.line_num, cells) for cells in reader if any(cells)]
    except OSError as error:
        raise SpaceError([f"{file}: got no readable file ({error.strerror}), want a CSV of rows"]) from error
    except UnicodeDecodeError as error:
        raise SpaceError([f"{file}: got bytes that are not UTF-8 text, want a CSV of rows"]) from error
    except csv.Error as error:
        raise SpaceError([f"{file}:{reader.line_num}: got no CSV: {error}"]) from error


def _header_problems(file: Path, header: Sequence[str]) -> list[str]:
    where = f"{file}:1"
    problems = [
        f"{where}: got an unknown column {name!r}{did_you_mean(name, COLUMNS)}"
        for name in header
        if name not in COLUMNS
    ]
    problems += [f"{where}: got no column {name!r}, want it" for name in REQUIRED if name not in header]
    twice = [name for name in dict.fromkeys(header) if header.count(name) > 1]
    return problems + [f"{where}: got column {name!r} twice, want it once" for name in twice]


def _problems(cells: Mapping[str, str]) -> list[str]:
    """What is wrong with a row, without where."""
    found = [f"{name}: got nothing, want a text" for name in REQUIRED if not cells[name]]
    found += _unknown("unit", cells["unit"], UNITS)
    found += _unknown("conditions", cells["conditions"], CONDITIONS)
    metric, unit = cells["metric"], cells["unit"]
    is_busy = metric.startswith(BUSY) and metric != BUSY
    if metric and not is_busy and metric not in METRICS[:2]:
        found += _unknown("metric", metric, METRICS)
    elif unit == CYCLES and not is_busy:
        found.append(f"unit: got cycles of {metric!r}, want them of an engine, such as metric {BUSY}tensor")
    found += _number_problems("value", cells["value"], 0.0)
    margin = cells.get("margin", "")
    if cells["conditions"] == "threshold":
        found += _number_problems("margin", margin, 1.0)
    elif margin:
        found.append(f"margin: got {margin!r}, want nothing: only a threshold has one")
    for name in ("set", "options"):
        found += [
            f"{name}: got {part!r}, want path=value;path=value"
            for part in _parts(cells.get(name, ""))
            if not all(side.strip() for side in part.partition("="))
        ]
    return found


def _unknown(name: str, value: str, known: Iterable[str]) -> list[str]:
    names = list(known)
    if not value or value in names:
        return []
    return [f"{name}: got {value!r}{did_you_mean(value, names)}"]


def _number_problems(name: str, text: str, least: float) -> list[str]:
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    want = "a number above 0" if least == 0 else f"a number of at least {least:g}"
    is_good = math.isfinite(number) and number >= least and number > 0
    return [] if is_good or (not text and name == "value") else [f"{name}: got {text!r}, want {want}"]


def _parts(text: str) -> list[str]:
    return [part for part in text.split(";") if part.strip()]


def _pairs(text: str) -> tuple[tuple[str, str], ...]:
    split = (part.partition("=") for part in _parts(text))
    return tuple((path.strip(), value.strip()) for path, _, value in split)


def _row(cells: Mapping[str, str], file: Path, where: str) -> Measured:
    return Measured(
        id=cells["id"],
        arch=_beside(file, cells["arch"]),
        workload=_beside(file, cells["workload"]),
        metric=cells["metric"],
        value=float(cells["value"]),
        unit=cells["unit"],
        op=cells["op"],
        conditions=cells["conditions"],
        source=cells["source"],
        overrides=_pairs(cells.get("set", "")),
        options=_pairs(cells.get("options", "")),
        dtype=cells.get("dtype", ""),
        margin=float(cells.get("margin") or 1.0),
        fitted=cells.get("fitted", ""),
        note=cells.get("note", ""),
        where=where,
    )


def _beside(file: Path, text: str) -> str:
    """A file beside the rows is meant as such; anything else is left as it is."""
    head, colon, tail = text.partition(":")
    beside = file.parent / head
    return f"{beside}{colon}{tail}" if Path(head).suffix and beside.is_file() else text
