"""How a sweep shows that it is alive: a bar on a terminal, plain lines elsewhere."""

from __future__ import annotations

import time
from types import TracebackType

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    SpinnerColumn,
    Task,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.text import Text
from typing_extensions import override

from dse.alive import ticking
from dse.result import Record
from dse.space import Planned


class _Rate(ProgressColumn):
    """Points per second so far."""

    @override
    def render(self, task: Task) -> Text:
        speed = task.finished_speed or task.speed
        return Text("-/s" if speed is None else f"{speed:.1f}/s")


class _Counts:
    """How many points ended how."""

    def __init__(self) -> None:
        self.of = {"ok": 0, "infeasible": 0, "error": 0}

    def text(self) -> str:
        return ", ".join(f"{count} {status}" for status, count in self.of.items() if count)


class Bar:
    """A progress bar with counts, rate and time left."""

    def __init__(self, name: str, total: int, console: Console) -> None:
        """Prepare; the bar appears on entering."""
        self._counts = _Counts()
        self._progress = Progress(
            SpinnerColumn(),
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            _Rate(),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            TextColumn("{task.fields[counts]}"),
            console=console,
        )
        self._task = self._progress.add_task(name, total=total, counts="")

    def __enter__(self) -> Bar:
        """Show the bar."""
        self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Leave the finished bar standing."""
        self._progress.stop()

    def __call__(self, planned: Planned | None, record: Record) -> None:
        """A point ended."""
        self._counts.of[record["status"]] += 1
        self._progress.update(self._task, advance=1, counts=self._counts.text())


class Lines:
    """A line every few seconds, for logs, also while no point ends."""

    def __init__(self, name: str, total: int, console: Console) -> None:
        """Remember when it began."""
        self._name, self._total, self._console = name, total, console
        self._counts = _Counts()
        self._begun = time.monotonic()
        self._done = 0
        self._ticking = ticking(self._line)

    def __enter__(self) -> Lines:
        """Begin to tick."""
        self._ticking.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Say how far it came."""
        self._ticking.__exit__(None, None, None)
        if self._done:
            self._line()

    def __call__(self, planned: Planned | None, record: Record) -> None:
        """A point ended."""
        self._counts.of[record["status"]] += 1
        self._done += 1

    def _line(self) -> None:
        spent = time.monotonic() - self._begun
        counts = f" ({self._counts.text()}), {self._done / max(1e-9, spent):.1f}/s" if self._done else ""
        self._console.print(
            f"{self._name}: {self._done} new points of {self._total} in {spent:.0f} s{counts}"
        )
