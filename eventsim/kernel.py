"""The event kernel: an unmodified `simpy.Environment` and an event that can be armed again."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import simpy
from simpy.events import NORMAL

LATE = simpy.events.EventPriority(2)  # after everything else of the same time


class Tick(simpy.Event):
    """An event with one constant action, called with the time, that may be scheduled any number of times.

    NOTE: a fresh Timeout an occurrence costs twice the time; re-arming stores one attribute. The
    callback list is put back when the event fires, as `Environment.step` takes it away.
    """

    def __init__(self, env: simpy.Environment, action: Callable[[int], None]) -> None:
        super().__init__(env)
        self._ok = True
        self._value = None
        self._action = action
        self._again: list[Callable[[Any], None]] = [self._fire]
        self.callbacks = self._again

    def _fire(self, _event: simpy.Event) -> None:
        self.callbacks = self._again
        self._action(self.env.now)  # type: ignore[arg-type]  # all times are ints here

    def at(self, time: int, priority: simpy.events.EventPriority = NORMAL) -> None:
        """Fire at the absolute `time`."""
        env = self.env
        env.schedule(self, priority, time - env.now)


def shift_time(env: simpy.Environment, by: int) -> None:
    """Move the clock and everything scheduled `by` ps ahead.

    NOTE: SimPy has no such call; only this module reaches into the environment. A uniform shift keeps the
    heap in order.
    """
    env._now += by
    env._queue[:] = [(time + by, priority, eid, event) for time, priority, eid, event in env._queue]


def num_events(env: simpy.Environment) -> int:
    """How many events have been scheduled. NOTE: takes a number from the counter, so ask at the end."""
    return next(env._eid)
