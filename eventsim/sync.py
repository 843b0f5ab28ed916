"""Channels: counting semaphores whose tokens carry the time at which they can be seen."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from eventsim.stream import Stream


class Chan:
    """Tokens in flight from one stream to another, oldest first.

    `old` tokens lie in the past of every stream that may still take them, so their times no longer
    matter; `stamps` are the times of the others, never decreasing (rules R1-R3).
    """

    __slots__ = ("index", "need", "old", "stall", "stamps", "waiter")

    def __init__(self, index: int, initial: int) -> None:
        self.index = index
        self.old = initial
        self.stamps: deque[int] = deque()
        self.waiter: Stream | None = None
        self.need = 0
        self.stall = 0  # ps that its consumer has waited for it

    def post(self, count: int, time: int, ready: deque[Stream]) -> None:
        """Add `count` tokens seen from `time` on; a stream that now has enough becomes ready."""
        self.stamps.extend([time] * count)
        waiter = self.waiter
        if waiter is not None and self.old + len(self.stamps) >= self.need:
            self.waiter = None
            ready.append(waiter)
