"""An independent simulator for tests: plain SimPy, in step with time, no run-ahead, no folding.

It shares only the integers of the laws with the product: the durations in `BoundProgram`. Semaphores are
`simpy.Container`s, every delayed token is a process, every transfer is a process, bandwidth is shared
flow by flow.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Iterator
from dataclasses import dataclass, field
from fractions import Fraction
from math import ceil

import simpy

from compiler.isa import Loop, Node, Sync
from eventsim import BoundInstr, BoundProgram, BoundStream

Proc = Generator[simpy.Event, object, None]


@dataclass
class Figures:
    """Per stream: what the product reports too."""

    busy: dict[str, int] = field(default_factory=dict)  # by op
    wait: dict[str, int] = field(default_factory=dict)
    end: int = 0

    def lost(self, cause: str, ps: int) -> None:
        if ps:
            self.wait[cause] = self.wait.get(cause, 0) + ps


def _unroll(nodes: tuple[Node, ...], first: int) -> Iterator[int]:
    """Static instruction numbers in execution order."""
    for node in nodes:
        size = _size((node,))
        if isinstance(node, Loop):
            for _ in range(node.count):
                yield from _unroll(node.body, first)
        else:
            yield first
        first += size


def _size(nodes: tuple[Node, ...]) -> int:
    return sum(_size(n.body) if isinstance(n, Loop) else 1 for n in nodes)


class Semaphore:
    def __init__(self, env: simpy.Environment, producer: str, initial: int) -> None:
        self.env, self.producer = env, producer
        self.box = simpy.Container(env, init=initial) if initial else simpy.Container(env)
        self.seen = deque([0] * initial)

    def post_later(self, count: int, delay: int) -> None:
        self.env.process(self._post(count, delay))

    def _post(self, count: int, delay: int) -> Proc:
        yield self.env.timeout(delay)
        self.seen.extend([self.env.now] * count)
        yield self.box.put(count)


@dataclass
class Flow:
    left: int
    rate: int
    cap: int
    share: Fraction
    done: simpy.Event


class Machine:
    """DMA engines and DRAM, shared by water filling on sorted breakpoints."""

    def __init__(self, env: simpy.Environment, dma: int, dram: int) -> None:
        self.env, self.dma, self.dram = env, dma, dram
        self.flows: list[Flow] = []
        self.last = 0
        self.version = 0
        self.active = 0

    def start(self, nbytes: int, cap: int, share: Fraction) -> simpy.Event:
        self._settle()
        flow = Flow(nbytes * 10**12, 0, cap, share, self.env.event())
        self.flows.append(flow)
        self._restart()
        return flow.done

    def _settle(self) -> None:
        elapsed = self.env.now - self.last
        if self.flows:
            self.active += elapsed
        for flow in self.flows:
            flow.left -= flow.rate * elapsed
        self.last = self.env.now

    def _restart(self) -> None:
        self._fill()
        self.version += 1
        self.env.process(self._watch(self.version))

    def _watch(self, version: int) -> Proc:
        if not self.flows:
            return
        yield self.env.timeout(min(max(0, ceil(Fraction(f.left, f.rate))) for f in self.flows))
        if version != self.version:
            return
        self._settle()
        over = [f for f in self.flows if f.left <= 0]
        self.flows = [f for f in self.flows if f.left > 0]
        for flow in over:
            flow.done.succeed()
        self._restart()

    def _fill(self) -> None:
        """Raise a common level from breakpoint to breakpoint; each flow has min(level, cap) until frozen."""
        frozen: dict[int, Fraction] = {}
        level = Fraction(0)
        while len(frozen) < len(self.flows):
            live = [i for i in range(len(self.flows)) if i not in frozen]
            used_dma = sum(frozen.values(), Fraction(0)) + level * len(live)
            used_dram = sum((self.flows[i].share * v for i, v in frozen.items()), Fraction(0))
            used_dram += sum((self.flows[i].share * level for i in live), Fraction(0))
            steps = [self.flows[i].cap - level for i in live] + [(self.dma - used_dma) / len(live)]
            weight = sum(self.flows[i].share for i in live)
            if weight:
                steps.append((self.dram - used_dram) / weight)
            step = min(steps)
            level += step
            full_dma = used_dma + step * len(live) >= self.dma
            full_dram = bool(weight) and used_dram + step * weight >= self.dram
            for i in live:
                if full_dma or (full_dram and self.flows[i].share) or self.flows[i].cap <= level:
                    frozen[i] = level
        for i, flow in enumerate(self.flows):
            flow.rate = max(1, frozen[i].numerator // frozen[i].denominator)


class Ports:
    """Grants at the end of each time stamp, lowest rank first, all ports of an instruction together."""

    def __init__(self, env: simpy.Environment) -> None:
        self.env = env
        self.held = 0
        self.queue: list[tuple[int, int, simpy.Event]] = []

    def request(self, rank: int, mask: int) -> simpy.Event:
        event = self.env.event()
        self.queue.append((rank, mask, event))
        self.wake()
        return event

    def wake(self) -> None:
        late = self.env.event()
        late._ok, late._value = True, None
        late.callbacks.append(lambda _e: self._grant())
        self.env.schedule(late, priority=simpy.events.EventPriority(2))

    def _grant(self) -> None:
        for item in sorted(self.queue, key=lambda q: q[0]):
            if not item[1] & self.held:
                self.held |= item[1]
                self.queue.remove(item)
                item[2].succeed()

    def release(self, mask: int) -> None:
        self.held &= ~mask
        self.wake()


class Oracle:
    def __init__(self, bound: BoundProgram) -> None:
        self.env = simpy.Environment()
        self.bound = bound
        spec = bound.arch.dma
        self.machine = Machine(self.env, spec.engines * spec.engine_bandwidth, bound.arch.dram_bandwidth)
        self.ports = Ports(self.env)
        self.sems = {c.name: Semaphore(self.env, c.producer, c.initial) for c in bound.program.channels}
        self.figures = {s.name: Figures() for s in bound.streams}
        self.places = {s.name: simpy.Container(self.env, init=64) for s in bound.streams if s.is_queue}
        procs = []
        for s in bound.streams:
            if s.is_queue:
                store: simpy.Store = simpy.Store(self.env)
                procs.append(self.env.process(self._issue(s, store)))
                self.env.process(self._data(s, store))
            else:
                procs.append(self.env.process(self._engine(s)))
        self.env.run()
        assert all(p.processed for p in procs), "oracle: deadlock"

    def _take(self, b: BoundInstr) -> Generator[simpy.Event, object, tuple[str, int]]:
        """Take all tokens; return (producer of the last one to come, ps waited)."""
        before = self.env.now
        for name, count in b.instr.waits:
            yield self.sems[name].box.get(count)
        cause, latest = "", before
        for name, count in b.instr.waits:
            stamp = max(self.sems[name].seen.popleft() for _ in range(count))
            if stamp > latest:
                cause, latest = self.sems[name].producer, stamp
        assert self.env.now == max(before, latest)
        return cause, self.env.now - before

    def _engine(self, s: BoundStream) -> Proc:
        figures, table, warm, last_end = self.figures[s.name], None, 0, None
        for index in _unroll(s.nodes, 0):
            b = s.instrs[index]
            cause, waited = yield from self._take(b)  # type: ignore[misc]
            figures.lost(cause, waited)
            if b.table is not None and b.table != table:
                table = b.table
                figures.lost("table", s.table_ps)
                yield self.env.timeout(s.table_ps)
            if b.ports:
                asked = self.env.now
                yield self.ports.request(s.rank, b.ports)
                names = [m for i, m in enumerate(self.bound.ports) if b.ports >> i & 1]
                figures.lost("port:" + "+".join(dict.fromkeys(names)), self.env.now - asked)
            duration = b.duration
            if s.ramp is not None and not isinstance(b.instr, Sync):
                if last_end is None or self.env.now - last_end >= s.ramp.time_ps:
                    warm = 0
                duration = s.ramp.elapsed(warm + b.duration) - s.ramp.elapsed(warm)
                warm += b.duration
                figures.lost("ramp", duration - b.duration)
                last_end = self.env.now + duration
            figures.busy[b.instr.op] = figures.busy.get(b.instr.op, 0) + b.duration
            for name, count in b.instr.signals:
                self.sems[name].post_later(count, duration + s.latency)
            yield self.env.timeout(duration)
            if b.ports:
                self.ports.release(b.ports)
        figures.end = self.env.now

    def _issue(self, s: BoundStream, store: simpy.Store) -> Proc:
        latency, culprit = self.bound.arch.dma.latency, ""
        for index in _unroll(s.nodes, 0):
            b = s.instrs[index]
            if b.transfer:
                yield self.places[s.name].get(1)
            cause, _ = yield from self._take(b)  # type: ignore[misc]
            culprit = cause or culprit
            yield self.env.timeout(b.duration)
            ready = self.env.now + (latency if b.transfer else 0)
            store.put((b, ready, culprit))
            if b.transfer:
                culprit = ""
        self.figures[s.name].end = max(self.figures[s.name].end, self.env.now)

    def _data(self, s: BoundStream, store: simpy.Store) -> Proc:
        figures, ended = self.figures[s.name], 0
        spec = self.bound.arch.dma
        while True:
            b, ready, culprit = yield store.get()  # type: ignore[misc]
            if ready > self.env.now:
                yield self.env.timeout(ready - self.env.now)
            if b.transfer is not None:
                gap, fixed = self.env.now - ended, spec.issue + spec.latency
                figures.lost("issue", min(gap, fixed) if culprit else gap)
                figures.lost(culprit, gap - min(gap, fixed) if culprit else 0)
                start, t = self.env.now, b.transfer
                share = Fraction(t.dram_read_bytes + t.dram_write_bytes, t.effective_bytes)
                yield self.machine.start(t.effective_bytes, t.cap, share)
                ended = self.env.now
                self.places[s.name].put(1)
                figures.end = max(figures.end, ended)
                figures.busy[b.instr.op] = figures.busy.get(b.instr.op, 0) + ended - start
            for name, count in b.instr.signals:
                self.sems[name].post_later(count, s.latency)

    def summary(self) -> tuple[object, ...]:
        """In the form of `eventsim.Trace` figures: end, then per stream busy by op, waits, end; DMA time."""
        end = max(f.end for f in self.figures.values())
        streams = tuple(
            (
                name,
                tuple(sorted((k, v) for k, v in f.busy.items() if v)),
                tuple(sorted(f.wait.items())),
                f.end,
            )
            for name, f in self.figures.items()
        )
        return end, streams, self.machine.active
