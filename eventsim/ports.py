"""Exclusion groups: engines that cannot use a memory at the same time."""

from __future__ import annotations

from typing import TYPE_CHECKING

import simpy

from eventsim.kernel import LATE, Tick

if TYPE_CHECKING:
    from eventsim.stream import Stream


class Arbiter:
    """Grants ports. Requests of one time are collected and decided at its end, lowest rank first.

    An instruction that needs several groups gets them together, so no circular wait can arise; a
    request that cannot be met does not hold up those behind it.
    """

    def __init__(self, env: simpy.Environment) -> None:
        self.held = 0  # bit i: group i is in use
        self.pending: list[Stream] = []
        self.armed = False
        self.tick = Tick(env, self._grant)

    def request(self, now: int, stream: Stream) -> None:
        """Ask for the ports of the stream's current step."""
        self.pending.append(stream)
        self._arm(now)

    def release(self, now: int, ports: int) -> None:
        """Give ports back."""
        self.held &= ~ports
        if self.pending:
            self._arm(now)

    def _arm(self, now: int) -> None:
        if not self.armed:
            self.armed = True
            self.tick.at(now, LATE)

    def _grant(self, now: int) -> None:
        self.armed = False
        self.pending.sort(key=lambda stream: stream.rank)
        left = []
        granted = []
        for stream in self.pending:
            ports = stream.step_ports()
            if ports & self.held:
                left.append(stream)
            else:
                self.held |= ports
                granted.append(stream)
        self.pending = left
        for stream in granted:
            stream.granted(now)
