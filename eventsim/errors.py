"""What can go wrong while simulating."""

from __future__ import annotations

from dataclasses import dataclass

from typing_extensions import override


class SimError(Exception):
    """The program cannot run on the architecture; the message says where, what was got and wanted."""


@dataclass(frozen=True, slots=True)
class Waiting:
    """One stream that stands still when nothing can happen any more."""

    stream: str
    instruction: str  # what it wants to start
    op: str  # the graph op it came from
    channel: str
    producer: str  # the stream that should have signalled
    needed: int  # tokens
    available: int
    held: tuple[str, ...]  # the buffers that the waiting instruction would read or write

    @override
    def __str__(self) -> str:
        """One line of the report."""
        where = f" of {self.op}" if self.op else ""
        held = f"; it uses {', '.join(self.held)}" if self.held else ""
        return (
            f"{self.stream}: {self.instruction}{where} waits for {self.needed} of channel {self.channel!r} "
            f"(has {self.available}), signalled by {self.producer}{held}"
        )


class Deadlock(SimError):
    """Instructions are left, but no stream can go on."""

    def __init__(self, time_ps: int, waiting: tuple[Waiting, ...]) -> None:
        """Keep who waits for whom as data."""
        self.time_ps = time_ps
        self.waiting = waiting
        lines = "\n".join(f"  {w}" for w in waiting)
        super().__init__(f"deadlock at {time_ps} ps: no stream can go on\n{lines}")

    @override
    def __reduce__(self) -> tuple[type[Deadlock], tuple[int, tuple[Waiting, ...]]]:
        """Survive the trip through a process pool."""
        return (type(self), (self.time_ps, self.waiting))
