"""One in-order stream: an engine or the issuing side of a DMA queue, run ahead on its own clock."""

from __future__ import annotations

from typing import TYPE_CHECKING

from eventsim.assemble import ANCHOR, BARRIER, END, EXEC, LOOP_BEGIN, LOOP_END, RAMP, SPECIAL, TRANSFER, Op
from eventsim.bind import BoundStream
from eventsim.clock import PS_PER_S
from eventsim.queues import RING_DEPTH, Ring
from eventsim.sync import Chan

if TYPE_CHECKING:
    from eventsim.sim import Sim

RUNNING, REQUESTING = 0, 1


class Step:
    """One step of flat code with its channels resolved. NOTE: slotted and mutable, as it is hot."""

    __slots__ = (
        "count",
        "duration",
        "flow_class",
        "index",
        "kind",
        "op_index",
        "ports",
        "region",
        "signals",
        "skip",
        "slot",
        "table",
        "target",
        "waits",
        "work",
    )

    def __init__(self, op: Op, chans: list[Chan], stream: BoundStream, op_index: int) -> None:
        self.kind = op.kind
        self.waits = tuple((chans[c], n) for c, n in op.waits) or None
        self.duration = op.duration
        self.signals = tuple((chans[c], n, offset) for c, n, offset in op.signals)
        self.index = op.index
        self.op_index = op_index
        self.slot = op.slot
        self.target = op.target
        self.count = op.count
        self.region = op.region
        self.skip = 0  # loop ends to pass without looking for a repeat
        bound = stream.instrs[op.index] if op.index >= 0 else None
        self.table = bound.table if bound else None
        mask = bound.ports if bound else 0
        self.ports = tuple(bit for bit in range(mask.bit_length()) if mask >> bit & 1)
        self.flow_class = bound.flow_class if bound else -1
        transfer = bound.transfer if bound else None
        self.work = transfer.effective_bytes * PS_PER_S if transfer else 0  # in the unit of `Fluid`


class Stream:
    """An in-order stream.

    Start = max(own clock, time of the tokens it takes): a recurrence that does not depend on who is
    simulated first, so the stream runs until it lacks a token and costs no kernel event. Only a step
    that needs a port first lets the kernel reach its time.
    """

    def __init__(self, sim: Sim, bound: BoundStream, code: list[Step], num_slots: int) -> None:
        self.sim = sim
        self.bound = bound
        self.rank = bound.rank
        self.code = code
        self.pc = 0
        self.t = 0
        self.counters = [0] * num_slots  # iterations left, the present one included
        self.done = False
        self.ring: Ring | None = None
        self.cause: Chan | None = None  # queues: what delayed the issue since the last transfer
        self.state = RUNNING
        self.decide_at = 0  # when its request for a port is looked at next
        self.arrived = 0  # when the tokens of the step that waits for a port were there
        self.table: str | None = None
        self.table_ps = 0  # time lost to changing tables
        self.port_ps = {step.ports: 0 for step in code if step.ports}  # time lost by ports
        self.warm = 0  # work done since the array was last cold
        self.last_end: int | None = None  # of the array
        self.ramp_ps = 0  # time lost to the ramp

    def run(self) -> None:
        """Go on until a token is missing, a port is needed, an anchor is reached or the code ends.

        NOTE: one long function with local names, as it is the inner loop of the simulator.
        """
        code = self.code
        pc = self.pc
        t = self.t
        counters = self.counters
        ready = self.sim.ready
        recorder = self.sim.recorder
        ring = self.ring
        ramp = self.bound.ramp
        full, cooling = (ramp.full_work, ramp.time_ps) if ramp else (0, 0)
        while True:
            step = code[pc]
            kind = step.kind
            if kind < LOOP_END:
                if kind == TRANSFER and ring is not None and ring.held >= RING_DEPTH:
                    ring.blocked = self
                    self.pc = pc
                    self.t = t
                    return
                waits = step.waits
                cause = None
                if waits is not None:
                    for chan, need in waits:
                        if chan.old + len(chan.stamps) < need:
                            chan.waiter = self
                            chan.need = need
                            self.pc = pc
                            self.t = t
                            return
                    before = t
                    for chan, need in waits:
                        old = chan.old
                        if old >= need:
                            chan.old = old - need
                            continue
                        if need == 1:
                            stamp = chan.stamps.popleft()
                        else:
                            chan.old = 0
                            stamps = chan.stamps
                            for _ in range(need - old):
                                stamp = stamps.popleft()
                        if stamp > t:
                            t = stamp
                            cause = chan
                    # The whole wait belongs to the token that came last.
                    if cause is not None and kind < TRANSFER:
                        cause.stall += t - before
                if kind == RAMP:
                    if self.warm == full and self.last_end is not None and t - self.last_end < cooling:
                        self.last_end = t + step.duration
                        kind = EXEC
                    else:
                        t = self._execute(step, t, cause, t)
                if kind == EXEC:
                    for chan, count, offset in step.signals:
                        stamps = chan.stamps
                        if count == 1:
                            stamps.append(t + offset)
                        else:
                            stamps.extend([t + offset] * count)
                        waiter = chan.waiter
                        if waiter is not None and chan.old + len(stamps) >= chan.need:
                            chan.waiter = None
                            ready.append(waiter)
                    if recorder is not None:
                        recorder.instruction(self, step, t, step.duration, cause, 0)
                    t += step.duration
                elif kind == SPECIAL:
                    arrived = t
                    t = self._change_table(step, t)
                    if step.ports:
                        self.pc = pc
                        self.t = t
                        self.cause = cause
                        self.arrived = arrived
                        self.state = REQUESTING
                        self.sim.arbiter.request(self)
                        return
                    t = self._execute(step, t, cause, arrived)
                elif kind == TRANSFER:
                    assert ring is not None
                    ring.push(t + ring.start_cost, step, self.cause if cause is None else cause)
                    self.cause = None
                    t += step.duration
                elif kind == BARRIER:
                    assert ring is not None
                    if cause is not None:
                        self.cause = cause  # what the next transfer will have waited for
                    if step.signals:
                        ring.barrier(t, step)
                pc += 1
            elif kind == LOOP_END or (kind == ANCHOR and step.skip):
                if kind == ANCHOR:
                    step.skip -= 1
                left = counters[step.slot] - 1
                counters[step.slot] = left
                pc = step.target if left else pc + 1
            elif kind == LOOP_BEGIN:
                counters[step.slot] = step.count
                pc += 1
            else:
                self.pc = pc
                self.t = t
                if kind == END:
                    self.done = True
                else:
                    self.sim.anchored.append(self)
                return

    def _change_table(self, step: Step, t: int) -> int:
        if step.table is None or step.table == self.table:
            return t
        self.table = step.table
        self.table_ps += self.bound.table_ps
        return t + self.bound.table_ps

    def _execute(self, step: Step, t: int, cause: Chan | None, arrived: int) -> int:
        """Occupy the engine from `t`, ramp included, and signal; return the end."""
        ramp = self.bound.ramp
        duration = step.duration
        ready = self.sim.ready
        if ramp is None or step.kind == EXEC:
            for chan, count, offset in step.signals:
                chan.post(count, t + offset, ready)
        else:
            if self.last_end is None or t - self.last_end >= ramp.time_ps:
                self.warm = 0
            work = self.warm
            if work >= ramp.full_work:
                for chan, count, offset in step.signals:
                    chan.post(count, t + offset, ready)
            else:
                latency = self.bound.latency
                base = ramp.elapsed(work)
                for chan, count, offset in step.signals:
                    end = t + ramp.elapsed(work + offset - latency) - base
                    chan.post(count, end + latency, ready)
                duration = ramp.elapsed(work + duration) - base
                self.ramp_ps += duration - step.duration
                self.warm = min(work + step.duration, ramp.full_work)
            self.last_end = t + duration
        if self.sim.recorder is not None:
            self.sim.recorder.instruction(self, step, t, duration, cause, t - arrived)
        return t + duration

    # -- ports ---------------------------------------------------------------------------------
    def step_ports(self) -> tuple[int, ...]:
        """Ports that the present step needs."""
        return self.code[self.pc].ports

    def granted(self, now: int) -> int:
        """Run the step that waited for its ports, then be ready to go on; return its end."""
        step = self.code[self.pc]
        if now > self.t:
            self.port_ps[step.ports] += now - self.t
        self.state = RUNNING
        self.t = self._execute(step, now, self.cause, self.arrived)
        self.cause = None
        self.pc += 1
        self.sim.ready.append(self)
        return self.t
