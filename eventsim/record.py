"""Recording: four integers an instruction, in columns."""

from __future__ import annotations

from typing import TYPE_CHECKING

from eventsim.trace import Column

if TYPE_CHECKING:
    from eventsim.queues import Ring
    from eventsim.stream import Step, Stream
    from eventsim.sync import Chan


class Recorder:
    """Fills the columns of a trace while the streams run."""

    def __init__(self, streams: list[Stream]) -> None:
        self.columns = tuple(Column(s.bound.is_queue) for s in streams)
        self._of_rank = {s.rank: c for s, c in zip(streams, self.columns, strict=True)}

    def instruction(
        self, stream: Stream, step: Step, start: int, duration: int, cause: Chan | None, delay: int
    ) -> None:
        """An engine ran `step`, `delay` after its tokens were there (table, port)."""
        column = self._of_rank[stream.rank]
        column.index.append(step.index)
        column.start.append(start)
        column.duration.append(duration)
        column.cause.append(-1 if cause is None else cause.index)
        column.delay.append(delay)

    def lengths(self) -> tuple[int, ...]:
        """Records of each stream so far."""
        return tuple(len(c.start) for c in self.columns)

    def transfer(self, ring: Ring, step: Step, end: int, cause: Chan | None) -> None:
        """The data of a transfer arrived at `end`."""
        column = self._of_rank[ring.rank]
        column.index.append(step.index)
        column.start.append(ring.started)
        column.duration.append(end - ring.started)
        column.cause.append(-1 if cause is None else cause.index)
