"""`dse validate`."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib import resources
from pathlib import Path
from typing import NoReturn

import typer
from rich import box
from rich.console import Group
from rich.table import Table

from dse.alive import alive
from dse.bands import FILE, bands_text
from dse.outputs import write_each, writing
from dse.pool import Evaluate
from dse.predict import points_of, predict
from dse.progress import Bar, Lines
from dse.store import write_text
from dse.terminal import OK, PARTIAL, console, emit, user_errors
from dse.validate import (
    ALL,
    Unmapped,
    Validation,
    bands_of,
    device_of,
    line_cells,
    load_suites,
    load_unmapped,
    row_cells,
)
from studies.validation import SUITES, UNMAPPED, cells, claims, row_texts, write_validation
from studies.validation.report import CONDITION_HEAD, HEAD, ROW_HEAD, condition_texts

WORST = 10


def show_validation(
    names: Sequence[str],
    folder: Path | None,
    json: str | None,
    evaluate: Evaluate,
    jobs: int,
    *,
    write_bands: bool = False,
) -> NoReturn:
    """Predict the rows of the suites, show how far off that is, and exit by whether all could be."""
    with user_errors():
        found = _validation(names, evaluate, jobs)
        unmapped = load_unmapped(UNMAPPED)
        write_each(
            lambda: emit(_record(found, unmapped), json, _view(found, unmapped)),
            lambda: _report(found, unmapped, folder),
            lambda: _write_bands(found) if write_bands else None,
        )
    failed = any(item.status == "error" for _, item in found.predictions)
    raise typer.Exit(PARTIAL if failed else OK)


def _write_bands(found: Validation) -> None:
    """Into the package itself: the file is generated and comes with it."""
    with resources.as_file(resources.files("dse") / FILE) as file, writing("--write-bands", file):
        write_text(file, bands_text(bands_of(item for _, item in found.predictions)))
    typer.echo(f"bands: {file}", err=True)


def list_suites() -> dict[str, str]:
    """Suites by name, with the number of rows and the devices."""
    suites = load_suites(SUITES, ())
    devices = {s.name: dict.fromkeys(device_of(row) for row in s.rows) for s in suites}
    return {s.name: f"{len(s.rows)} rows on {', '.join(devices[s.name])}" for s in suites}


def _validation(names: Sequence[str], evaluate: Evaluate, jobs: int) -> Validation:
    suites = load_suites(SUITES, names)
    rows = [row for suite in suites for row in suite.rows]
    owners = [suite.name for suite in suites for _ in suite.rows]
    listener = Bar if sys.stderr.isatty() else Lines
    with listener("validate", len(points_of(rows)), console(error=True)) as heard:
        found = predict(rows, evaluate, jobs=jobs, heard=lambda record: heard(None, record))
    return Validation(suites, tuple(zip(owners, found, strict=True)))


def _report(found: Validation, unmapped: Sequence[Unmapped], folder: Path | None) -> None:
    if folder is None:
        return
    with writing("--out", folder), alive("report"):
        page = write_validation(found, unmapped, folder)
    typer.echo(f"report: {page}", err=True)


def _record(found: Validation, unmapped: Sequence[Unmapped]) -> dict[str, object]:
    return {
        "suites": {suite.name: len(suite.rows) for suite in found.suites},
        "errors": [line_cells(line) for line in found.lines],
        "rows": [row_cells(suite, item) for suite, item in found.predictions],
        "unmapped": [{"source": u.source, "reason": u.reason, "count": len(u.ids)} for u in unmapped],
        "claims": claims(),
    }


def _view(found: Validation, unmapped: Sequence[Unmapped]) -> Group:
    errors = [_errors(suite.name, found) for suite in found.suites]
    worst = _table("the worst rows; ratio: predicted over measured time", *ROW_HEAD[:-1])
    for _, item in found.worst(WORST):
        worst.add_row(*row_texts(item)[:-1])
    others = _table("claimed by others", "simulator", "workload", "hardware", "error, %")
    for claim in claims():
        others.add_row(claim["simulator"], claim["workload"], claim["hardware"], claim["error_pct"])
    return Group(*errors, _conditions(found), worst, *_missing(found), others, _counts(found, unmapped))


def _errors(suite: str, found: Validation) -> Table:
    """Devices, their ops, and their regimes; the page has the regimes of each op too."""
    title = f"{suite}: errors; mean and bias over devices and ops, without rows that something was fitted to"
    table = _table(title, *HEAD[1:])
    for line in found.lines:
        if line.suite == suite and ALL in (line.op, line.regime):
            table.add_row(*cells(line)[1:])
    return table


def _conditions(found: Validation) -> Table:
    table = _table("errors by how the values came about, all suites", *CONDITION_HEAD)
    for texts in condition_texts(found):
        table.add_row(*texts)
    return table


def _missing(found: Validation) -> list[Table]:
    if not found.without:
        return []
    table = _table("rows without a prediction", "id", "arch", "workload", "status", "reason")
    for suite, item in found.without:
        row = row_cells(suite, item)
        table.add_row(*(str(row[name]) for name in ("id", "device", "workload", "status", "reason")))
    return [table]


def _counts(found: Validation, unmapped: Sequence[Unmapped]) -> str:
    rows, left = len(found.predictions), sum(len(item.ids) for item in unmapped)
    without = f"{len(found.without)} without a prediction, {len(found.fitted)} that something was fitted to"
    return f"{rows} rows, {without}; {left} published rows are not compared, see studies/validation/unmapped"


def _table(title: str, *columns: str) -> Table:
    """Texts left, numbers right."""
    texts = (
        "conditions",
        "suite",
        "device",
        "op",
        "regime",
        "id",
        "workload",
        "reason",
        "status",
        "simulator",
        "hardware",
    )
    table = Table(title=title, box=box.SIMPLE_HEAD, title_justify="left", title_style="bold")
    for column in columns:
        table.add_column(column, justify="left" if column in texts else "right", overflow="fold")
    return table
