"""Which parameter moves the latency most?"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import pandas as pd
from matplotlib.axes import Axes
from typing_extensions import override

from dse.present import show_time
from dse.result import Record
from studies.base import Study, StudyFigure, SweptAxis, arch_name, axes_of, coordinates
from studies.plots import colour, empty_figure, new_figure

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
                rows += _one_at_a_time(panel, base, records, list(axes.values()))
        return pd.DataFrame(rows, columns=COLUMNS)

    @override
    def figures(self, table: pd.DataFrame) -> list[StudyFigure]:
        title = "Sensitivity"
        caption = (
            "Change of the latency when one parameter leaves the baseline (the first point with a result) "
            "and all others stay; the values at the ends of the bars."
        )
        panels = list(dict.fromkeys(table["panel"]))
        if not panels:
            figure = empty_figure("needs a swept parameter and a point with a result")
            return [StudyFigure(self.name, title, caption, figure, table)]
        if len(panels) > MOST_PANELS:
            caption += f" The first {MOST_PANELS} of {len(panels)} panels are drawn."
            panels = panels[:MOST_PANELS]
        most = max(table[table["panel"] == panel]["axis"].nunique() for panel in panels)
        figure, grid = new_figure(rows=len(panels), width=8.5, height=(1.2 + 0.5 * most) * len(panels))
        for axes, panel in zip(grid, panels, strict=True):
            _panel(axes, table[table["panel"] == panel], panel)
        grid[-1].set_xlabel("change of the latency against the baseline (%)")
        return [StudyFigure(self.name, title, caption, figure, table)]


def _one_at_a_time(
    panel: str, base: Record, records: Sequence[Record], axes: Sequence[SweptAxis]
) -> list[dict[str, object]]:
    """Rows for the points that differ from the baseline in one axis only."""
    home = coordinates(base)
    base_ps = base["time_ps"]
    assert base_ps
    rows: list[dict[str, object]] = []
    for record in records:
        here = coordinates(record)
        moved = [axis for axis in axes if here.get(axis.path) != home.get(axis.path)]
        if len(moved) != 1:
            continue
        time_ps = record["time_ps"]
        rows.append(
            {
                "panel": panel,
                "axis": moved[0].label,
                "value": here.get(moved[0].path, ""),
                "base": home.get(moved[0].path, ""),
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
    axes.set_yticks(range(len(bars)), [f"{axis}\nbase {group['base'].iloc[0]}" for axis, group in bars])
    axes.set_ylim(-0.6, len(bars) - 0.4)
    axes.margins(x=0.3)
    axes.grid(visible=False, axis="y")
    axes.set_title(f"{title}: baseline {show_time(int(rows['base_ps'].iloc[0]))}", fontsize=9)


def _span(group: pd.DataFrame) -> tuple[float, float]:
    """Lowest and highest change, the baseline's zero included."""
    changes = [0.0, *(float(change) for change in group["change_percent"].dropna())]
    return min(changes), max(changes)


def _bar(axes: Axes, row: int, group: pd.DataFrame) -> None:
    """A bar from the lowest to the highest change, the values at its ends, and those without a result."""
    low, high = _span(group)
    axes.barh(row, low, color=colour(2), height=0.55)
    axes.barh(row, high, color=colour(5), height=0.55)
    by_change = dict(zip(group["change_percent"].fillna(0.0).astype(float), group["value"], strict=True))
    missing = [str(value) for value in group["value"][group["change_percent"].isna()]]
    right = [str(by_change[high])] if high > 0 else []
    right += [f"({', '.join(missing)}: no result)"] if missing else []
    if low == high and not missing:
        right = ["no change"]
    for place, gap, side, text in (
        (low, -3, "right", str(by_change[low]) if low < 0 else ""),
        (high, 3, "left", " ".join(right)),
    ):
        axes.annotate(
            text, (place, row), xytext=(gap, 0), textcoords="offset points", ha=side, va="center", fontsize=7
        )
