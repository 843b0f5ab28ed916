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
    request that cannot be met does not hold up those behind it. A request costs one kernel event, and
    one more each time its port turns out to be taken.
    """

    def __init__(self, env: simpy.Environment, num_ports: int) -> None:
        self.free_at = [0] * num_ports  # end of the last instruction that held the port
        self.pending: list[Stream] = []
        self.tick = Tick(env, self._grant)

    def request(self, stream: Stream) -> None:
        """Ask at the stream's time for the ports of its current step."""
        self.pending.append(stream)
        stream.decide_at = stream.t
        self.tick.at(stream.t, LATE)

    def _grant(self, now: int) -> None:
        free_at = self.free_at
        if len(self.pending) > 1:
            self.pending.sort(key=_rank)
        left = []
        for stream in self.pending:
            if stream.decide_at > now:
                left.append(stream)
                continue
            ports = stream.step_ports()
            until = max(free_at[port] for port in ports)
            if until > now:
                left.append(stream)
                stream.decide_at = until
                self.tick.at(until, LATE)
                continue
            end = stream.granted(now)
            for port in ports:
                free_at[port] = end
        self.pending = left


def _rank(stream: Stream) -> int:
    return stream.rank
