"""`dse calibrate`."""

from __future__ import annotations

import os
import re
from dataclasses import asdict
from pathlib import Path
from typing import NoReturn

import typer
from rich import box
from rich.console import Group
from rich.table import Table
from rich.text import Text

from arch_configs import list_archs, load_arch
from dse.accuracy import Accuracy
from dse.calibration import Calibration, Request, calibrate, calibrated_text
from dse.calibration.calibrate import Fitted
from dse.calibration.constants import show_bounds
from dse.calibration.document import num_fitted
from dse.measured import load_measured
from dse.outputs import write_each, writing
from dse.store import write_text
from dse.terminal import OK, emit, fail, user_errors


def show_calibration(measured: Path, request: Request, out: Path | None, json: str | None) -> NoReturn:
    """Fit, show constants and errors, and write the architecture."""
    if out is not None and request.arch not in list_archs() and out.resolve() == Path(request.arch).resolve():
        fail([f"--out {str(out)!r}: got the architecture itself, want another file: it extends that one"])
    with user_errors():
        rows = load_measured(measured)
        found = calibrate(rows, request, heard=lambda line: typer.echo(f"calibrate: {line}", err=True))
        write_each(
            lambda: emit(record(found, measured), json, view(found, measured)),
            lambda: _write(found, measured, out),
        )
    raise typer.Exit(OK)


def _write(found: Calibration, measured: Path, out: Path | None) -> None:
    if out is None:
        typer.echo("nothing written: -o FILE.yaml keeps the result", err=True)
        return
    name = re.sub("[^A-Za-z0-9_.-]", "-", out.stem)
    text = calibrated_text(found, name=name, extends=_base(found.request.arch, out), source=measured.name)
    with writing("--out", out):
        write_text(out, text)
        load_arch(str(out))  # what is written must be readable
    typer.echo(f"architecture: {out}", err=True)


def _base(arch: str, out: Path) -> str:
    """The fitted architecture as the file at `out` names it."""
    if arch in list_archs():
        return arch
    return os.path.join(os.path.relpath(Path(arch).parent, out.parent), Path(arch).name)


def record(found: Calibration, measured: Path) -> dict[str, object]:
    """Everything as plain data; the same for any number of workers."""
    return {
        "arch": found.request.arch,
        "measured": measured.name,
        "seed": found.request.seed,
        "constants": [
            {
                "path": item.constant.path,
                "unit": {"share": "", "rate": "B/s", "time": "ps", "cycles": "cycles"}[item.constant.kind],
                "documented": item.constant.documented,
                "fitted": item.value,
                "standard_error": item.error,
                "low": item.constant.low,
                "high": item.constant.high,
                "prior_spread": item.constant.spread,
                "remark": item.remark,
            }
            for item in found.fitted
        ],
        "left_out": dict(found.left),
        "errors": [
            {"rows": e.name, "before": asdict(e.before), "after": asdict(e.after)} for e in found.errors
        ],
        "rows": [
            {
                "id": row.row.id,
                "op": row.row.op,
                "held_out": row.is_held_out,
                "log_ratio_before": row.before,
                "log_ratio_after": row.after,
            }
            for row in found.rows
        ],
        "rows_without_prediction": {item.row.id: item.reason for item in found.unfit},
        "rows_of_other_architectures": found.others,
        "coverage": asdict(found.coverage),
        "scatter": found.scatter,
        "rounds": found.rounds,
        "settled": found.is_settled,
    }


def view(found: Calibration, measured: Path) -> Group:
    """Everything as tables, and what to be careful about."""
    lines = [Text(line, style="yellow") for line in _warnings(found)]
    return Group(
        _constants(found, measured), *_left(found), _errors(found), *_unfit(found), _counts(found), *lines
    )


def _constants(found: Calibration, measured: Path) -> Table:
    title = f"constants of {found.request.arch}, fitted to {num_fitted(found)} rows of {measured.name}"
    heads = ("constant", "documented", "fitted", "standard error", "prior", "bounds", "")
    table = _table(title, *heads)
    for item in found.fitted:
        constant = item.constant
        table.add_row(
            constant.path,
            constant.show(constant.documented),
            constant.show(item.value),
            constant.show_error(item.error),
            _prior(item),
            show_bounds(constant),
            item.remark,
        )
    return table


def _prior(item: Fitted) -> str:
    constant = item.constant
    if constant.kind in ("share", "rate"):
        return f"± {constant.spread:.0%}"
    return f"± {constant.show(constant.spread)}"


def _left(found: Calibration) -> list[Table]:
    if not found.left:
        return []
    table = _table("constants that keep their value", "constant", "why")
    for path, reason in found.left.items():
        table.add_row(path, reason)
    return [table]


def _errors(found: Calibration) -> Table:
    title = "errors before -> after; mean and bias over ops"
    table = _table(title, "rows", "count", "mean", "median", "max", "bias", "within 10 %")
    for errors in found.errors:
        old, new = errors.before, errors.after
        table.add_row(errors.name, f"{old.count}", *(_change(old, new, name) for name in _SHOWN))
    return table


_SHOWN = ("mean_abs", "median_abs", "max_abs", "bias", "within_10")


def _change(old: Accuracy, new: Accuracy, name: str) -> str:
    form = "+.1%" if name == "bias" else ".1%"
    return f"{getattr(old, name):{form}} -> {getattr(new, name):{form}}"


def _unfit(found: Calibration) -> list[Table]:
    if not found.unfit:
        return []
    table = _table("rows without a prediction, in no fit and no error", "id", "workload", "reason")
    for item in found.unfit:
        table.add_row(item.row.id, item.row.workload, item.reason)
    return [table]


def _counts(found: Calibration) -> str:
    settled = "settled" if found.is_settled else "not settled"
    return (
        f"{len(found.rows)} rows, {len(found.unfit)} without a prediction, "
        f"{found.others} of other architectures; {found.rounds} rounds, {settled}; "
        f"scatter around the fit {found.scatter:.1%}"
    )


def _warnings(found: Calibration) -> list[str]:
    lines = []
    unseen = found.unseen
    if unseen.after.mean_abs >= unseen.before.mean_abs:
        lines.append(f"warning: the error of {unseen.name} did not improve: keep the documented constants")
    if not found.is_settled:
        lines.append("warning: the constants still moved in the last round; the best round is given")
    at_bound = [item.constant.path for item in found.fitted if "bound" in item.remark]
    if at_bound:
        lines.append(f"warning: {', '.join(at_bound)} at a bound: something else than these constants is off")
    return lines


def _table(title: str, *columns: str) -> Table:
    """House style: texts left."""
    table = Table(title=title, box=box.SIMPLE_HEAD, title_justify="left", title_style="bold")
    for column in columns:
        table.add_column(column, overflow="fold")
    return table
