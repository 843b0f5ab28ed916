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
from studies.plots import GREY, colour, empty_figure, log_ticks, marker, new_figure

MOST_PANELS = 6
NAMED_OPS = 4
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
            "at work; area shows the share of time. Solid: array, and what DRAM and DMA can move; dotted: "
            "DRAM alone, where DMA is slower. The fastest point of each architecture and workload is drawn. "
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
    x = np.geomspace(low, high, 200)
    if pins > 1.01 * rate:
        axes.loglog(x, np.minimum(peak, pins * x) / 1e12, color=GREY, linewidth=1.2, linestyle=":")
    axes.loglog(x, np.minimum(peak, rate * x) / 1e12, color="black", linewidth=1.2)
    _say(axes, f"{peak / 1e12:.4g} TFLOP/s", (high, peak / 1e12), (0, 4), "right")
    _say(axes, f"{rate / 1e9:.4g} GB/s", (low * 1.3, rate * low * 1.3 / 1e12), (12, -3), "left")
    shares = ops["time_ps"] / max(1.0, float(ops["time_ps"].sum()))
    for index, (kind, rows) in enumerate(ops.groupby("kind", sort=True)):
        size = 20 + 380 * shares[rows.index]
        ink, shape, y = colour(index), marker(index), rows["flop_per_s"] / 1e12
        axes.scatter(
            rows["flop_per_byte"], y, s=size, alpha=0.7, color=ink, marker=shape, label=str(kind) or "op"
        )
    _name_ops(axes, ops.loc[shares.nlargest(NAMED_OPS).index])
    axes.set_title(title, fontsize=9, wrap=True)
    axes.set_xlabel("model FLOP per DRAM byte")
    axes.set_ylabel("TFLOP/s")
    axes.set_ylim(bottom=min(float(ops["flop_per_s"].min()), rate * low) / 2e12, top=peak / 1e12 * 3)
    log_ticks(axes.xaxis)
    log_ticks(axes.yaxis)
    axes.legend(loc="lower right", markerscale=0.5)


def _name_ops(axes: Axes, ops: pd.DataFrame) -> None:
    """Names of ops below their marks; of marks that lie close together, one below the other."""
    placed: list[tuple[float, float]] = []
    for name, x, y in zip(ops["op"], ops["flop_per_byte"], ops["flop_per_s"] / 1e12, strict=True):
        near = sum(max(x / a, a / x) < 4 and max(y / b, b / y) < 2 for a, b in placed)
        placed.append((x, y))
        _say(axes, str(name), (x, y), (-7, -12 - 9 * near), "right")


def _say(
    axes: Axes, text: str, place: tuple[float, float], gap: tuple[int, int], align: Literal["left", "right"]
) -> None:
    axes.annotate(text, place, xytext=gap, textcoords="offset points", ha=align, fontsize=7)
