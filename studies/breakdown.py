"""Where does the time of each point go?"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import pandas as pd
from matplotlib.figure import Figure
from typing_extensions import override

from dse.present import causes, show_time
from dse.result import Record
from studies.base import Study, StudyFigure, failure, labels
from studies.plots import GREY, HATCH, colour, empty_figure, new_figure

MOST_BARS = 48
BUSY, IDLE = "busy", "idle"


class Breakdown(Study):
    """The array's time by what it did or waited for; a bar a point."""

    name: ClassVar[str] = "breakdown"
    question: ClassVar[str] = "Where does the time of each point go?"

    @override
    def table(self, results: Sequence[Record]) -> pd.DataFrame:
        rows: list[dict[str, object]] = []
        for label, record in zip(labels(results), results, strict=True):
            head = {"point": label, "problem": failure(record), "time_ps": record["time_ps"]}
            arrays = [engine for engine in record["engines"].values() if engine["kind"] == "systolic"]
            if not arrays:
                rows.append({**head, "part": "", "part_ps": 0})
                continue
            parts = {BUSY: arrays[0]["busy_ps"]}
            parts |= {f"waits for {cause}": spent for cause, spent in causes(arrays[0]).items()}
            parts[IDLE] = arrays[0]["idle_ps"]
            rows += [{**head, "part": part, "part_ps": spent} for part, spent in parts.items()]
        return pd.DataFrame(rows, columns=["point", "problem", "time_ps", "part", "part_ps"])

    @override
    def figures(self, table: pd.DataFrame) -> list[StudyFigure]:
        caption = (
            "Share of the time in which the matrix array is busy, waits (by cause) or has nothing to do. "
            "Right: total time. Hatched: points without a result."
        )
        points = list(dict.fromkeys(table["point"]))
        if len(points) > MOST_BARS:
            caption += f" The first {MOST_BARS} of {len(points)} points are drawn; all are in the CSV."
        figure = _bars(table, points[:MOST_BARS]) if points else empty_figure("no points")
        return [StudyFigure(self.name, "Time breakdown", caption, figure, table)]


def _bars(table: pd.DataFrame, points: list[str]) -> Figure:
    figure, (axes,) = new_figure(width=9.5, height=1.6 + (0.34 if len(points) <= 12 else 0.22) * len(points))
    totals = table[table["part"] != ""].groupby("part")["part_ps"].sum().sort_values(ascending=False)
    parts = [BUSY, *(str(part) for part in totals.index if part not in (BUSY, IDLE)), IDLE]
    keys = zip(table["point"], table["part"], strict=True)
    by_part = dict(zip(keys, table["part_ps"].astype(float), strict=True))
    time = dict(zip(table["point"], table["time_ps"].astype(float), strict=True))
    left = dict.fromkeys(points, 0.0)
    for index, part in enumerate(parts):
        shares = [100 * by_part.get((p, part), 0.0) / time[p] if time[p] > 0 else 0.0 for p in points]
        if any(shares):
            ink, start = GREY if part == IDLE else colour(index), [left[p] for p in points]
            axes.barh(points, shares, left=start, color=ink, label=part, height=0.7)
        left = {p: left[p] + share for p, share in zip(points, shares, strict=True)}
    problems = dict(zip(table["point"], table["problem"], strict=True))
    for row, point in enumerate(points):
        if left[point] == 0.0:
            axes.barh(point, 100, color="white", edgecolor=GREY, hatch=HATCH, height=0.7)
            text = problems[point] or "no simulation at this fidelity"
            axes.text(50, row, text, ha="center", va="center", fontsize=8, backgroundcolor="white")
        if not problems[point]:
            axes.text(101, row, show_time(int(time[point])), va="center", fontsize=8)
    axes.tick_params(axis="y", labelsize=8 if len(points) <= 12 else 7)
    axes.set_xlim(0, 114)
    axes.set_xticks(range(0, 101, 20))
    axes.set_xlabel("share of the time (%)")
    axes.set_ylim(len(points) - 0.4, -0.6)
    axes.grid(visible=False, axis="y")
    handles, names = axes.get_legend_handles_labels()
    if handles:
        figure.legend(handles, names, loc="outside upper center", ncols=min(5, len(handles)))
    return figure
