"""The data side of a DMA queue: transfers in order, each after its fixed cost, sharing the machine."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from eventsim.kernel import Tick

if TYPE_CHECKING:
    from eventsim.sim import Sim
    from eventsim.stream import Step, Stream
    from eventsim.sync import Chan

IDLE, STARTING, FLOWING = 0, 1, 2
# Transfers issued and not yet ended that a queue holds; the next issue waits. Assumed: published queues are
# deeper than any kernel needs, and without a limit a stream that waits for nothing would be issued at once.
RING_DEPTH = 64


class Ring:
    """Issued transfers of one queue; one flows at a time, the others start behind it.

    A transfer is ready `issue + latency` after its waits; it flows when it is ready and the one before
    has ended; its signals are seen `completion` after its last byte.
    """

    def __init__(self, sim: Sim, rank: int, start_cost: int, num_ops: int) -> None:
        self.sim = sim
        self.rank = rank
        self.start_cost = start_cost  # issue + latency
        self.fifo: deque[tuple[int, Step, Chan | None]] = deque()  # (ready, step, what delayed its issue)
        self.state = IDLE
        self.head: tuple[int, Step, Chan | None] | None = None
        self.goal = 0  # account value at which the running transfer ends
        self.started = 0  # when the running transfer began to flow
        self.ended = 0  # when the last one ended
        self.busy = [0] * num_ops  # ps of flow by graph op
        self.issue_ps = 0  # ps in which the head was being started
        self.flows = 0
        self.held = 0  # transfers issued and not ended
        self.blocked: Stream | None = None  # the issuing side, if it waits for a place
        self.tick = Tick(sim.env, self._flow)

    def push(self, ready: int, step: Step, cause: Chan | None) -> None:
        """Take a transfer that has been issued."""
        item = (ready, step, cause)
        self.held += 1
        if self.state:
            self.fifo.append(item)
        else:
            self._start(item)

    def barrier(self, time: int, step: Step) -> None:
        """Signal at `time` or after all transfers issued before, whichever is later."""
        if self.state:
            self.fifo.append((time, step, None))
        else:
            self._signal(step, time)

    def _start(self, item: tuple[int, Step, Chan | None]) -> None:
        self.state = STARTING
        self.head = item
        self.tick.at(item[0])

    def _flow(self, now: int) -> None:
        assert self.head is not None
        _, step, cause = self.head
        gap = now - self.ended
        if gap:
            starting = min(gap, self.start_cost)
            self.issue_ps += starting if cause is not None else gap
            if cause is not None:
                cause.stall += gap - starting
        self.state = FLOWING
        self.started = now
        self.sim.fluid.join(now, self, step.flow_class, step.work)

    def finished(self, now: int) -> None:
        """The last byte of the head has arrived."""
        assert self.head is not None
        step = self.head[1]
        self.busy[step.op_index] += now - self.started
        self.ended = now
        self.flows += 1
        self.held -= 1
        blocked = self.blocked
        if blocked is not None:
            self.blocked = None
            blocked.t = max(blocked.t, now)
            self.sim.ready.append(blocked)
        if self.sim.recorder is not None:
            self.sim.recorder.transfer(self, step, now, self.head[2])
        self._signal(step, now)
        fifo = self.fifo
        while fifo:
            item = fifo.popleft()
            if item[1].flow_class < 0:
                self._signal(item[1], max(now, item[0]))
                continue
            if item[0] > now:
                self._start(item)
            else:
                self.head = item
                self._flow(now)
            break
        else:
            self.state = IDLE
            self.head = None

    def _signal(self, step: Step, time: int) -> None:
        ready = self.sim.ready
        for chan, count, offset in step.signals:
            chan.post(count, time + offset, ready)
