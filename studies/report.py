"""Records to one page that needs nothing else, with each figure as PNG and its numbers as CSV."""

from __future__ import annotations

import csv
import html
from collections.abc import Sequence
from pathlib import Path

from dse.errors import SpaceError
from dse.present import show_share, show_time
from dse.result import DEFINITIONS, Record, parse_record
from dse.space import load_study
from dse.store import JOURNAL, flatten, read_journal, write_csv, write_text
from studies import STUDIES
from studies.base import failure, labels
from studies.page import CSS, PAGE, figure_section, html_table, save_figure
from studies.pareto import PROXY
from studies.plots import style

MOST_ROWS = 400


def report_folder(folder: Path) -> Path:
    """Report on a sweep's folder; returns the page. Raises SpaceError when there is nothing in it."""
    single = folder / "record.json"
    if (folder / JOURNAL).exists():
        records = _in_study_order(folder)
    elif single.exists():
        try:
            records = [parse_record(single.read_text(encoding="utf-8"), str(single))]
        except ValueError as error:
            raise SpaceError([str(error)]) from error
    else:
        raise SpaceError([f"{folder}: got no {JOURNAL}, want the folder of a sweep; run dse sweep first"])
    if not records:
        raise SpaceError([f"{folder / JOURNAL}: got no record, want at least one; run dse sweep again"])
    name, question = _study_of(folder)
    return write_report(records, folder / "report", title=name, question=question)


def _study_of(folder: Path) -> tuple[str, str]:
    """Name and question of the study that a sweep left in its folder; else the folder's name."""
    try:
        spec = load_study(folder / "study.yaml").spec
    except SpaceError:
        return folder.resolve().name, ""
    return spec.name, spec.question


def _in_study_order(folder: Path) -> list[Record]:
    """Records as `points.csv` lists them: the study's present points, in its order."""
    records, _ = read_journal(folder / JOURNAL)
    points = folder / "points.csv"
    if not points.exists():
        return [records[key] for key in sorted(records)]
    with points.open(newline="", encoding="utf-8") as file:
        listed = [row["id"] for row in csv.DictReader(file)]
    return [records[key] for key in listed if key in records]


def write_report(records: Sequence[Record], folder: Path, *, title: str, question: str = "") -> Path:
    """Write the page, and PNG and CSV of every figure; returns the page's path."""
    folder.mkdir(parents=True, exist_ok=True)
    sections = []
    for study in STUDIES.values():
        table = study.table(records)
        with style():
            for drawn in study.figures(table):
                save_figure(drawn, folder)
                sections.append(figure_section(study.question, drawn))
    write_csv(
        folder / "points.csv",
        [{"point": name, **flatten(r)} for name, r in zip(labels(records), records, strict=True)],
    )
    page = folder / PAGE
    write_text(page, _page(title, question, records, sections))
    return page


def _page(title: str, question: str, records: Sequence[Record], sections: Sequence[str]) -> str:
    counts = {status: sum(r["status"] == status for r in records) for status in ("ok", "infeasible", "error")}
    summary = ", ".join(f"{count} {status}" for status, count in counts.items() if count)
    definitions = "".join(
        f"<li><b>{html.escape(name)}</b>: {html.escape(text)}</li>" for name, text in DEFINITIONS.items()
    )
    asked = f"<p><b>{html.escape(question)}</b></p>\n" if question else ""
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{html.escape(title)}</title>'
        f"<style>{CSS}</style></head><body>\n<h1>{html.escape(title)}</h1>\n"
        f"{asked}"
        f"<p>{len(records)} points: {summary}. Times are predictions, from simulating the compiled program; "
        "they are not measurements.</p>\n"
        f"<h2>Points</h2>\n{_points(records)}\n<ul>{definitions}<li>{html.escape(PROXY)}</li></ul>\n"
        f"{''.join(sections)}<h2>Without a result</h2>\n{_failures(records)}\n"
        f"<h2>Provenance</h2>\n{_provenance(records)}\n</body></html>\n"
    )


def _points(records: Sequence[Record]) -> str:
    rows = []
    for label, record in zip(labels(records)[:MOST_ROWS], records, strict=False):
        rates = ", ".join(
            f"{show_rate(v)} {k.removesuffix('_per_s')}/s" for k, v in record["throughput"].items()
        )
        bad = failure(record)
        failed = [name for name, passed in record["audit"].items() if not passed]
        audit = f"failed: {', '.join(failed)}" if failed else ("pass" if record["audit"] else "-")
        cells = [label, record["point"]["workload"], show_time(record["time_ps"]), rates]
        cells += [show_share(record["mfu"]), show_share(record["hfu"]), show_share(record["mbu"])]
        cells += [audit, bad or "ok"]
        rows.append((bool(bad), cells))
    head = ["point", "workload", "time", "throughput", "mfu", "hfu", "mbu", "audit", "status"]
    more = len(records) - MOST_ROWS
    tail = f"<p>{more} more points are in points.csv.</p>" if more > 0 else ""
    return html_table(head, rows) + tail


def show_rate(value: float) -> str:
    """Whole numbers with thousands apart, below a hundred four digits; never a power of ten."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.4g}"


def _failures(records: Sequence[Record]) -> str:
    rows = []
    for label, record in zip(labels(records), records, strict=True):
        reason = record["reason"]
        if reason is None:
            continue
        amounts = [
            f"{x:,} {reason['unit']}" if x is not None else "-"
            for x in (reason["needed"], reason["available"])
        ]
        rows.append((True, [label, reason["code"], reason["resource"], *amounts, reason["fix"]]))
    if not rows:
        return "<p>Every point has a result.</p>"
    return html_table(["point", "code", "resource", "needed", "available", "fix"], rows[:MOST_ROWS])


def _provenance(records: Sequence[Record]) -> str:
    """What made the numbers: one line a distinct value."""
    facts: dict[str, list[str]] = {}
    for record in records:
        facts.setdefault("model source digest", []).append(record["digests"]["model"])
        facts.setdefault("fidelity", []).append(record["point"]["fidelity"])
        facts.setdefault("seed", []).append(str(record["point"]["seed"]))
        for key in ("version", "commit", "python", "simpy", "numpy", "host"):
            if record["provenance"].get(key) is not None:
                facts.setdefault(key, []).append(str(record["provenance"][key]))
    spent = [w for r in records if isinstance(w := r["provenance"].get("wall_s"), (int, float))]
    dates = sorted(str(r["provenance"]["date"]) for r in records if r["provenance"].get("date"))
    if dates:
        facts = {"date": list(dict.fromkeys((dates[0], dates[-1]))), **facts}
    lines = [(False, [name, ", ".join(dict.fromkeys(values))]) for name, values in facts.items()]
    lines.append((False, ["evaluation time, all points", f"{sum(spent):.3g} s"]))
    commands = [
        f"dse run {r['point']['arch']} '{r['point']['workload']}'"
        + "".join(f" --set {path}='{text}'" for path, text in r["point"]["overrides"].items())
        for r in records[:1]
    ]
    lines.append((False, ["the first point again", commands[0] if commands else ""]))
    return html_table(["what", "value"], lines)
