"""Predicted against measured, and the errors of each op."""

from __future__ import annotations

import math

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.ticker import NullLocator

from studies.base import StudyFigure
from studies.plots import GREY, colour, log_ticks, marker, new_figure, time_unit

BANDS = ((1.25, "#F0F0F0"), (1.10, "#DCDCDC"))  # factors either way, the wider one first
ROW = 0.34  # inches an op takes
TICKS = (0.25, 0.5, 0.75, 1.0, 1.25, 1.5, 2.0, 3.0, 4.0)
LOWEST, HIGHEST = TICKS[0], TICKS[-1]  # ratios; what lies outside is drawn at the edge


def figures(rows: pd.DataFrame) -> list[StudyFigure]:
    """One scatter a device with measurements, and the errors by op; of rows that have a value."""
    known = rows[rows["ratio"].notna() & (rows["conditions"] != "computed")]
    if known.empty:
        return []
    drawn = [_scatter(str(device), part) for device, part in known.groupby("device", sort=True)]
    return [*drawn, _errors(known)]


def _scatter(device: str, part: pd.DataFrame) -> StudyFigure:
    """Predicted over measured time, both logarithmic; a hollow mark is a row that something was fitted to."""
    table = part.assign(
        predicted_ps=part["duration_ps"], measured_ps=part["duration_ps"] / part["ratio"]
    ).sort_values(["op", "id"])
    scale, unit = time_unit([float(table[["predicted_ps", "measured_ps"]].min().min()) * 100])
    figure, (axes,) = new_figure(width=6.4, height=5.6)
    ends = [float(table[["predicted_ps", "measured_ps"]].to_numpy().min()) / scale / 1.6]
    ends.append(float(table[["predicted_ps", "measured_ps"]].to_numpy().max()) / scale * 1.6)
    for factor, shade in BANDS:
        axes.fill_between(ends, [e / factor for e in ends], [e * factor for e in ends], color=shade, zorder=0)
    axes.plot(ends, ends, color=GREY, linewidth=1, zorder=1)
    for index, (op, items) in enumerate(table.groupby("op", sort=True)):
        for is_fitted, some in items.groupby(items["fitted"] != ""):
            axes.plot(
                some["measured_ps"] / scale, some["predicted_ps"] / scale, marker(index), color=colour(index),
                markersize=5.5, markerfacecolor="none" if is_fitted else colour(index), linestyle="none",
                label=f"{op} ({len(items)})", zorder=2,
            )  # fmt: skip
    axes.set(xscale="log", yscale="log", title=device)
    for axis, name in ((axes.xaxis, "measured"), (axes.yaxis, "predicted")):
        log_ticks(axis, math.log10(ends[1] / ends[0]), 2.0)
        axis.set_label_text(f"{name} time ({unit})")
    axes.set(xlim=ends, ylim=ends, aspect="equal")
    _legend(axes)
    return StudyFigure(
        f"scatter-{device}",
        f"Predicted against measured: {device}",
        "Each mark is a published row. The bands are 10 % and 25 % either way; above the line the prediction "
        "is slower. Hollow marks are rows that a constant of ours was derived from: they test nothing.",
        figure,
        table[["suite", "id", "op", "regime", "workload", "measured_ps", "predicted_ps", "ratio", "fitted"]],
    )


def _legend(axes: Axes) -> None:
    """One entry an op, filled."""
    handles, names = axes.get_legend_handles_labels()
    first = {name: handle for handle, name in reversed(list(zip(handles, names, strict=True)))}
    entries = [
        Line2D([], [], marker=h.get_marker(), color=h.get_color(), linestyle="none", label=name)
        for name, h in sorted(first.items())
        if isinstance(h, Line2D)
    ]
    axes.legend(handles=entries, loc="upper left", title="op (rows)")


def _errors(known: pd.DataFrame) -> StudyFigure:
    """Ratios of each device and op: every row a mark, the median a bar."""
    table = known[known["fitted"] == ""].copy()
    table["group"] = table["device"] + "  " + table["op"]
    groups = sorted(table["group"].unique(), reverse=True)
    figure, (axes,) = new_figure(width=7.6, height=1.3 + ROW * len(groups))
    for factor, shade in BANDS:
        axes.axvspan(1 / factor, factor, color=shade, zorder=0)
    axes.axvline(1.0, color=GREY, linewidth=1)
    regimes = sorted(table["regime"].unique())
    for index, regime in enumerate(regimes):
        part = table[table["regime"] == regime]
        places = [groups.index(name) + 0.18 * (index - (len(regimes) - 1) / 2) for name in part["group"]]
        axes.plot(
            part["ratio"].clip(LOWEST, HIGHEST), places, marker(index), color=colour(index), markersize=5,
            alpha=0.8, linestyle="none", label=regime,
        )  # fmt: skip
    for place, name in enumerate(groups):
        middle = float(table[table["group"] == name]["ratio"].median())
        axes.plot([middle] * 2, [place - 0.36, place + 0.36], color="black", linewidth=1.5)
    counts = table["group"].value_counts()
    axes.set_yticks(range(len(groups)), [f"{name} ({counts[name]})" for name in groups])
    axes.set_xscale("log")
    axes.set_xticks(TICKS, [f"{tick:g}" for tick in TICKS])
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set_xlim(
        0.96 * table["ratio"].clip(LOWEST, 0.5).min(), 1.04 * table["ratio"].clip(2.0, HIGHEST).max()
    )
    axes.set_xlabel("predicted time / measured time")
    figure.legend(loc="outside upper center", ncols=3)
    return StudyFigure(
        "errors-by-op",
        "Errors of each op",
        "Predicted over measured time of every row that nothing was fitted to; the bar is the median, the "
        f"bands are 10 % and 25 % either way. What lies outside {LOWEST:g} to {HIGHEST:g} is at the edge.",
        figure,
        table[["suite", "device", "op", "regime", "id", "workload", "ratio"]],
    )
