"""The critical path: backwards from the end over what each instruction waited for."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass

from eventsim.bind import BoundProgram
from eventsim.trace import Trace


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

    Needs a trace recorded with `record=True`; folded or not. With `top`, the smaller rows are summed into
    one with empty names.
    """
    sums = _Walk(trace, bound).run()
    rows = [PathRow(trace.streams[i].name, op, cause, ps) for (i, op, cause), ps in sums.items() if ps]
    rows.sort(key=lambda row: (-row.ps, row.stream, row.op, row.cause))
    if sum(row.ps for row in rows) != trace.time_ps:
        # A stream ended on its own while the others were folded: recorded time is not one axis then.
        rows = _scaled(rows, trace.time_ps)
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


Label = tuple[int, str, str]  # stream, graph op, cause
Piece = tuple[Label, int]  # what the time down to here is
# Where the walk stands: pieces still to pass, then the record of a stream that ends there. The issuing
# side of queue i, whose transfers were issued one behind the other, is stream `~i`.
State = tuple[int, tuple[Piece, ...], int, int]  # time, pieces, stream, record
Sums = dict[Label, int]


class _Walk:
    """The walk, in recorded time: simulated time with the skipped repeats cut out.

    Where repeats were cut out, the window they repeat is walked once more for each, until it leads from
    where it was entered to the same place again; the rest is multiplied.
    """

    def __init__(self, trace: Trace, bound: BoundProgram) -> None:
        self.bound = bound
        self.trace = trace
        self.jumps = trace.jump_list
        self.columns = trace.columns
        names = {s.name: i for i, s in enumerate(bound.streams)}
        self.producer = [names.get(c.producer, -1) for c in bound.program.channels]
        self.sums: Sums = {}
        self.memo: dict[tuple[int, State], tuple[Sums, State]] = {}
        self.cut = cut = [0]  # skipped before jump k
        for jump in self.jumps:
            cut.append(cut[-1] + jump.times * jump.period_ps)
        self.low = [j.begin_ps - cut[j.first_jump] for j in self.jumps]
        self.high = [j.end_ps - cut[k] for k, j in enumerate(self.jumps)]
        self.starts: list[list[int]] = []
        self.ends: list[list[int]] = []
        for i in range(len(bound.streams)):
            self._recorded(i)
        self.busy = [
            [(i, b.instr.op, "transfer" if s.is_queue else "busy") for b in s.instrs]
            for i, s in enumerate(bound.streams)
        ]

    def _recorded(self, i: int) -> None:
        """Start and end of each record with the repeats before it cut out."""
        column, cut = self.columns[i], self.cut
        starts: list[int] = []
        position = 0
        for k, jump in enumerate(self.jumps):
            starts += [x - cut[k] for x in column.start[position : jump.end[i]]]
            position = jump.end[i]
        starts += [x - cut[-1] for x in column.start[position:]]
        self.starts.append(starts)
        self.ends.append([a + d for a, d in zip(starts, column.duration, strict=True)])

    def run(self) -> Sums:
        """Time by label."""
        last = max(((ends[-1], -i) for i, ends in enumerate(self.ends) if ends), default=None)
        if last is None:
            return {}
        time, i = last[0], -last[1]
        state: State = (time, (), i, len(self.ends[i]) - 1)
        self._descend(state, 0, 0, len(self.jumps))
        return self.sums

    def _descend(self, state: State, low: int, first: int, last: int) -> State:
        """Walk down to time `low`, through the repeats of jumps `first` to `last - 1`."""
        for k in reversed(range(first, last)):
            if self.high[k] <= state[0]:
                state = self._repeats(k, self._plain(state, self.high[k]))
        return self._plain(state, low)

    def _repeats(self, k: int, state: State) -> State:
        """Walk all skipped repeats of window k; the state is at its end before and after."""
        known = self.memo.get((k, state))
        if known is None:
            outer, self.sums = self.sums, {}
            after = self._passes(k, state)
            known = self.memo[k, state] = (self.sums, after)
            self.sums = outer
        self._add(known[0], 1)
        return known[1]

    def _passes(self, k: int, state: State) -> State:
        left = self.jumps[k].times
        entry = state
        seen: dict[State, tuple[int, Sums]] = {}
        while left:
            if state in seen:
                before, sums = seen[state]
                cycles, left = divmod(left, before - left)
                self._add({key: ps - sums.get(key, 0) for key, ps in self.sums.items()}, cycles)
                seen.clear()
                continue
            seen[state] = (left, dict(self.sums))
            start = dict(self.sums)
            bottom = self._descend(state, self.low[k], self.jumps[k].first_jump, k)
            left -= 1
            lifted = self._lift(k, bottom)
            if lifted is None:
                # The window was entered by a way that its repeats cannot: let this pass stand for them.
                self._add({key: ps - start.get(key, 0) for key, ps in self.sums.items()}, left)
                return entry
            state = lifted
        return state

    def _lift(self, k: int, state: State) -> State | None:
        """The state one window later: the same records of the next repeat. None if there are none such."""
        jump = self.jumps[k]
        by = self.high[k] - self.low[k]
        _, pieces, i, p = state
        if p >= 0:
            j = max(i, ~i)
            end = pieces[-1][1] if pieces else self.low[k]
            p += jump.end[j] - jump.begin[j]
            if p >= len(self.ends[j]) or (i >= 0 and self.ends[i][p] != end + by):
                return None
        return self.high[k], tuple([(label, down + by) for label, down in pieces]), i, p

    def _add(self, sums: Sums, times: int) -> None:
        for label, ps in sums.items():
            self.sums[label] = self.sums.get(label, 0) + ps * times

    def _plain(self, state: State, target: int) -> State:
        """Walk down to `target` within what was recorded."""
        time, pieces, i, p = state
        sums = self.sums
        while True:
            for passed, (label, down) in enumerate(pieces):
                if down < target:
                    sums[label] = sums.get(label, 0) + time - target
                    return target, pieces[passed:], i, p
                sums[label] = sums.get(label, 0) + time - down
                time = down
            if time <= target:
                return time, (), i, p
            if p < 0:
                pieces = (((max(i, ~i), "", "start"), 0),)
            elif i < 0:
                pieces, i, p = self._issue_step(~i, p, time)
            elif self.columns[i].is_queue:
                pieces, i, p = self._queue_step(i, p)
            else:
                pieces, i, p = self._engine_step(i, p)

    def _engine_step(self, i: int, p: int) -> tuple[tuple[Piece, ...], int, int]:
        column = self.columns[i]
        label = self.busy[i][column.index[p]]
        start = self.starts[i][p]
        pieces: tuple[Piece, ...] = ((label, start),)
        if column.delay[p]:
            why = "port" if self.bound.streams[i].instrs[column.index[p]].ports else "table"
            start = self._arrival(i, p)
            pieces = (*pieces, ((i, label[1], why), start))
        if column.cause[p] < 0:
            return pieces, i, p - 1
        return self._follow(pieces, column.cause[p], start)

    def _arrival(self, i: int, p: int) -> int:
        """When the tokens of a record that was then delayed were there, perhaps before some jumps."""
        arrived = self.columns[i].start[p] - self.columns[i].delay[p]
        k = bisect_right(self.cut, self.columns[i].start[p] - self.starts[i][p]) - 1
        while k and arrived <= self.jumps[k - 1].end_ps:
            k -= 1
        return arrived - self.cut[k]

    def _queue_step(self, i: int, p: int) -> tuple[tuple[Piece, ...], int, int]:
        column, spec = self.columns[i], self.bound.arch.dma
        label = self.busy[i][column.index[p]]
        start = self.starts[i][p]
        pieces: tuple[Piece, ...] = ((label, start),)
        if p and self.ends[i][p - 1] == start:
            return pieces, i, p - 1
        issued = max(0, start - spec.latency)
        return (*pieces, ((i, label[1], "issue"), issued)), ~i, p

    def _issue_step(self, i: int, p: int, time: int) -> tuple[tuple[Piece, ...], int, int]:
        """The issue of a transfer ends at `time`: it began after a wait, or right behind the one before."""
        column = self.columns[i]
        began = max(0, time - self.bound.arch.dma.issue)
        pieces: tuple[Piece, ...] = (((i, self.busy[i][column.index[p]][1], "issue"), began),)
        if column.cause[p] < 0:
            return pieces, ~i, p - 1
        return self._follow(pieces, column.cause[p], began)

    def _follow(
        self, pieces: tuple[Piece, ...], channel: int, seen: int
    ) -> tuple[tuple[Piece, ...], int, int]:
        """Go to the instruction whose signal on `channel` was seen at `seen`."""
        i = self.producer[channel]
        stream, ends, index = self.bound.streams[i], self.ends[i], self.columns[i].index
        name = self.bound.program.channels[channel].name
        q = found = bisect_right(ends, seen - stream.latency) - 1
        if found < 0:
            return (*pieces, ((i, "", "signal"), 0)), i, -1
        while q >= 0 and ends[q] == ends[found]:
            if any(c == name for c, _ in stream.instrs[index[q]].instr.signals):
                found = q
                break
            q -= 1
        op = self.busy[i][index[found]][1]
        return (*pieces, ((i, op, "signal"), ends[found])), i, found
