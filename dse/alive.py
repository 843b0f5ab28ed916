"""A sign of life on stderr every few seconds, whatever the main thread is busy with."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

EVERY_S = 4.0


@contextmanager
def ticking(tick: Callable[[], None], every_s: float = EVERY_S) -> Iterator[None]:
    """Call `tick` from a thread of its own every `every_s` seconds until the block ends."""
    over = threading.Event()

    def beat() -> None:
        while not over.wait(every_s):
            tick()

    thread = threading.Thread(target=beat, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


@contextmanager
def alive(what: str, every_s: float = EVERY_S) -> Iterator[None]:
    """Say how long `what` has taken, unless it is done at once."""
    begun = time.monotonic()

    def tick() -> None:
        _say(f"{what}: {time.monotonic() - begun:.0f} s")

    with ticking(tick, every_s):
        yield


def _say(line: str) -> None:
    sys.stderr.write(line + "\n")
    sys.stderr.flush()


class Checking:
    """Says how many points of a study have been checked, every few seconds."""

    def __init__(self, name: str, every_s: float = EVERY_S) -> None:
        """Begin to count time now."""
        self._name, self._every_s = name, every_s
        self._begun = self._last = time.monotonic()

    def __call__(self, done: int, total: int) -> None:
        """`done` of `total` points are checked."""
        now = time.monotonic()
        if now - self._last < self._every_s:
            return
        self._last = now
        left = (now - self._begun) / max(1, done) * (total - done)
        _say(f"{self._name}: checked {done:,} of {total:,} points, about {left:.0f} s left")
