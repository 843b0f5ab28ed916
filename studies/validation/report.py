"""The page of a validation: tables of errors, figures, the worst rows, and what could not be compared."""

from __future__ import annotations

import csv
import html
from collections.abc import Mapping, Sequence
from pathlib import Path

import pandas as pd

from dse.digest import model_digest
from dse.measured import CONDITIONS
from dse.predict import Prediction
from dse.store import Cell, write_csv, write_text
from dse.validate import (
    ALL,
    Line,
    Unmapped,
    Validation,
    device_of,
    line_cells,
    row_cells,
    short_workload,
)
from studies.page import CSS, PAGE, figure_section, html_table, save_figure
from studies.plots import style
from studies.validation.plots import figures

HERE = Path(__file__).parent
SUITES, UNMAPPED = HERE / "suites", HERE / "unmapped"
WORST = 20
NOTE = (
    "An error above zero means that the prediction is slower. Mean and bias are over the means of each "
    "device and op, so that the many rows of one op do not outweigh the others. The roofline is the error "
    "of the analytic lower bound on the same rows: what a calculation without a program and a machine "
    "would say. Rows that a constant of ours was derived from are in no mean."
)
_QUESTION = "How far are predictions from what was measured?"


def claims() -> list[dict[str, str]]:
    """The error that other simulators claim, or that was recomputed from their published points."""
    with (HERE / "simulators.csv").open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def write_validation(found: Validation, unmapped: Sequence[Unmapped], folder: Path) -> Path:
    """Write the page, PNG and CSV of each figure, `rows.csv` and `errors.csv`; returns the page's path."""
    folder.mkdir(parents=True, exist_ok=True)
    rows = [row_cells(suite, item) for suite, item in found.predictions]
    write_csv(folder / "rows.csv", rows)
    write_csv(folder / "errors.csv", [line_cells(line) for line in found.lines])
    drawn = []
    with style():
        for figure in figures(pd.DataFrame(rows)):
            save_figure(figure, folder)
            drawn.append(figure_section(_QUESTION, figure))
    page = folder / PAGE
    write_text(page, _page(found, unmapped, drawn))
    return page


def _page(found: Validation, unmapped: Sequence[Unmapped], drawn: Sequence[str]) -> str:
    counts = ", ".join(f"{suite.name} {len(suite.rows)}" for suite in found.suites)
    kinds = "".join(f"<li><b>{name}</b>: {html.escape(text)}</li>" for name, text in CONDITIONS.items())
    by_kind = html_table(CONDITION_HEAD, [(False, texts) for texts in condition_texts(found)])
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>validation</title>'
        f"<style>{CSS}</style></head><body>\n<h1>Validation</h1>\n<p><b>{_QUESTION}</b></p>\n"
        f"<p>Rows: {counts}. {html.escape(NOTE)}</p>\n"
        f"<h2>Errors</h2>\n{html_table(HEAD, [(False, cells(line)) for line in found.lines])}\n"
        f"{''.join(drawn)}<h2>The worst rows</h2>\n{_rows(found.worst(WORST))}\n"
        f"<h2>Rows that constants were derived from</h2>\n{_rows(found.fitted)}\n"
        f"<h2>Rows without a prediction</h2>\n{_without(found)}\n"
        f"<h2>What other simulators claim</h2>\n{_claims()}\n"
        f"<h2>Published rows that are not compared</h2>\n{_unmapped(unmapped)}\n"
        f"<h2>By how the values came about</h2>\n{by_kind}\n<ul>{kinds}</ul>\n"
        f'<p>All rows with their sources: <a href="rows.csv">rows.csv</a>; all errors: '
        f'<a href="errors.csv">errors.csv</a>. Model source digest: {model_digest()}.</p>\n</body></html>\n'
    )


HEAD = (
    "suite", "device", "op", "regime", "rows", "mean |error|", "median", "max", "bias", "rank", "within 10 %",
    "within 25 %", "roofline",
)  # fmt: skip


def cells(line: Line) -> list[str]:
    """A line of errors as the texts of a table."""
    values = line_cells(line)
    names = ("mean_abs_pct", "median_abs_pct", "max_abs_pct", "bias_pct")
    errors = [_percent(values[name], signed=name == "bias_pct") for name in names]
    rank = "-" if line.accuracy.rank is None else f"{line.accuracy.rank:.3f}"
    shares = [_percent(values[name]) for name in ("within_10_pct", "within_25_pct", "roofline_mean_abs_pct")]
    where = [line.suite, *("" if text == ALL else text for text in (line.device, line.op, line.regime))]
    return [*where, str(line.accuracy.count), *errors, rank, *shares]


CONDITION_HEAD = ("conditions", "rows", "mean |error|", "median", "bias", "within 10 %", "within 25 %")


def condition_texts(found: Validation) -> list[list[str]]:
    """Errors by the conditions of rows, as the texts of a table."""
    rows = []
    for name, item in sorted(found.conditions.items()):
        errors = [_percent(100 * item.mean_abs), _percent(100 * item.median_abs)]
        errors.append(_percent(100 * item.bias, signed=True))
        shares = [_percent(100 * share) for share in (item.within_10, item.within_25)]
        rows.append([name, str(item.count), *errors, *shares])
    return rows


def _percent(value: Cell, *, signed: bool = False) -> str:
    if not isinstance(value, float):
        return "-"
    return f"{value:+.1f} %" if signed else f"{value:.1f} %"


def _rows(found: Sequence[tuple[str, Prediction]]) -> str:
    if not found:
        return "<p>None.</p>"
    rows = [(False, row_texts(item)) for _, item in found]
    return html_table(ROW_HEAD, rows)


ROW_HEAD = ("id", "device", "op", "workload", "measured", "predicted", "ratio", "regime", "note")


def row_texts(item: Prediction) -> list[str]:
    """A row and its prediction as the texts of a table."""
    row, value, ratio = item.row, item.value, item.ratio
    measured, predicted = (f"{x:.4g} {row.unit}" if x is not None else "-" for x in (row.reference, value))
    share = "-" if ratio is None else f"{ratio:.3f}"
    note = f"derived: {row.fitted}" if row.fitted else row.note
    texts = [row.id, device_of(row), row.op, short_workload(row), measured, predicted, share]
    return [*texts, item.regime or "", note]


def _without(found: Validation) -> str:
    rows = [
        (True, [item.row.id, device_of(item.row), short_workload(item.row), item.status, item.reason])
        for _, item in found.without
    ]
    if not rows:
        return "<p>Every row has one.</p>"
    return html_table(("id", "device", "workload", "status", "reason"), rows)


def _claims() -> str:
    names = ("simulator", "workload", "hardware", "error_pct", "what", "kind", "source")
    return html_table(("simulator", "workload", "hardware", "error, %", *names[4:]), _texts(claims(), names))


def _texts(rows: Sequence[Mapping[str, str]], names: Sequence[str]) -> list[tuple[bool, list[str]]]:
    return [(False, [row[name] for name in names]) for row in rows]


def _unmapped(found: Sequence[Unmapped]) -> str:
    rows = [(False, [item.source, item.reason, str(len(item.ids)), _few(item.ids)]) for item in found]
    return html_table(("source", "reason", "rows", "ids"), rows)


def _few(ids: Sequence[str], most: int = 4) -> str:
    return " ".join(ids[:most]) + (" ..." if len(ids) > most else "")
