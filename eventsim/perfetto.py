"""A recorded trace as Chrome/Perfetto JSON: a track per engine and queue, counters for the memories.

Open the file at https://ui.perfetto.dev. Times in the file are whole nanoseconds (begin and end rounded
down, so slices of a track never overlap); each slice carries its exact picoseconds in `args.ps`.
"""

from __future__ import annotations

import gzip
import heapq
import io
import json
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

from arch_configs.spec import ArchSpec
from compiler.isa import Buffer, operands
from eventsim.bind import BoundProgram
from eventsim.trace import Trace, records

MAX_SLICES = 200_000  # about 30 MB of JSON, which the viewer still opens quickly
BINS = 1000  # samples of the bandwidth counters

Event = dict[str, object]
Slice = tuple[int, int, int, int]  # start, stream, duration, static instruction


def write_perfetto(trace: Trace, bound: BoundProgram, path: str | Path, max_slices: int = MAX_SLICES) -> int:
    """Write the trace; `.gz` compresses. Returns the number of slices written.

    Needs `record=True`; repeats that folding skipped are written out. Beyond `max_slices` the file ends at
    a point in time, which `otherData.truncated_at_ps` names.
    """
    path = Path(path)
    slices, cut = _slices(trace, max_slices)
    other = {"program": trace.program, "arch": bound.arch.name, "time_ps": trace.time_ps}
    if cut is not None:
        other["truncated_at_ps"] = cut
    # A fixed time stamp: equal traces give equal files.
    raw = path.open("wb")
    with raw, gzip.GzipFile("", "wb", fileobj=raw, mtime=0) if path.suffix == ".gz" else raw as binary:
        text = io.TextIOWrapper(binary, encoding="utf-8", write_through=True)
        text.write('{"displayTimeUnit": "ns", "otherData": ' + json.dumps(other) + ', "traceEvents": [\n')
        text.write(",\n".join(json.dumps(event) for event in _events(trace, bound, slices)))
        text.write("\n]}\n")
        text.flush()
        text.detach()
    return len(slices)


def _slices(trace: Trace, most: int) -> tuple[list[Slice], int | None]:
    """The first `most` records of all streams by start, and the start of the first left out."""

    def stream(i: int) -> Iterator[Slice]:
        for index, start, duration in records(trace, i):
            if duration:
                yield start, i, duration, index

    merged = heapq.merge(*(stream(i) for i in range(len(trace.columns))))
    found = list(islice(merged, most))
    following = next(merged, None)
    return found, None if following is None else following[0]


def _events(trace: Trace, bound: BoundProgram, slices: list[Slice]) -> Iterator[Event]:
    yield {"ph": "M", "pid": 0, "name": "process_name", "args": {"name": f"{bound.arch.name} core"}}
    for i, stream in enumerate(trace.streams):
        yield {"ph": "M", "pid": 0, "tid": i + 1, "name": "thread_name", "args": {"name": stream.name}}
        yield {"ph": "M", "pid": 0, "tid": i + 1, "name": "thread_sort_index", "args": {"sort_index": i}}
    for start, i, duration, index in slices:
        instr = bound.streams[i].instrs[index].instr
        kind = type(instr).__name__
        begin = start // 1000
        yield {
            "ph": "X", "pid": 0, "tid": i + 1, "name": instr.op or kind, "cat": kind,
            "ts": _microseconds(begin), "dur": _microseconds((start + duration) // 1000 - begin),
            "args": {"instruction": f"{kind} #{index}", "ps": duration},
        }  # fmt: skip
    if slices:
        yield from _bandwidth(bound, slices)
        yield from _live(bound, slices)


def _microseconds(ns: int) -> float:
    return ns / 1000


def _counter(time_ps: int, name: str, values: dict[str, int | float]) -> Event:
    return {"ph": "C", "pid": 0, "name": name, "ts": _microseconds(time_ps // 1000), "args": values}


def _bandwidth(bound: BoundProgram, slices: list[Slice]) -> Iterator[Event]:
    """DRAM bytes/s in equal bins; a transfer's bytes are spread evenly over its time."""
    end = max(start + duration for start, _, duration, _ in slices)
    width = max(1, -(-end // BINS))
    read, write = [0] * (BINS + 1), [0] * (BINS + 1)
    for start, i, duration, index in slices:
        transfer = bound.streams[i].instrs[index].transfer
        if transfer is None:
            continue
        for totals, nbytes in ((read, transfer.dram_read_bytes), (write, transfer.dram_write_bytes)):
            if nbytes:
                _spread(totals, width, start, duration, nbytes)
    for k in range(BINS):
        gbps = {"read": read[k] * 1000 / width, "write": write[k] * 1000 / width}
        yield _counter(k * width, "DRAM GB/s", {side: round(value, 3) for side, value in gbps.items()})


def _spread(totals: list[int], width: int, start: int, duration: int, nbytes: int) -> None:
    """Add `nbytes` to the bins of [start, start + duration), exactly in sum."""
    given = 0
    for k in range(start // width, (start + duration - 1) // width + 1):
        upto = nbytes * (min((k + 1) * width, start + duration) - start) // duration
        totals[k] += upto - given
        given = upto


def _live(bound: BoundProgram, slices: list[Slice]) -> Iterator[Event]:
    """On-chip bytes of buffers between their first and their last use."""
    first: dict[str, int] = {}
    last: dict[str, int] = {}
    used = [
        [tuple(dict.fromkeys(access.buffer for _, access in operands(b.instr))) for b in stream.instrs]
        for stream in bound.streams
    ]
    for start, i, duration, index in slices:
        for name in used[i][index]:
            first.setdefault(name, start)
            last[name] = max(last.get(name, 0), start + duration)
    changes: list[tuple[int, str, int]] = []
    for buffer in bound.program.buffers:
        if buffer.name in first and buffer.partitions:
            nbytes = _bytes(buffer, bound.arch)
            changes += [
                (first[buffer.name], buffer.memory, nbytes),
                (last[buffer.name], buffer.memory, -nbytes),
            ]
    level: dict[str, int] = {}
    changes.sort()
    for time, memory, delta in changes:
        level[memory] = level.get(memory, 0) + delta
        yield _counter(time, f"{memory} bytes", {"live": level[memory]})


def _bytes(buffer: Buffer, arch: ArchSpec) -> int:
    return buffer.nbytes * min(buffer.partitions, arch.partitions(buffer.memory))
