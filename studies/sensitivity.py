"""Which parameter moves the latency most?"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Literal

import pandas as pd
from matplotlib.axes import Axes
from typing_extensions import override

from dse.present import show_time
from dse.result import Record
from studies.base import Study, StudyFigure, arch_name, axes_of, coordinates, short
from studies.plots import GREY, HATCH, colour, empty_figure, new_figure

MOST_PANELS = 6
COLUMNS = ["panel", "axis", "value", "base", "base_ps", "time_ps", "change_percent"]


class Sensitivity(Study):
    """One at a time: from the first feasible point of an arch and workload, each axis over its values."""

    name: ClassVar[str] = "sensitivity"
    question: ClassVar[str] = "Which parameter moves the latency most?"

    @override
    def table(self, results: Sequence[Record]) -> pd.DataFrame:
        axes = axes_of(results)
        groups: dict[str, list[Record]] = {}
        for record in results:
            groups.setdefault(f"{arch_name(record)}, {record['point']['workload']}", []).append(record)
        rows: list[dict[str, object]] = []
        for panel, records in groups.items():
            base = next((record for record in records if record["time_ps"]), None)
            if base is not None:
                rows += _one_at_a_time(panel, base, records, list(axes))
        return pd.DataFrame(rows, columns=COLUMNS)

    @override
    def figures(self, table: pd.DataFrame) -> list[StudyFigure]:
        title = "Sensitivity"
        caption = (
            "Change of the latency when one parameter leaves the baseline (the first point with a result) "
            "and all others stay. Hatched: some value gives no result."
        )
        panels = list(dict.fromkeys(table["panel"]))
        if not panels:
            figure = empty_figure("needs a swept parameter and a point with a result")
            return [StudyFigure(self.name, title, caption, figure, table)]
        if len(panels) > MOST_PANELS:
            caption += f" The first {MOST_PANELS} of {len(panels)} panels are drawn."
            panels = panels[:MOST_PANELS]
        most = max(table[table["panel"] == panel]["axis"].nunique() for panel in panels)
        figure, grid = new_figure(rows=len(panels), width=8.5, height=(1.2 + 0.42 * most) * len(panels))
        for axes, panel in zip(grid, panels, strict=True):
            _panel(axes, table[table["panel"] == panel], panel)
        grid[-1].set_xlabel("change of the latency against the baseline (%)")
        return [StudyFigure(self.name, title, caption, figure, table)]


def _one_at_a_time(
    panel: str, base: Record, records: Sequence[Record], axes: list[str]
) -> list[dict[str, object]]:
    """Rows for the points that differ from the baseline in one axis only."""
    home = coordinates(base)
    base_ps = base["time_ps"]
    assert base_ps
    rows: list[dict[str, object]] = []
    for record in records:
        here = coordinates(record)
        moved = [axis for axis in axes if here.get(axis) != home.get(axis)]
        if len(moved) != 1:
            continue
        time_ps = record["time_ps"]
        rows.append(
            {
                "panel": panel,
                "axis": moved[0],
                "value": here.get(moved[0], ""),
                "base": home.get(moved[0], ""),
                "base_ps": base_ps,
                "time_ps": time_ps,
                "change_percent": 100 * (time_ps / base_ps - 1) if time_ps else None,
            }
        )
    return rows


def _panel(axes: Axes, rows: pd.DataFrame, title: str) -> None:
    bars = [(str(axis), group) for axis, group in rows.groupby("axis", sort=False)]
    bars.sort(key=lambda bar: (_span(bar[1])[1] - _span(bar[1])[0], bar[0]))
    for row, (_, group) in enumerate(bars):
        _bar(axes, row, group)
    axes.axvline(0, color="black", linewidth=0.8)
    names = [f"{short(axis)} (base {group['base'].iloc[0]})" for axis, group in bars]
    axes.set_yticks(range(len(names)), names)
    axes.set_ylim(-0.6, len(names) - 0.4)
    axes.margins(x=0.18)
    axes.grid(visible=False, axis="y")
    axes.set_title(f"{title}: baseline {show_time(int(rows['base_ps'].iloc[0]))}", fontsize=9)


def _span(group: pd.DataFrame) -> tuple[float, float]:
    """Lowest and highest change, the baseline's zero included."""
    changes = [0.0, *(float(change) for change in group["change_percent"].dropna())]
    return min(changes), max(changes)


def _bar(axes: Axes, row: int, group: pd.DataFrame) -> None:
    low, high = _span(group)
    axes.barh(row, low, color=colour(2), height=0.6)
    axes.barh(row, high, color=colour(5), height=0.6)
    known = group.dropna(subset=["change_percent"])
    for change, value in zip(known["change_percent"].astype(float), known["value"], strict=True):
        if change in (low, high):
            side: Literal["left", "right"] = "right" if change < 0 else "left"
            axes.annotate(
                str(value),
                (change, row),
                xytext=(-3 if change < 0 else 3, 0),
                textcoords="offset points",
                ha=side,
                va="center",
                fontsize=7,
            )
    if len(known) < len(group):
        axes.barh(row, high - low or 1.0, left=low, color="none", edgecolor=GREY, hatch=HATCH, height=0.6)
