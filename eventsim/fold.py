"""Exact folding: when the machine is in a state it was in before, whole periods are skipped.

At the end of an iteration of an *anchor* loop, with nothing left that can happen before the anchor's
clock, the state of the machine is taken relative to that clock. If the same state was seen P ps earlier,
the time between will repeat until some loop that advanced in it runs out. So m periods are added to all
clocks, subtracted from all loop counters and multiplied into all statistics, and the simulation goes on.
This is exact because the state is complete, times are integers and nothing depends on absolute time.

Loops need not be the same in all streams: between the two visits each stream must have advanced in at
most one of the loops it is in (those outside it and inside it standing where they stood), by any number
of iterations.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from eventsim.assemble import ANCHOR, LOOP_BEGIN, LOOP_END
from eventsim.kernel import shift_time
from eventsim.queues import FLOWING, STARTING, Ring
from eventsim.stream import Step, Stream
from eventsim.sync import Chan
from eventsim.trace import Jump

if TYPE_CHECKING:
    from eventsim.sim import Sim

MIN_TRIPS = 4  # a loop that runs less often is not worth looking at
HEAVY = 40  # iterations of more steps than this are compared in full at first sight
MOST_STATES = 64  # visits of one instance of a loop: without a repeat among so many, rest and start again
MOST_VISITS = 8  # visits kept per state: a repeat may be one of an outer loop in another stream
MOST_REST = 6  # a loop that never repeats is looked at in one of 2**MOST_REST of its instances
# A time not after the anchor's clock. Which one does not matter: all that happens from now on happens later,
# so neither the clock of a stream that waits nor the ready time of a transfer decides anything.
PAST = None

Key = tuple[object, ...]


@dataclass(slots=True)
class _Visit:
    """What was true at a visit beside the state itself."""

    base: int
    counters: list[tuple[int, ...]]  # per stream: the loops it is in
    clocks: list[int]
    ends: list[int]  # per ring: end of the last transfer
    flows: list[int]  # per ring: transfers ended
    totals: list[int]
    records: tuple[int, ...]
    jumps: int


@dataclass(slots=True)
class _Loop:
    """A loop in the flat code of one stream."""

    region: int
    end: Step
    channels: set[int] = field(default_factory=set)  # used in it or a loop inside it
    steps: int = 0  # static


class _Anchor:
    """One anchor loop and the states seen in its present instance."""

    def __init__(self, chans: list[Chan], weight: int) -> None:
        self.chans = chans  # channels that are compared
        self.members = frozenset(c.index for c in chans)
        self.weight = weight
        self.states: dict[Key, dict[Key, list[_Visit]] | None] = {}
        self.seen = 0
        self.rest = 0
        self.jumped = False


class Folder:
    """Looks for repeated states of one simulation."""

    def __init__(self, sim: Sim) -> None:
        self.sim = sim
        self.jumps = 0
        self.jump_list: list[Jump] = []
        self.active = [
            s.bound.fused.active if sim.recorder is None else s.bound.plain.active for s in sim.streams
        ]
        self.loops = [_loops(s) for s in sim.streams]
        self.anchors: dict[tuple[int, int], _Anchor] = {}
        self._choose()

    # -- where to look ---------------------------------------------------------------------------
    def _choose(self) -> None:
        """Anchor each loop that several streams share in one of them, the matrix engine first.

        A loop that no other stream shares is an anchor only in the first stream of that order.
        """
        streams = self.sim.streams
        tensor = self.sim.bound.arch.tensor
        order = sorted(
            range(len(streams)),
            key=lambda i: (streams[i].bound.name != tensor, streams[i].bound.is_queue, streams[i].rank),
        )
        shared: dict[int, list[tuple[int, int]]] = {}  # region -> (stream, loop)
        for i in order:
            for slot, loop in enumerate(self.loops[i]):
                if loop.region >= 0:
                    shared.setdefault(loop.region, []).append((i, slot))
        for i in order:
            for slot, loop in enumerate(self.loops[i]):
                members = shared.get(loop.region, [])
                owner = members[0][0] if any(j != members[0][0] for j, _ in members) else order[0]
                if owner != i or loop.end.count < MIN_TRIPS:
                    continue
                group = [self.loops[j][other] for j, other in members] or [loop]
                touched = sorted(set().union(*(g.channels for g in group)))
                loop.end.kind = ANCHOR
                self.anchors[streams[i].rank, slot] = _Anchor(
                    [self.sim.chans[c] for c in touched], sum(g.steps for g in group)
                )

    # -- looking ---------------------------------------------------------------------------------
    def visit(self, stream: Stream) -> None:
        """The anchor `stream` has ended an iteration and all before its clock is done: perhaps skip ahead."""
        step = stream.code[stream.pc]
        anchor = self.anchors[stream.rank, step.slot]
        left = stream.counters[step.slot]
        if left > 2 or (left == 2 and anchor.states):
            self._compare(stream, anchor)
        if left == 1:
            self._leave(anchor, step)
        elif anchor.seen > MOST_STATES:
            anchor.states.clear()
            anchor.seen = 0
            anchor.rest = min(anchor.rest + 1, MOST_REST)
            step.skip = min(left - 1, MOST_STATES << anchor.rest)

    def _leave(self, anchor: _Anchor, step: Step) -> None:
        """The instance of the loop ends; after one without a jump the next ones are passed over."""
        anchor.states.clear()
        anchor.seen = 0
        anchor.rest = 0 if anchor.jumped else min(anchor.rest + 1, MOST_REST)
        anchor.jumped = False
        if anchor.rest > 1:
            step.skip = step.count * ((1 << (anchor.rest - 1)) - 1)

    def _compare(self, stream: Stream, anchor: _Anchor) -> None:
        anchor.seen += 1
        base = stream.t
        sketch = self._sketch(base)
        known = anchor.states.get(sketch)
        if known is None:
            if sketch not in anchor.states and anchor.weight < HEAVY:
                anchor.states[sketch] = None
                return
            known = anchor.states[sketch] = {}
        visits = known.setdefault(self._state(anchor, base), [])
        now = self._note(anchor, base)
        best: tuple[int, int, _Visit] | None = None
        for before in visits:
            times = self._repeats(anchor, before, now)
            if times is None:
                anchor.states.clear()
                return
            skipped = times * (now.base - before.base)
            if times and (best is None or skipped > best[0]):
                best = (skipped, times, before)
        visits.append(now)
        del visits[:-MOST_VISITS]
        if best is not None:
            self._jump(anchor, best[2], now, best[1])
            anchor.jumped = True

    def _sketch(self, base: int) -> Key:
        """A cheap part of the state that nearly always tells two states apart."""
        sketch: list[int | None] = []
        for s in self.sim.streams:
            sketch.append(s.pc)
            sketch.append(s.t - base if s.t > base and not s.done else PAST)
        sketch.extend(len(ring.fifo) for ring in self.sim.rings)
        return tuple(sketch)

    def _state(self, anchor: _Anchor, base: int) -> Key:
        """Everything else that can influence the future, relative to `base`."""
        sim = self.sim
        now = int(sim.env.now)
        sim.fluid.settle(now)
        # The work that running transfers have left is that at `now`.
        out: list[object] = [now - base if sim.fluid.running else 0]
        for chan in anchor.chans:
            stamps = chan.stamps
            while stamps and stamps[0] < base:
                stamps.popleft()
                chan.old += 1
            out.append(chan.old)
            if stamps:
                out.append(tuple([x - base for x in stamps]))
        for s in sim.streams:
            if s.done:
                continue
            out.append((s.state, s.state and s.t - s.arrived, s.table))
            out.append(-1 if s.cause is None else s.cause.index)
            out.append(_warmth(s, base))
        out.extend([free - base if free > base else PAST for free in sim.arbiter.free_at])
        out.extend(self._ring_state(ring, base) for ring in sim.rings)
        return tuple(out)

    def _ring_state(self, ring: Ring, base: int) -> Key:
        head = ring.head
        if head is None:
            return ()
        step = head[1]
        key: list[object] = [
            ring.state,
            ring.blocked is None,
            step.index,
            -1 if head[2] is None else head[2].index,
        ]
        if ring.state == FLOWING:
            key += [self.sim.fluid.left(ring, step.flow_class), ring.started - base]
        else:
            key.append(head[0] - base)
        for ready, item, cause in ring.fifo:
            key += [
                ready - base if ready > base else PAST,
                item.index,
                -1 if cause is None else cause.index,
            ]
        return tuple(key)

    def _note(self, anchor: _Anchor, base: int) -> _Visit:
        sim = self.sim
        return _Visit(
            base=base,
            counters=[
                tuple([s.counters[slot] for slot in active[s.pc]])
                for s, active in zip(sim.streams, self.active, strict=True)
            ],
            clocks=[s.t for s in sim.streams],
            ends=[r.ended for r in sim.rings],
            flows=[r.flows for r in sim.rings],
            totals=self._totals(anchor),
            records=sim.recorder.lengths() if sim.recorder else (),
            jumps=self.jumps,
        )

    def _totals(self, anchor: _Anchor) -> list[int]:
        """The statistics that grow while the machine runs."""
        sim = self.sim
        totals = [c.stall for c in anchor.chans]
        for s in sim.streams:
            totals += [s.table_ps, s.ramp_ps, *s.port_ps.values()]
        for ring in sim.rings:
            totals += ring.busy
            totals += [ring.issue_ps, ring.flows]
        totals += [active.joined for active in sim.fluid.classes]
        totals.append(sim.fluid.active_ps)
        return totals

    # -- skipping --------------------------------------------------------------------------------
    def _repeats(self, anchor: _Anchor, before: _Visit, now: _Visit) -> int | None:
        """How many more periods are sure to follow; None if the comparison must be widened."""
        period = now.base - before.base
        most: int | None = None
        missing: set[int] = set()
        for i, (old, new) in enumerate(zip(before.counters, now.counters, strict=True)):
            if old == new:
                if before.clocks[i] != now.clocks[i]:
                    return 0
                continue
            changed = [k for k, (a, b) in enumerate(zip(old, new, strict=True)) if a != b]
            level = changed[0]
            step = old[level] - new[level]
            if len(changed) > 1 or step < 0 or now.clocks[i] - before.clocks[i] != period:
                return 0
            slot = self.active[i][self.sim.streams[i].pc][level]
            missing |= self.loops[i][slot].channels - anchor.members
            more = (new[level] - 1) // step
            most = more if most is None else min(most, more)
        for i in range(len(self.sim.rings)):
            moved = now.flows[i] != before.flows[i]
            if now.ends[i] - before.ends[i] != (period if moved else 0):
                return 0
        if missing:
            members = sorted(anchor.members | missing)
            anchor.chans = [self.sim.chans[c] for c in members]
            anchor.members = frozenset(members)
            return None
        return most or 0

    def _jump(self, anchor: _Anchor, before: _Visit, now: _Visit, times: int) -> None:
        sim = self.sim
        period = now.base - before.base
        by = times * period
        for i, s in enumerate(sim.streams):
            if before.counters[i] == now.counters[i]:
                # It may wait for a port that others take again and again.
                s.decide_at += by if s.decide_at > now.base else 0
                continue
            slots = self.active[i][s.pc]
            for slot, old, new in zip(slots, before.counters[i], now.counters[i], strict=True):
                s.counters[slot] -= times * (old - new)
            s.t += by
            s.arrived += by
            s.decide_at += by
            if s.last_end is not None:
                s.last_end += by
        for chan in anchor.chans:
            if chan.stamps:
                chan.stamps = deque([x + by for x in chan.stamps])
        for i, ring in enumerate(sim.rings):
            _shift_ring(ring, by, moved=now.flows[i] != before.flows[i])
        sim.arbiter.free_at = [free + by if free > now.base else free for free in sim.arbiter.free_at]
        self._add_totals(anchor, [times * (b - a) for a, b in zip(before.totals, now.totals, strict=True)])
        sim.fluid.shift(by)
        shift_time(sim.env, by)
        if sim.recorder:
            jump = Jump(times, before.base, now.base, before.records, now.records, before.jumps)
            self.jump_list.append(jump)
        self.jumps += 1

    def _add_totals(self, anchor: _Anchor, more: list[int]) -> None:
        sim = self.sim
        values = iter(more)
        for chan in anchor.chans:
            chan.stall += next(values)
        for s in sim.streams:
            s.table_ps += next(values)
            s.ramp_ps += next(values)
            for ports in s.port_ps:
                s.port_ps[ports] += next(values)
        for ring in sim.rings:
            ring.busy = [b + next(values) for b in ring.busy]
            ring.issue_ps += next(values)
            ring.flows += next(values)
        for active in sim.fluid.classes:
            active.joined += next(values)
        sim.fluid.active_ps += next(values)


def _warmth(stream: Stream, base: int) -> object:
    """State of the power ramp: nothing, cold, or how warm and since when idle."""
    ramp = stream.bound.ramp
    if ramp is None:
        return None
    if stream.last_end is None or max(stream.t, base) - stream.last_end >= ramp.time_ps:
        return "cold"
    return (stream.warm, stream.last_end - base)


def _shift_ring(ring: Ring, by: int, *, moved: bool) -> None:
    if ring.head is not None:
        ring.head = (ring.head[0] + by, ring.head[1], ring.head[2])
        ring.started += by if ring.state != STARTING else 0
    if ring.fifo:
        ring.fifo = deque([(ready + by, step, cause) for ready, step, cause in ring.fifo])
    if moved:
        ring.ended += by


def _loops(stream: Stream) -> list[_Loop]:
    """The loops of a stream by slot."""
    found: list[_Loop] = []
    stack: list[_Loop] = []
    for step in stream.code:
        if step.kind == LOOP_BEGIN:
            stack.append(_Loop(step.region, step))
            found.append(stack[-1])
        elif step.kind == LOOP_END:
            stack.pop().end = step
        else:
            used = {chan.index for chan, _ in step.waits or ()}
            used.update(chan.index for chan, _, _ in step.signals)
            for loop in stack:
                loop.channels |= used
                loop.steps += 1
    return found
