"""Fluid sharing: transfers in progress draw on the DMA engines and the DRAM together."""

from __future__ import annotations

from fractions import Fraction
from heapq import heappop, heappush
from typing import TYPE_CHECKING

import simpy

from eventsim.clock import PS_PER_S
from eventsim.kernel import Tick
from eventsim.sharing import FlowClass, max_min_rates

if TYPE_CHECKING:
    from eventsim.bind import BoundProgram
    from eventsim.queues import Ring


class _Active:
    """The running transfers of one class: all have the same rate, so one account serves them all."""

    __slots__ = ("count", "flow", "given", "index", "joined", "pending", "rate", "weight")

    def __init__(self, index: int, flow: FlowClass, weight: int) -> None:
        self.index = index
        self.flow = flow
        self.weight = weight
        self.count = 0
        self.rate = 0  # effective bytes/s of one transfer
        self.given = 0  # effective bytes * 1e12 that each has got since the class was last empty
        self.joined = 0  # effective bytes * 1e12 of all that have started
        self.pending: list[tuple[int, int, Ring]] = []  # (value of `given` at its end, ring, ring)


def _by_rank(item: tuple[int, Ring]) -> int:
    return item[0]


class Fluid:
    """All transfers in progress. Work is counted in effective bytes times ps/s: exact integers.

    Rates change only when the multiset of running classes changes and are remembered by it. One
    completion event is pending; if transfers slow down, it fires early and is set again.
    """

    def __init__(
        self,
        bound: BoundProgram,
        env: simpy.Environment,
        most: int,
    ) -> None:
        self.dma = bound.arch.dma_bandwidth
        self.dram = bound.arch.dram_sustained
        # The multiset is one number in base (most + 1): a cheap key.
        self.classes = [_Active(i, f, (most + 1) ** i) for i, f in enumerate(bound.flow_classes)]
        self.running: list[_Active] = []
        self.key = 0
        self.memo: dict[int, dict[int, int]] = {}
        self.last = 0  # time of the accounts
        self.active_ps = 0
        self.next_end = -1
        self.armed = -1  # earliest pending event
        self.batching = False
        self.tick = Tick(env, self._on_tick)

    def settle(self, now: int) -> None:
        """Bring the accounts up to `now`."""
        elapsed = now - self.last
        if elapsed and self.running:
            self.active_ps += elapsed
            for active in self.running:
                active.given += active.rate * elapsed
        self.last = now

    def join(self, now: int, ring: Ring, flow_class: int, work: int) -> None:
        """Start a transfer of `work` now; `ring.finished()` is called at its end."""
        if now != self.last:
            self.settle(now)
        active = self.classes[flow_class]
        if not active.count:
            active.given = 0
            self.running.append(active)
        active.count += 1
        active.joined += work
        self.key += active.weight
        ring.goal = goal = active.given + work
        heappush(active.pending, (goal, ring.rank, ring))
        if not self.batching:
            self._reprice(now)

    def dram_bytes(self) -> int:
        """DRAM bytes of all transfers that have started: what ran, not what the program asks for."""
        moved = sum((a.joined * a.flow.dram_share for a in self.classes), Fraction(0))
        return int(moved / PS_PER_S)

    def left(self, ring: Ring, flow_class: int) -> int:
        """Work that the running transfer of `ring` still needs (after `settle`)."""
        return ring.goal - self.classes[flow_class].given

    def _rates(self) -> dict[int, int]:
        rates = self.memo.get(self.key)
        if rates is None:
            flows = sorted(self.running, key=lambda active: active.index)
            values = max_min_rates([(a.flow, a.count) for a in flows], self.dma, self.dram)
            rates = {a.index: value for a, value in zip(flows, values, strict=True)}
            self.memo[self.key] = rates
        return rates

    def _reprice(self, now: int) -> None:
        if not self.running:
            self.next_end = -1
            return
        rates = self._rates()
        soonest = -1
        for active in self.running:
            active.rate = rate = rates[active.index]
            wait = -((active.given - active.pending[0][0]) // rate)
            if soonest < 0 or wait < soonest:
                soonest = max(wait, 0)
        self.next_end = now + soonest
        if self.armed < 0 or self.next_end < self.armed:
            self.armed = self.next_end
            self.tick.at(self.next_end)

    def _on_tick(self, now: int) -> None:
        if now == self.armed:
            self.armed = -1
        if now != self.next_end:
            if self.next_end >= 0 and self.armed < 0:
                self.armed = self.next_end
                self.tick.at(self.next_end)
            return
        self.settle(now)
        done: list[tuple[int, Ring]] = []
        emptied = False
        for active in self.running:
            pending, given = active.pending, active.given
            while pending and pending[0][0] <= given:
                _, rank, ring = heappop(pending)
                done.append((rank, ring))
                active.count -= 1
                self.key -= active.weight
            emptied = emptied or not pending
        if emptied:
            self.running = [active for active in self.running if active.count]
        if len(done) > 1:
            done.sort(key=_by_rank)
        # The next transfers of these queues may join at once: share out anew when all have.
        self.batching = True
        for _, ring in done:
            ring.finished(now)
        self.batching = False
        self._reprice(now)

    def shift(self, by: int) -> None:
        """Move all times `by` ps ahead."""
        self.last += by
        self.next_end += by if self.next_end >= 0 else 0
        self.armed += by if self.armed >= 0 else 0
