"""When is each engine at work?"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from typing import ClassVar

import numpy as np
import numpy.typing as npt
import pandas as pd
from typing_extensions import override

from dse.evaluation import evaluate_traced
from dse.result import Record, point_of
from eventsim import BoundProgram, Trace
from eventsim.trace import records
from studies.base import Study, StudyFigure, labels
from studies.plots import empty_figure, new_figure, time_unit

BINS = 240
MOST_RECORDS = 400_000  # per stream; assumed: a second of work. Beyond it only the start is drawn
Ints = npt.NDArray[np.int64]
COLUMNS = ["point", "engine", "start_ps", "end_ps", "busy_share"]


class Timeline(Study):
    """Share of each engine's time at work, over the run of the fastest point, simulated again."""

    name: ClassVar[str] = "timeline"
    question: ClassVar[str] = "When is each engine at work?"

    @override
    def table(self, results: Sequence[Record]) -> pd.DataFrame:
        ok = [
            (record["time_ps"], label, record)
            for label, record in zip(labels(results), results, strict=True)
            if record["time_ps"] and record["engines"]
        ]
        if not ok:
            return pd.DataFrame(columns=COLUMNS)
        _, label, chosen = min(ok, key=lambda item: (item[0], item[1]))
        again, bound, trace = evaluate_traced(point_of(chosen))
        if bound is None or trace is None:
            return pd.DataFrame(columns=COLUMNS)
        if again["time_ps"] != chosen["time_ps"]:
            label += " (the model has changed since: simulated anew)"
        return timeline_table(bound, trace, label)

    @override
    def figures(self, table: pd.DataFrame) -> list[StudyFigure]:
        title = "Utilization over time"
        if table.empty:
            figure = empty_figure("no simulated point to draw")
            return [StudyFigure(self.name, title, "Nothing was simulated.", figure, table)]
        engines = list(dict.fromkeys(table["engine"]))
        image = np.stack([table[table["engine"] == engine]["busy_share"] for engine in engines])
        end = float(table["end_ps"].max())
        scale, unit = time_unit([end])
        figure, (axes,) = new_figure(width=9.5, height=1.4 + 0.3 * len(engines))
        drawn = axes.imshow(
            100 * image, aspect="auto", cmap="viridis", vmin=0, vmax=100, interpolation="nearest",
            extent=(0, end / scale, len(engines) - 0.5, -0.5),
        )  # fmt: skip
        axes.set_yticks(range(len(engines)), engines)
        axes.grid(visible=False)
        axes.set_xlabel(f"time since the first instruction ({unit})")
        figure.colorbar(drawn, ax=axes, label="at work (%)", pad=0.01)
        caption = (
            f"{table['point'].iloc[0]}. One column is {end / scale / BINS:.3g} {unit}. "
            "DMA queues: share of the time with data in flight."
        )
        return [StudyFigure(self.name, title, caption, figure, table)]


def timeline_table(bound: BoundProgram, trace: Trace, label: str) -> pd.DataFrame:
    """Busy share of each stream in equal bins of the run (or of its start, if it is very long)."""
    columns = [
        np.array([item[1:] for item in islice(records(trace, i), MOST_RECORDS)], dtype=np.int64)
        for i in range(len(bound.streams))
    ]
    cut = [int(column[-1].sum()) for column in columns if len(column) == MOST_RECORDS]
    end = min([trace.time_ps, *cut])
    edges = np.linspace(0, end, BINS + 1).astype(np.int64)
    frames = []
    for stream, column in zip(bound.streams, columns, strict=True):
        share = busy_share(column, edges) if len(column) else np.zeros(BINS)
        frames.append(
            pd.DataFrame(
                {
                    "point": label,
                    "engine": stream.name,
                    "start_ps": edges[:-1],
                    "end_ps": edges[1:],
                    "busy_share": share,
                }
            )
        )
    return pd.concat(frames, ignore_index=True)[COLUMNS]


def busy_share(intervals: Ints, edges: Ints) -> npt.NDArray[np.float64]:
    """Share of each bin covered by disjoint (start, length) intervals in order of start."""
    starts = intervals[:, 0]
    ends = starts + intervals[:, 1]
    total = np.concatenate([[0], np.cumsum(intervals[:, 1])])
    # Busy time before t: all intervals that began before it, less what of the last lies beyond it.
    index = np.searchsorted(starts, edges, side="left")
    beyond = np.where(index > 0, np.maximum(0, ends[np.maximum(index - 1, 0)] - edges), 0)
    before = total[index] - beyond
    width = np.maximum(1, np.diff(edges))
    return np.clip(np.diff(before) / width, 0.0, 1.0)
