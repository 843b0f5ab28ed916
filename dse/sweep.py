"""Run all points of a plan: resumable, crash-proof, and with the same result for any number of workers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path

from dse.pool import Evaluate, Task, WorkerPool
from dse.result import Record
from dse.search import SEARCHERS
from dse.space import Planned
from dse.store import Cell, Journal, flatten, write_csv

POINTS = "points.csv"


@dataclass(frozen=True, slots=True)
class SweepSummary:
    """How a sweep ended. Counts are of records now in the journal for this plan."""

    total: int
    ok: int
    infeasible: int
    error: int
    resumed: int  # of them, found in the journal and not run again
    interrupted: bool
    cut_bytes: int = field(default=0, compare=False)  # of a torn last line that was cut off the journal

    @property
    def missing(self) -> int:
        """Points without a record."""
        return self.total - self.ok - self.infeasible - self.error


@dataclass(frozen=True, slots=True)
class SweepOptions:
    """How to run; nothing here changes a record."""

    jobs: int = 1
    limit: int | None = None  # run at most so many new points
    timeout_s: float | None = None
    retry_errors: bool = False
    searcher: str = "grid"
    seed: int = 0


Listener = Callable[[Planned, Record], None]


def run_sweep(
    points: Sequence[Planned],
    folder: Path,
    *,
    evaluate: Evaluate,
    options: SweepOptions = SweepOptions(),
    on_record: Listener | None = None,
) -> SweepSummary:
    """Evaluate what the journal in `folder` does not have yet, then write the table of all points.

    A record is on disk before `on_record` hears of it. Ctrl-C ends the sweep within seconds, with
    everything readable; the same call goes on where it stopped.
    """
    interrupted = False
    with Journal(folder) as journal:
        known = {
            point_id
            for point_id, record in journal.records.items()
            if not (options.retry_errors and record["status"] == "error")
        }
        resumed = sum(planned.id in known for planned in points)
        try:
            _run_missing(points, journal, known, evaluate, options, on_record)
        except KeyboardInterrupt:
            interrupted = True
        records = journal.records
        write_points(folder, points, records)
    counts = dict.fromkeys(("ok", "infeasible", "error"), 0)
    for planned in points:
        if planned.id in records:
            counts[records[planned.id]["status"]] += 1
    return SweepSummary(
        len(points), **counts, resumed=resumed, interrupted=interrupted, cut_bytes=journal.cut_bytes
    )


def _run_missing(
    points: Sequence[Planned],
    journal: Journal,
    known: set[str],
    evaluate: Evaluate,
    options: SweepOptions,
    on_record: Listener | None,
) -> None:
    searcher = SEARCHERS[options.searcher]([planned.point for planned in points], options.seed)
    pool = WorkerPool(evaluate, options.jobs, options.timeout_s)

    def missing() -> Iterator[Task]:
        """Ask for candidates one by one; what the journal knows is told at once."""
        started = 0
        while asked := searcher.ask(1):
            planned = points[asked[0]]
            if planned.id in known:
                if planned.id in journal.records:
                    searcher.tell(asked[0], journal.records[planned.id])
                continue
            if options.limit is not None and started >= options.limit:
                return
            started += 1
            known.add(planned.id)
            yield asked[0], planned.point

    with closing(pool.run(missing())) as results:
        for index, record in results:
            journal.append([(points[index].id, record)])
            searcher.tell(index, record)
            if on_record is not None:
                on_record(points[index], record)


def write_points(folder: Path, points: Sequence[Planned], records: dict[str, Record]) -> None:
    """Write `points.csv` in study order, and the same as Parquet where pandas can."""
    rows = table_rows(points, records)
    write_csv(folder / POINTS, rows)
    if find_spec("pyarrow") is not None:
        import pandas as pd  # heavy, and only of use with pyarrow

        pd.DataFrame(rows).to_parquet(folder / "points.parquet")


def table_rows(points: Sequence[Planned], records: dict[str, Record]) -> list[dict[str, Cell]]:
    """One row per point that has a record, in study order: coordinates first, then what was found."""
    rows: list[dict[str, Cell]] = []
    for planned in points:
        record = records.get(planned.id)
        if record is None:
            continue
        row: dict[str, Cell] = {
            "index": planned.index,
            "id": planned.id,
            "arch": planned.point.arch,
            "workload": planned.point.workload,
            "fidelity": planned.point.fidelity,
            "seed": planned.point.seed,
        }
        row.update(planned.axes)
        row.update(flatten(record))
        rows.append(row)
    return rows
