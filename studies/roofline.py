"""What limits each op: the array, the memory, or neither?"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Literal

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.collections import PathCollection
from matplotlib.patheffects import withStroke
from typing_extensions import override

from dse.result import Record, op_cost_ps
from studies.base import Study, StudyFigure, labels
from studies.plots import GREY, colour, empty_figure, log_ticks, marker, new_figure

MOST_PANELS = 6
NAMED_OPS = 4
TEXT_SHARE = 0.28  # of the height of a panel
LEAST_AREA, MOST_AREA = 20, 380  # of marks, in square points
PANEL = (300.0, 200.0)  # size in points, about
COLUMNS = [
    "point", "arch", "workload", "point_ps", "op", "kind", "flops", "dram_bytes", "time_ps",
    "flop_per_byte", "flop_per_s", "peak_flop_per_s", "dram_bytes_per_s", "reachable_bytes_per_s",
]  # fmt: skip


class Roofline(Study):
    """Ops under the ceilings of array and memory."""

    name: ClassVar[str] = "roofline"
    question: ClassVar[str] = "What limits each op: the array, the memory, or neither?"

    @override
    def table(self, results: Sequence[Record]) -> pd.DataFrame:
        rows: list[dict[str, object]] = []
        for label, record in zip(labels(results), results, strict=True):
            array, drams = record["array"], [m for m in record["memory"].values() if m["kind"] == "dram"]
            if record["status"] == "ok" and array is not None and drams:
                head = {
                    "point": label,
                    "arch": record["point"]["arch"],
                    "workload": record["point"]["workload"],
                    "point_ps": record["time_ps"],
                    "peak_flop_per_s": array["peak_flops_per_s"],
                    "dram_bytes_per_s": drams[0]["bandwidth_bytes_per_s"],
                    "reachable_bytes_per_s": _reachable(record),
                }
                rows += [{**head, **row} for row in _op_rows(record)]
        return pd.DataFrame(rows, columns=COLUMNS)

    @override
    def figures(self, table: pd.DataFrame) -> list[StudyFigure]:
        caption = (
            "Ops with matrix work by DRAM bytes moved and FLOP/s reached while their dearest resource was "
            "at work; area shows the share of time, numbers the dearest. Solid: array, and what DRAM and "
            "DMA can move; dotted: DRAM alone, where DMA is slower. The fastest point of each architecture "
            "and workload is drawn. "
            "Ops without matrix work, or without DRAM traffic, are only in the CSV."
        )
        drawn = table.dropna(subset=["flop_per_byte", "flop_per_s"])
        drawn = drawn[(drawn["flops"] > 0) & (drawn["peak_flop_per_s"] > 0)]
        fastest = drawn.sort_values("point_ps", kind="stable").drop_duplicates(["arch", "workload"])
        points = list(fastest.sort_index()["point"])[:MOST_PANELS]
        if not points:
            figure = empty_figure("no op with matrix work and DRAM traffic")
            return [StudyFigure(self.name, "Roofline", caption, figure, table)]
        columns = min(2, len(points))
        rows = -(-len(points) // columns)
        figure, panels = new_figure(rows=rows, columns=columns, width=5.2 * columns + 1, height=3.9 * rows)
        for axes, point in zip(panels, points, strict=False):
            _panel(axes, drawn[drawn["point"] == point], point)
        for axes in panels[len(points) :]:
            axes.set_visible(False)
        return [StudyFigure(self.name, "Roofline", caption, figure, table)]


def _reachable(record: Record) -> float:
    """Bytes/s that DRAM and DMA together can move, as the ops' own bounds were computed with."""
    rates = [op["bytes"] * 1e12 / op["memory_ps"] for op in record["ops"] if op["memory_ps"]]
    return max(rates, default=0.0)


def _op_rows(record: Record) -> list[dict[str, object]]:
    rows: list[dict[str, object]] = []
    for op in record["ops"]:
        cost = op_cost_ps(op)
        rows.append(
            {
                "op": op["op"],
                "kind": op["kind"],
                "flops": op["flops"],
                "dram_bytes": op["bytes"],
                "time_ps": cost,
                "flop_per_byte": op["flops"] / op["bytes"] if op["bytes"] else np.nan,
                "flop_per_s": op["flops"] * 1e12 / cost if cost else np.nan,
            }
        )
    return rows


def _panel(axes: Axes, ops: pd.DataFrame, title: str) -> None:
    first = ops.iloc[0]
    peak, pins, rate = (
        float(first[c]) for c in ("peak_flop_per_s", "dram_bytes_per_s", "reachable_bytes_per_s")
    )
    knee = peak / rate if rate else 1.0
    low = min(float(ops["flop_per_byte"].min()), knee) / 3
    high = max(float(ops["flop_per_byte"].max()), knee) * 4
    bottom = min(float(ops["flop_per_s"].min()), rate * low) / 2
    # Nothing can lie above the peak: that part of the panel is kept for text.
    top = peak * (peak / bottom) ** (TEXT_SHARE / (1 - TEXT_SHARE))
    x = np.geomspace(low, high, 200)
    if pins > 1.01 * rate:
        axes.loglog(x, np.minimum(peak, pins * x) / 1e12, color=GREY, linewidth=1.2, linestyle=":")
    axes.loglog(x, np.minimum(peak, rate * x) / 1e12, color="black", linewidth=1.2)
    _say(axes, f"{peak / 1e12:.4g} TFLOP/s", (high, peak / 1e12), (0, 11), "right")
    _say(axes, f"{rate / 1e9:.4g} GB/s", (low * 1.3, rate * low * 1.3 / 1e12), (12, -3), "left")
    shares = ops["time_ps"] / max(1.0, float(ops["time_ps"].sum()))
    for index, (kind, rows) in enumerate(ops.groupby("kind", sort=True)):
        size = LEAST_AREA + MOST_AREA * shares[rows.index]
        ink, shape, y = colour(index), marker(index), rows["flop_per_s"] / 1e12
        axes.scatter(
            rows["flop_per_byte"], y, s=size, alpha=0.7, color=ink, marker=shape, label=str(kind) or "op"
        )
    axes.set_xlim(low / 1.3, high * 1.3)
    axes.set_ylim(bottom / 1e12, top / 1e12)
    _name_ops(axes, ops.assign(share=shares).loc[shares.nlargest(NAMED_OPS).index])
    axes.set_title(title, fontsize=9, wrap=True)
    axes.set_xlabel("model FLOP per DRAM byte")
    axes.set_ylabel("TFLOP/s")
    log_ticks(axes.xaxis, np.log10(high / low), most=2.9)
    log_ticks(axes.yaxis, np.log10(top / bottom), most=4.0)
    handles = axes.legend(loc="upper right", ncols=3, fontsize=7, handletextpad=0.2, columnspacing=1.0)
    for handle in handles.legend_handles:
        if isinstance(handle, PathCollection):
            handle.set_sizes([30.0])


def _name_ops(axes: Axes, ops: pd.DataFrame) -> None:
    """A number beside each of the dearest marks, and what the numbers mean where no mark can be."""
    lines, taken = [], list[tuple[float, float]]()
    for number, (name, x, y, share) in enumerate(
        zip(ops["op"], ops["flop_per_byte"], ops["flop_per_s"] / 1e12, ops["share"], strict=True), 1
    ):
        lines.append(f"{number}  {name}, {100 * share:.0f} % of the time")
        reach = (LEAST_AREA + MOST_AREA * share) ** 0.5 / 2 + 5
        gap = _free_place(_points(axes, x, y), reach, taken)
        text = axes.annotate(
            str(number), (x, y), xytext=gap, textcoords="offset points", ha="center", va="center", fontsize=7
        )
        text.set_path_effects([withStroke(linewidth=2, foreground="white")])
    axes.text(0.015, 0.985, "\n".join(lines), transform=axes.transAxes, va="top", fontsize=7)


def _points(axes: Axes, x: float, y: float) -> tuple[float, float]:
    """Where a mark is, in points from the corner of a panel of about the usual size."""
    place = []
    for value, (low, high), extent in zip((x, y), (axes.get_xlim(), axes.get_ylim()), PANEL, strict=True):
        place.append(float(np.log(value / low) / np.log(high / low)) * extent)
    return place[0], place[1]


def _free_place(
    mark: tuple[float, float], reach: float, taken: list[tuple[float, float]]
) -> tuple[float, float]:
    """The first of eight places around a mark (twice as far out, if need be) where no number is yet."""
    gaps = [
        (far * reach * float(np.cos(angle)), far * reach * float(np.sin(angle)))
        for far in (1.0, 1.6, 2.2)
        for angle in np.pi * np.array([1.5, 1.25, 1.75, 1.0, 0.0, 0.75, 0.25, 0.5])
    ]
    for gap in gaps:
        place = mark[0] + gap[0], mark[1] + gap[1]
        if all(abs(place[0] - a) > 7 or abs(place[1] - b) > 9 for a, b in taken):
            taken.append(place)
            return gap
    return gaps[0]


def _say(
    axes: Axes, text: str, place: tuple[float, float], gap: tuple[int, int], align: Literal["left", "right"]
) -> None:
    axes.annotate(text, place, xytext=gap, textcoords="offset points", ha=align, fontsize=7)
