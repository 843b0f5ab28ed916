"""How do two parameters act together?"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.patches import Rectangle
from typing_extensions import override

from dse.result import Record
from studies.base import Study, StudyFigure, arch_name, axes_of, coordinates, failure, in_order
from studies.plots import HATCH, empty_figure, new_figure, time_unit

MOST_PANELS = 6


class Heatmap(Study):
    """Latency over the two axes with most values; the best over all others; a panel an arch and workload."""

    name: ClassVar[str] = "heatmap"
    question: ClassVar[str] = "How do two parameters act together?"

    @override
    def table(self, results: Sequence[Record]) -> pd.DataFrame:
        axes = axes_of(results)
        chosen = sorted(axes.values(), key=lambda axis: -len(axis.values))[:2]
        rows: list[dict[str, object]] = []
        for record in results:
            here = coordinates(record)
            if len(chosen) < 2 or not all(axis.path in here for axis in chosen):
                continue
            rows.append(
                {
                    "panel": f"{arch_name(record)}, {record['point']['workload']}",
                    "x_axis": chosen[0].label,
                    "y_axis": chosen[1].label,
                    "x": here[chosen[0].path],
                    "y": here[chosen[1].path],
                    "latency_s": record["latency_s"] if record["latency_s"] is not None else np.nan,
                    "problem": failure(record),
                }
            )
        columns = ["panel", "x_axis", "y_axis", "x", "y", "latency_s", "problem"]
        table = pd.DataFrame(rows, columns=columns)
        # With more axes a cell has several points: the fastest stands for it.
        table = table.sort_values("latency_s", kind="stable", na_position="last")
        return table.drop_duplicates(["panel", "x", "y"]).sort_index().reset_index(drop=True)

    @override
    def figures(self, table: pd.DataFrame) -> list[StudyFigure]:
        title = "Two parameters together"
        caption = "Latency; a box marks the best cell; hatched: no result. Of further axes: the best."
        panels = list(dict.fromkeys(table["panel"]))
        if not panels:
            figure = empty_figure("needs at least two swept parameters")
            return [StudyFigure(self.name, title, caption, figure, table)]
        if len(panels) > MOST_PANELS:
            caption += f" The first {MOST_PANELS} of {len(panels)} panels are drawn."
            panels = panels[:MOST_PANELS]
        columns = min(2, len(panels))
        rows = -(-len(panels) // columns)
        figure, grid = new_figure(rows=rows, columns=columns, width=4.8 * columns + 1.2, height=3.6 * rows)
        for axes, panel in zip(grid, panels, strict=False):
            _panel(axes, table[table["panel"] == panel], panel)
        for axes in grid[len(panels) :]:
            axes.set_visible(False)
        return [StudyFigure(self.name, title, caption, figure, table)]


def _panel(axes: Axes, cells: pd.DataFrame, title: str) -> None:
    xs, ys = in_order(list(cells["x"])), in_order(list(cells["y"]))[::-1]
    times = np.full((len(ys), len(xs)), np.nan)
    for x, y, latency in zip(cells["x"], cells["y"], cells["latency_s"].astype(float), strict=True):
        times[ys.index(y), xs.index(x)] = latency * 1e12
    known = times[~np.isnan(times)]
    scale, unit = time_unit(list(known))
    if known.size:
        image = axes.imshow(times / scale, cmap="viridis_r", aspect="auto")
        bar = axes.figure.colorbar(image, ax=axes)
        bar.set_label(f"latency ({unit})")
    middle = (known.max() + known.min()) / 2 if known.size else 0.0
    for (row, column), value in np.ndenumerate(times):
        if np.isnan(value):
            axes.add_patch(_cell(row, column, hatch=HATCH, edgecolor="#999999", linewidth=0))
        else:
            ink = "white" if value > middle else "black"
            axes.text(column, row, f"{value / scale:.3g}", ha="center", va="center", color=ink, fontsize=8)
    if known.size:
        best = np.argwhere(times == known.min())  # of equals the one with the least of both
        row, column = min(best.tolist(), key=lambda cell: (cell[1], -cell[0]))
        axes.add_patch(_cell(row, column, hatch=None, edgecolor="#D55E00", linewidth=2))
    axes.set_xlim(-0.5, len(xs) - 0.5)
    axes.set_ylim(len(ys) - 0.5, -0.5)
    axes.set_xticks(range(len(xs)), xs)
    axes.set_yticks(range(len(ys)), ys)
    axes.grid(visible=False)
    axes.set_title(title, fontsize=9, wrap=True)
    axes.set_xlabel(str(cells["x_axis"].iloc[0]))
    axes.set_ylabel(str(cells["y_axis"].iloc[0]))


def _cell(row: int, column: int, *, hatch: str | None, edgecolor: str, linewidth: float) -> Rectangle:
    return Rectangle(
        (column - 0.5, row - 0.5), 1, 1, fill=False, hatch=hatch, edgecolor=edgecolor, linewidth=linewidth
    )
