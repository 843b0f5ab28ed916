"""Which op is how far from the exact result?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import pandas as pd
from matplotlib.figure import Figure

from dse.numerics import OpError
from studies.plots import GREY, colour, new_figure

MOST_OPS = 80  # drawn; all are in the CSV


def write_numerics(found: Sequence[OpError], folder: Path) -> list[Path]:
    """`numerics.csv` and `numerics.png` in `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    table = numerics_frame(found)
    paths = [folder / "numerics.csv", folder / "numerics.png"]
    table.to_csv(paths[0], index=False)
    numerics_figure(table).savefig(paths[1], dpi=150, bbox_inches="tight")
    return paths


def numerics_frame(found: Sequence[OpError]) -> pd.DataFrame:
    """One row an op, in program order."""
    return pd.DataFrame([{**asdict(item), "passed": item.passed} for item in found])


def numerics_figure(table: pd.DataFrame) -> Figure:
    """Relative error of each op, of the program and of rounding alone, with the tolerance."""
    shown = table.head(MOST_OPS)
    figure, (axes,) = new_figure(width=9.0, height=1.4 + 0.2 * len(shown))
    places = range(len(shown))
    smallest = 1e-9  # an error of zero has no place on a logarithmic axis
    axes.plot(shown["relative"].clip(lower=smallest), places, "o", color=colour(0), label="program")
    axes.plot(
        shown["rounding"].clip(lower=smallest),
        places,
        "|",
        color=colour(1),
        label="rounding of stored values",
    )
    axes.plot(shown["tolerance"], places, color=GREY, linewidth=1, label="tolerance")
    axes.set_yticks(
        list(places), [f"{op} ({kind})" for op, kind in zip(shown["op"], shown["kind"], strict=True)]
    )
    axes.invert_yaxis()
    axes.set_xscale("log")
    axes.set_xlabel("largest error / largest magnitude of the exact result")
    figure.legend(loc="outside upper center", ncols=3)
    return figure
