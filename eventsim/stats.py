"""What a trace says: bounds that must hold around it, utilisation, and the critical path."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction

from eventsim.bind import BoundInstr, BoundProgram, BoundStream
from eventsim.clock import PS_PER_S, ceil_div
from eventsim.trace import Trace


@dataclass(frozen=True, slots=True)
class Bounds:
    """`max(compute_ps, memory_ps) <= simulated <= serial_ps` for every program."""

    compute_ps: int  # the busiest engine
    memory_ps: int  # DRAM bytes at full bandwidth, or the DMA engines all busy
    serial_ps: int  # everything one after the other, fixed costs included

    @property
    def lower_ps(self) -> int:
        """The larger of the lower bounds."""
        return max(self.compute_ps, self.memory_ps)


def bounds(bound: BoundProgram) -> Bounds:
    """Bounds of the time of a program, from sums only.

    Serial: at any time before the end an instruction, a transfer or a fixed delay is in progress. The
    sharing of bandwidth conserves work, so n transfers together take no longer than one by one, up to
    the rounding of rates (1 byte/s a transfer) and of ends (1 ps a transfer), which are included.
    """
    arch = bound.arch
    engines = [s for s in bound.streams if not s.is_queue]
    compute = max((sum(b.times * b.duration for b in s.instrs) for s in engines), default=0)
    moved = [(b.transfer, b.times) for s in bound.streams for b in s.instrs if b.transfer is not None]
    dram = sum(t.dram_bytes * n for t, n in moved)
    effective = sum(t.effective_bytes * n for t, n in moved)
    pool = arch.dma.engines * arch.dma.engine_bandwidth
    memory = max(ceil_div(dram * PS_PER_S, arch.dram_bandwidth), ceil_div(effective * PS_PER_S, pool))
    serial = sum(b.times * _alone_ps(bound, s, b) for s in bound.streams for b in s.instrs)
    return Bounds(compute, memory, serial)


def _alone_ps(bound: BoundProgram, stream: BoundStream, b: BoundInstr) -> int:
    """Longest that one instruction can hold up everything else."""
    transfer = b.transfer
    if transfer is None:
        duration = b.duration
        if stream.ramp is not None:
            duration = max(duration, stream.ramp.elapsed(duration) + 1)
        return duration + (stream.table_ps if b.table is not None else 0) + stream.latency
    spec = bound.arch.dma
    queues = sum(s.is_queue for s in bound.streams)
    rates = [Fraction(transfer.cap), Fraction(spec.engines * spec.engine_bandwidth - queues)]
    if transfer.dram_bytes:
        share = Fraction(transfer.dram_bytes, transfer.effective_bytes)
        rates.append((bound.arch.dram_bandwidth - queues * max(Fraction(1), share)) / share)
    rate = max(1, int(min(rates)))
    flow = ceil_div(transfer.effective_bytes * PS_PER_S, rate) + 2
    return spec.issue + spec.latency + flow + spec.completion


def utilization(trace: Trace) -> dict[str, Fraction]:
    """Share of the time each stream was busy."""
    return {s.name: Fraction(s.busy_ps, max(1, trace.time_ps)) for s in trace.streams}


@dataclass(frozen=True, slots=True)
class PathRow:
    """Time on the critical path, summed by stream, graph op and cause.

    Causes: `busy` (engine), `transfer` (data in flight), `signal` (a result on its way to who waits for
    it), `issue` (starting a transfer), `table`, `port`, `start`.
    """

    stream: str
    op: str
    cause: str
    ps: int


def critical_path(trace: Trace, bound: BoundProgram, top: int | None = None) -> list[PathRow]:
    """The chain of instructions that the end waited for, largest share first; sums to `time_ps`.

    Needs a trace recorded with `record=True`; folded or not. Skipped repeats count like the window
    they repeat. With `top`, the smaller rows are summed into one with empty names.
    """
    sums: dict[tuple[int, str, str], int] = {}
    weigh = _Weights(trace)
    for stream, op, cause, begin, end in _Walk(trace, bound):
        key = (stream, op, cause)
        sums[key] = sums.get(key, 0) + weigh.between(begin, end)
    rows = [PathRow(trace.streams[i].name, op, cause, ps) for (i, op, cause), ps in sums.items() if ps]
    rest = trace.time_ps - sum(row.ps for row in rows)
    # A stream that ended on its own while others were folded: the weights do not apply to it.
    if rest:
        rows = _scaled(rows, trace.time_ps)
    rows.sort(key=lambda row: (-row.ps, row.stream, row.op, row.cause))
    if top is not None and len(rows) > top:
        rows = [*rows[:top], PathRow("", "", "", sum(row.ps for row in rows[top:]))]
    return rows


def _scaled(rows: list[PathRow], total: int) -> list[PathRow]:
    whole = sum(row.ps for row in rows)
    out, done, given = [], 0, 0
    for row in rows:
        done += row.ps
        upto = total * done // whole
        out.append(PathRow(row.stream, row.op, row.cause, upto - given))
        given = upto
    return out


class _Weights:
    """How often each piece of recorded time really ran.

    Recorded time is simulated time with the skipped repeats cut out: a continuous axis of its own.
    """

    def __init__(self, trace: Trace) -> None:
        jumps = trace.jump_list
        cut = [0]  # skipped before jump k
        for jump in jumps:
            cut.append(cut[-1] + jump.times * jump.period_ps)
        windows = [(j.begin_ps - cut[j.first_jump], j.end_ps - cut[k]) for k, j in enumerate(jumps)]
        self.marks = sorted({0, *(x for window in windows for x in window)})
        # cover[k][i]: how often piece i runs in one repeat of window k, inner repeats included
        cover: list[list[int]] = []
        weight = [1] * len(self.marks)
        for k, (low, high) in enumerate(windows):
            row = [int(low <= mark < high) for mark in self.marks]
            for inner in range(jumps[k].first_jump, k):
                times = jumps[inner].times
                row = [a + times * b for a, b in zip(row, cover[inner], strict=True)]
            cover.append(row)
            weight = [w + jumps[k].times * c for w, c in zip(weight, row, strict=True)]
        self.weight = weight
        self.before = [0]
        for i in range(1, len(self.marks)):
            span = self.marks[i] - self.marks[i - 1]
            self.before.append(self.before[-1] + span * weight[i - 1])

    def _upto(self, time: int) -> int:
        i = bisect_right(self.marks, time) - 1
        return self.before[i] + self.weight[i] * (time - self.marks[i])

    def between(self, begin: int, end: int) -> int:
        """Real time of a piece of recorded time."""
        return self._upto(end) - self._upto(begin)


Segment = tuple[int, str, str, int, int]  # stream, op, cause, begin, end in recorded time
Hop = tuple[list[Segment], int, int, int]  # what was passed; then stream, record and time to go on from


class _Walk:
    """Backwards from the last end to time 0, in recorded time; each segment begins where the next ends."""

    def __init__(self, trace: Trace, bound: BoundProgram) -> None:
        self.bound = bound
        self.trace = trace
        names = {s.name: i for i, s in enumerate(bound.streams)}
        self.producer = [names.get(c.producer, -1) for c in bound.program.channels]
        self.starts: list[list[int]] = []
        self.ends: list[list[int]] = []
        for i in range(len(bound.streams)):
            self._recorded(i)

    def _recorded(self, i: int) -> None:
        """Start and end of each record with the repeats before it cut out."""
        column = self.trace.columns[i]
        starts: list[int] = []
        position = skipped = 0
        for jump in self.trace.jump_list:
            starts += [x - skipped for x in column.start[position : jump.end[i]]]
            position = jump.end[i]
            skipped += jump.times * jump.period_ps
        starts += [x - skipped for x in column.start[position:]]
        self.starts.append(starts)
        self.ends.append([a + d for a, d in zip(starts, column.duration, strict=True)])

    def _op(self, i: int, p: int) -> str:
        return self.bound.streams[i].instrs[self.trace.columns[i].index[p]].instr.op

    def __iter__(self) -> Iterator[Segment]:
        """Segments, last first."""
        last = [(ends[-1] if ends else 0, -i) for i, ends in enumerate(self.ends)]
        if not last:
            return
        time, negative = max(last)
        i = -negative
        p = len(self.ends[i]) - 1
        while p >= 0 and time > 0:
            step = self._queue_step if self.bound.streams[i].is_queue else self._engine_step
            segments, i, p, time = step(i, p, time)
            yield from segments
        if time > 0:
            yield i, "", "start", 0, time

    def _engine_step(self, i: int, p: int, time: int) -> Hop:
        column, op = self.trace.columns[i], self._op(i, p)
        start = self.starts[i][p]
        arrived = start - column.delay[p]
        bound = self.bound.streams[i].instrs[column.index[p]]
        segments = [(i, op, "busy", start, time), (i, op, "port" if bound.ports else "table", arrived, start)]
        if column.cause[p] < 0:
            return segments, i, p - 1, arrived
        return self._follow(segments, column.cause[p], arrived)

    def _queue_step(self, i: int, p: int, time: int) -> Hop:
        column, spec = self.trace.columns[i], self.bound.arch.dma
        start = self.starts[i][p]
        segments: list[Segment] = [(i, self._op(i, p), "transfer", start, time)]
        if p and self.ends[i][p - 1] == start:
            return segments, i, p - 1, start
        time = max(0, start - spec.latency - spec.issue)
        segments.append((i, self._op(i, p), "issue", time, start))
        while column.cause[p] < 0 and p and time > 0:
            p -= 1
            segments.append((i, self._op(i, p), "issue", max(0, time - spec.issue), time))
            time = max(0, time - spec.issue)
        if column.cause[p] < 0:
            return segments, i, -1, time
        return self._follow(segments, column.cause[p], time)

    def _follow(self, segments: list[Segment], channel: int, arrived: int) -> Hop:
        """Go to the instruction whose signal on `channel` was seen at `arrived`."""
        i = self.producer[channel]
        stream, ends = self.bound.streams[i], self.ends[i]
        name = self.bound.program.channels[channel].name
        q = found = bisect_right(ends, arrived - stream.latency) - 1
        while q >= 0 and ends[q] == ends[found]:
            if any(c == name for c, _ in stream.instrs[self.trace.columns[i].index[q]].instr.signals):
                found = q
                break
            q -= 1
        end = ends[found] if found >= 0 else 0
        segments.append((i, self._op(i, found) if found >= 0 else "", "signal", end, arrived))
        return segments, i, found, end
