"""What latency does more silicon buy?"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from typing_extensions import override

from dse.label import expected_error
from dse.pareto import pareto_front
from dse.result import Record
from dse.store import sram_bytes
from studies.base import Study, StudyFigure, arch_name, failure, labels
from studies.plots import GREY, colour, marker, new_figure, note, time_unit

# Cost proxy: area of SRAM, array cells and the DRAM interface, at 7 nm. It ranks designs; it is no die area.
SRAM_MM2_PER_MB = 0.41  # published 0.027 um2 high-density bitcell; 55 % array efficiency is assumed
CELL_MM2 = 650e-6  # one bf16 multiply-accumulate cell, assumed; published designs span x0.4 to x2.3
# PHY (10.45 mm2) and controller (about 6 mm2) of a HBM2e stack, constants of LLMCompass (ISCA 2024), over
# the 408 GB/s a stack of the A100 80 GB (2,039 GB/s, 5 stacks). Taken for every kind of DRAM: assumed.
DRAM_MM2_PER_GBPS = 0.040
PROXY = (
    "cost proxy = 0.41 mm2/MB x on-chip memory + 650 um2 x array cells + 0.04 mm2 per GB/s of DRAM bandwidth "
    "(7 nm, one core; all constants are rough)"
)
BAND = (
    "Bars: expected error, of measured rows of the same kinds of op; a point that the front beats by less is "
    "a tie (column tie_with)."
)
MOST_PANELS = 4


def cost_proxy_mm2(sram: int, cells: int, dram_bandwidth: int) -> float:
    """Area of on-chip memory (bytes), array cells and the DRAM interface (bytes/s) at 7 nm, in mm2."""
    return SRAM_MM2_PER_MB * sram / 1e6 + CELL_MM2 * cells + DRAM_MM2_PER_GBPS * dram_bandwidth / 1e9


def _cost(record: Record) -> float:
    """The cost proxy of a record; NaN where the architecture was never resolved."""
    array, sram = record["array"], sram_bytes(record)
    rates = [m["bandwidth_bytes_per_s"] or 0 for m in record["memory"].values() if m["kind"] == "dram"]
    if array is None or sram is None:
        return np.nan
    return cost_proxy_mm2(sram, array["rows"] * array["cols"] * array["units"], sum(rates))


class Pareto(Study):
    """Latency against the cost proxy, one panel a workload."""

    name: ClassVar[str] = "pareto"
    question: ClassVar[str] = "What latency does more silicon buy?"

    @override
    def table(self, results: Sequence[Record]) -> pd.DataFrame:
        rows: list[dict[str, object]] = []
        for label, record in zip(labels(results), results, strict=True):
            rows.append(
                {
                    "workload": record["point"]["workload"],
                    "arch": arch_name(record),
                    "point": label,
                    "problem": failure(record),
                    "cost_proxy_mm2": _cost(record),
                    "latency_s": record["latency_s"] if record["latency_s"] is not None else np.nan,
                    "expected_error": expected_error(record),
                }
            )
        columns = ["workload", "arch", "point", "problem", "cost_proxy_mm2", "latency_s", "expected_error"]
        table = pd.DataFrame(rows, columns=columns).astype({"expected_error": float})
        table["on_front"] = False
        table["same_as"] = ""
        table["tie_with"] = ""
        for _, group in table.groupby("workload", sort=False):
            values = group[["cost_proxy_mm2", "latency_s"]].to_numpy()
            for member in pareto_front(values.tolist(), (False, False)):
                row = group.index[member.index]
                table.loc[row, "on_front"] = True
                if member.same_as != member.index:
                    table.loc[row, "same_as"] = str(group["point"].iloc[member.same_as])
            _mark_ties(table, group.index)
        return table

    @override
    def figures(self, table: pd.DataFrame) -> list[StudyFigure]:
        workloads = list(dict.fromkeys(table["workload"]))
        caption = f"Line: points that no other beats in both. Ticks at the bottom: no result. {BAND} {PROXY}."
        if len(workloads) > MOST_PANELS:
            caption += f" The first {MOST_PANELS} of {len(workloads)} workloads are drawn."
        shown = workloads[:MOST_PANELS] or [""]
        columns = min(2, len(shown))
        rows = -(-len(shown) // columns)
        figure, panels = new_figure(rows=rows, columns=columns, width=5.2 * columns + 1, height=3.7 * rows)
        archs = list(dict.fromkeys(table["arch"]))
        for axes, workload in zip(panels, shown, strict=False):
            _panel(axes, table[table["workload"] == workload], workload, archs)
        for axes in panels[len(shown) :]:
            axes.set_visible(False)
        return [StudyFigure(self.name, "Latency against cost", caption, figure, table)]


def _mark_ties(table: pd.DataFrame, index: pd.Index) -> None:
    """Points that the front beats by less than their expected error: which member, the fastest as cheap."""
    group = table.loc[index]
    front = group[group["on_front"]].sort_values(["latency_s", "cost_proxy_mm2"])
    for row in group.index[~group["on_front"] & group["latency_s"].notna()]:
        point = group.loc[row]
        rivals = front[front["cost_proxy_mm2"] <= point["cost_proxy_mm2"]]
        if len(rivals) and point["latency_s"] * (1 - point["expected_error"]) <= rivals["latency_s"].iloc[0]:
            table.loc[row, "tie_with"] = str(rivals["point"].iloc[0])


def _panel(axes: Axes, rows: pd.DataFrame, workload: str, archs: list[str]) -> None:
    good = rows.dropna(subset=["cost_proxy_mm2", "latency_s"])
    bad = rows[rows["problem"] != ""].dropna(subset=["cost_proxy_mm2"])
    if good.empty:
        reasons = ", ".join(dict.fromkeys(rows["problem"])) or "no points"
        note(axes, f"{workload}\nno point with a result\n{reasons}")
        return
    scale, unit = time_unit(list(good["latency_s"] * 1e12))
    y = good["latency_s"] * 1e12 / scale
    for arch, group in good.groupby("arch", sort=False):
        index = archs.index(str(arch))
        ink, shape = colour(index), marker(index)
        axes.scatter(
            group["cost_proxy_mm2"], y[group.index], s=28, zorder=3, color=ink, marker=shape, label=str(arch)
        )
    known = good.dropna(subset=["expected_error"])
    axes.errorbar(
        known["cost_proxy_mm2"], y[known.index], yerr=known["expected_error"] * y[known.index],
        fmt="none", ecolor=GREY, elinewidth=0.8, capsize=2, zorder=1,
    )  # fmt: skip
    front = good[good["on_front"]].sort_values(["cost_proxy_mm2", "latency_s"])
    axes.step(front["cost_proxy_mm2"], y[front.index], where="post", color="black", linewidth=1, zorder=2)
    if len(bad):
        axes.plot(bad["cost_proxy_mm2"], [0.02] * len(bad), "|", color=GREY, markersize=10,
                  transform=axes.get_xaxis_transform(), label="no result")  # fmt: skip
    axes.set_ylim(bottom=0)
    axes.set_title(workload, fontsize=9)
    axes.set_xlabel("cost proxy (mm2 at 7 nm)")
    axes.set_ylabel(f"latency ({unit})")
    axes.legend()
