"""House style: colours that the colour-blind can tell apart, units on axes, nothing decorative."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

# Okabe and Ito, "Color universal design", 2008.
PALETTE = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#F0E442", "#000000")
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")
GREY = "#BBBBBB"
HATCH = "////"

_STYLE: Any = {  # matplotlib's own type for it is a list of every setting there is
    "font.size": 9,
    "axes.titlesize": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#E4E4E4",
    "grid.linewidth": 0.6,
    "legend.frameon": False,
    "legend.fontsize": 8,
    "hatch.linewidth": 0.6,
    "svg.hashsalt": "accel-dse",  # the same figure gives the same bytes
}


def new_figure(
    *, rows: int = 1, columns: int = 1, width: float = 8.0, height: float = 4.5
) -> tuple[Figure, list[Axes]]:
    """A figure with its axes in reading order. Drawn without pyplot: no global state, no display."""
    figure = Figure(figsize=(width, height), layout="constrained")
    grid = figure.subplots(rows, columns, squeeze=False)
    return figure, [axes for row in grid for axes in row]


def note(axes: Axes, text: str) -> None:
    """Say in the middle of empty axes why they are empty."""
    axes.set_axis_off()
    axes.text(0.5, 0.5, text, ha="center", va="center", transform=axes.transAxes, color="#666666", wrap=True)


def empty_figure(text: str) -> Figure:
    """A small figure that says why there is nothing to draw."""
    figure, (axes,) = new_figure(height=1.6)
    note(axes, text)
    return figure


def colour(index: int) -> str:
    """Colour of the n-th series."""
    return PALETTE[index % len(PALETTE)]


def marker(index: int) -> str:
    """Marker of the n-th series; another one than in the round of colours before."""
    return MARKERS[(index + index // len(PALETTE)) % len(MARKERS)]


def log_ticks(axis: Axis, decades: float, most: float) -> None:
    """Plain numbers at 1, 2 and 5 of each decade, beyond `most` decades at 1 only: labels need room."""
    axis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0) if decades <= most else (1.0,)))
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axis.set_minor_locator(LogLocator(subs=range(2, 10)))
    axis.set_minor_formatter(NullFormatter())


def time_unit(values_ps: Sequence[float]) -> tuple[float, str]:
    """Divisor and name of the unit in which the largest value has at most four digits."""
    top = max(values_ps, default=0.0)
    for name, scale in (("s", 1e12), ("ms", 1e9), ("us", 1e6), ("ns", 1e3)):
        if top >= scale:
            return scale, name
    return 1.0, "ps"


def style() -> AbstractContextManager[None]:
    """Context in which figures are drawn and saved; the settings are global to matplotlib outside it."""
    return mpl.rc_context(_STYLE)
