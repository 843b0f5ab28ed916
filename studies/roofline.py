"""What limits each op: the array, the memory, or neither?"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Literal

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from typing_extensions import override

from dse.result import Record, op_cost_ps
from studies.base import Study, StudyFigure, labels
from studies.plots import colour, empty_figure, log_ticks, marker, new_figure

MOST_PANELS = 4
COLUMNS = [
    "point", "workload", "op", "kind", "flops", "dram_bytes", "time_ps",
    "flop_per_byte", "flop_per_s", "peak_flop_per_s", "dram_bytes_per_s",
]  # fmt: skip


class Roofline(Study):
    """Ops under the ceilings of array and DRAM."""

    name: ClassVar[str] = "roofline"
    question: ClassVar[str] = "What limits each op: the array, the memory, or neither?"

    @override
    def table(self, results: Sequence[Record]) -> pd.DataFrame:
        rows: list[dict[str, object]] = []
        for label, record in zip(labels(results), results, strict=True):
            array, drams = record["array"], [m for m in record["memory"].values() if m["kind"] == "dram"]
            if record["status"] != "ok" or array is None or not drams:
                continue
            for op in record["ops"]:
                cost = op_cost_ps(op)
                rows.append(
                    {
                        "point": label,
                        "workload": record["point"]["workload"],
                        "op": op["op"],
                        "kind": op["kind"],
                        "flops": op["flops"],
                        "dram_bytes": op["bytes"],
                        "time_ps": cost,
                        "flop_per_byte": op["flops"] / op["bytes"] if op["bytes"] else np.nan,
                        "flop_per_s": op["flops"] * 1e12 / cost if cost else np.nan,
                        "peak_flop_per_s": array["peak_flops_per_s"],
                        "dram_bytes_per_s": drams[0]["bandwidth_bytes_per_s"],
                    }
                )
        return pd.DataFrame(rows, columns=COLUMNS)

    @override
    def figures(self, table: pd.DataFrame) -> list[StudyFigure]:
        caption = (
            "Ops with matrix work by DRAM bytes moved and FLOP/s reached while their dearest resource was "
            "at work; area shows the share of time. Ops without matrix work, or without DRAM traffic, are "
            "only in the CSV."
        )
        drawn = table.dropna(subset=["flop_per_byte", "flop_per_s"])
        drawn = drawn[drawn["flops"] > 0]
        points = list(dict.fromkeys(drawn["point"]))
        if not points:
            figure = empty_figure("no op with matrix work and DRAM traffic")
            return [StudyFigure(self.name, "Roofline", caption, figure, table)]
        if len(points) > MOST_PANELS:
            caption += f" The first {MOST_PANELS} of {len(points)} points are drawn."
            points = points[:MOST_PANELS]
        columns = min(2, len(points))
        rows = -(-len(points) // columns)
        figure, panels = new_figure(rows=rows, columns=columns, width=5.2 * columns + 1, height=3.9 * rows)
        for axes, point in zip(panels, points, strict=False):
            _panel(axes, drawn[drawn["point"] == point], point)
        for axes in panels[len(points) :]:
            axes.set_visible(False)
        return [StudyFigure(self.name, "Roofline", caption, figure, table)]


def _panel(axes: Axes, ops: pd.DataFrame, title: str) -> None:
    peak, rate = float(ops["peak_flop_per_s"].iloc[0]), float(ops["dram_bytes_per_s"].iloc[0])
    knee = peak / rate if rate else 1.0
    low = min(float(ops["flop_per_byte"].min()), knee) / 3
    high = max(float(ops["flop_per_byte"].max()), knee) * 3
    x = np.geomspace(low, high, 200)
    axes.loglog(x, np.minimum(peak, rate * x) / 1e12, color="black", linewidth=1.2)
    _say(axes, f"{peak / 1e12:.4g} TFLOP/s", (high, peak / 1e12), (0, 4), align="right")
    _say(axes, f"{rate / 1e9:.4g} GB/s", (low, rate * low / 1e12), (14, 2))
    shares = ops["time_ps"] / max(1.0, float(ops["time_ps"].sum()))
    for index, (kind, rows) in enumerate(ops.groupby("kind", sort=True)):
        size = 20 + 380 * shares[rows.index]
        ink, shape = colour(index), marker(index)
        axes.scatter(
            rows["flop_per_byte"],
            rows["flop_per_s"] / 1e12,
            s=size,
            alpha=0.7,
            color=ink,
            marker=shape,
            label=str(kind) or "op",
        )
    for label, drop in zip(shares.nlargest(4).index, (-10, -19, -28, -37), strict=False):
        row = ops.loc[label]
        _say(axes, str(row["op"]), (row["flop_per_byte"], row["flop_per_s"] / 1e12), (7, drop))
    axes.set_title(title, fontsize=9, wrap=True)
    axes.set_xlabel("model FLOP per DRAM byte")
    axes.set_ylabel("TFLOP/s")
    axes.set_ylim(top=peak / 1e12 * 3)
    log_ticks(axes.xaxis)
    log_ticks(axes.yaxis)
    axes.legend(loc="lower right", markerscale=0.5)


def _say(
    axes: Axes,
    text: str,
    place: tuple[float, float],
    gap: tuple[int, int],
    align: Literal["left", "right"] = "left",
) -> None:
    axes.annotate(text, place, xytext=gap, textcoords="offset points", ha=align, fontsize=7)
