"""What a simulation leaves behind: times and bytes by stream, cause and graph op, and the records."""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from dataclasses import dataclass, field

from compiler.isa import Instr, Program, Sync, unroll


@dataclass(frozen=True, slots=True)
class StreamTrace:
    """One engine or queue. `busy_ps + sum(wait_ps) + idle_ps` is the makespan, exactly.

    Engines: busy is the instructions' time on the warm engine; causes are the stream waited for,
    `port:<memory>`, `table` (changing the activation table) and `ramp` (a cold array).
    Queues: busy is the time with data in flight; `issue` is the fixed cost of starting a transfer.
    """

    name: str
    busy_ps: int
    wait_ps: dict[str, int]
    idle_ps: int
    end_ps: int
    instructions: int
    busy_by_op: dict[str, int]


@dataclass(slots=True)
class Column:
    """Records of one stream in order. Engines: instructions; queues: transfers, from first to last byte."""

    is_queue: bool
    index: array[int] = field(default_factory=lambda: array("q"))  # static instruction
    start: array[int] = field(default_factory=lambda: array("q"))
    duration: array[int] = field(default_factory=lambda: array("q"))
    cause: array[int] = field(default_factory=lambda: array("q"))  # channel that delayed it, or -1
    delay: array[int] = field(default_factory=lambda: array("q"))  # ps from its tokens to its start (engines)


@dataclass(frozen=True, slots=True)
class Jump:
    """Folding: what was recorded in a window of time was repeated `times` more behind it."""

    times: int
    begin_ps: int  # the window, on the anchor's clock
    end_ps: int
    begin: tuple[int, ...]  # per stream: records before the window
    end: tuple[int, ...]  # per stream: records up to its end, where the repeats belong
    first_jump: int  # jumps made before the window began; those after lie in the window

    @property
    def period_ps(self) -> int:
        """Length of the window."""
        return self.end_ps - self.begin_ps


@dataclass(frozen=True, slots=True)
class Trace:
    """The result of a simulation."""

    program: str
    time_ps: int
    streams: tuple[StreamTrace, ...]
    dram_read_bytes: int
    dram_write_bytes: int
    dma_effective_bytes: int
    dram_moved_bytes: int  # counted as transfers start; the other bytes are sums over the program
    dma_active_ps: int  # time with at least one transfer in flight
    kernel_events: int
    jumps: int  # how often folding skipped repeats
    columns: tuple[Column, ...] = ()
    jump_list: tuple[Jump, ...] = ()

    def stream(self, name: str) -> StreamTrace:
        """The stream called `name`."""
        return next(s for s in self.streams if s.name == name)

    def figures(self) -> tuple[object, ...]:
        """Everything that folding must leave unchanged, as a value."""
        return (
            self.time_ps,
            tuple(
                (s.name, s.busy_ps, tuple(sorted(s.wait_ps.items())), s.idle_ps, s.end_ps, s.instructions)
                for s in self.streams
            ),
            tuple(tuple(sorted(s.busy_by_op.items())) for s in self.streams),
            self.dram_read_bytes,
            self.dram_write_bytes,
            self.dma_effective_bytes,
            self.dram_moved_bytes,
            self.dma_active_ps,
        )


Record = tuple[int, int, int]  # static instruction, start, duration


def records(trace: Trace, stream: int) -> Iterator[Record]:
    """All records of a stream by position, skipped repeats written out (lazily)."""
    column, jumps = trace.columns[stream], trace.jump_list
    filled: list[bool] = []
    for jump in jumps:
        inner = any(filled[jump.first_jump :])
        filled.append(inner or jump.begin[stream] < jump.end[stream])

    def window(low: int, high: int, first: int, last: int, shift: int) -> Iterator[Record]:
        position = low
        for k in range(first, last):
            if not filled[k]:
                continue
            jump = jumps[k]
            yield from plain(position, jump.end[stream], shift)
            position = jump.end[stream]
            for i in range(1, jump.times + 1):
                by = shift + i * jump.period_ps
                yield from window(jump.begin[stream], position, jump.first_jump, k, by)
        yield from plain(position, high, shift)

    def plain(low: int, high: int, shift: int) -> Iterator[Record]:
        for p in range(low, high):
            yield column.index[p], column.start[p] + shift, column.duration[p]

    return window(0, len(column.start), 0, len(jumps), 0)


def num_records(trace: Trace, stream: int) -> int:
    """How many instructions or transfers of a stream ran, skipped repeats included."""
    skipped = [0]  # by the first k jumps
    for jump in trace.jump_list:
        window = jump.end[stream] - jump.begin[stream] + skipped[-1] - skipped[jump.first_jump]
        skipped.append(skipped[-1] + jump.times * window)
    return len(trace.columns[stream].start) + skipped[-1]


Instance = tuple[int, int, str, Instr, dict[str, int]]


def instances(trace: Trace, program: Program) -> Iterator[Instance]:
    """Every dynamic instruction as (start, end, stream, instruction, loop counters), by start time.

    Of a trace recorded without folding. Ties: by end, then in the order of the program's streams.
    Sync instructions move no data and are left out.
    """
    assert not trace.jump_list, "instances need a trace recorded with fold=False"
    found: list[tuple[int, int, int, int, Instr, dict[str, int]]] = []
    for rank, ((_, nodes), column) in enumerate(zip(program.streams, trace.columns, strict=True)):
        position = 0
        for instr, env in unroll(nodes):
            if isinstance(instr, Sync):
                position += not column.is_queue
                continue
            start = column.start[position]
            found.append((start, start + column.duration[position], rank, position, instr, dict(env)))
            position += 1
    found.sort(key=lambda item: item[:4])
    for start, end, rank, _, instr, env in found:
        yield start, end, program.streams[rank][0], instr, env
