"""Find accesses to the same bytes that nothing orders: a happens-before detector on the unrolled program.

Streams run in order, and a token orders what its producer did before it ahead of what its consumer
does after it. Channels are first in, first out with one producer, so this order does not depend on
the run that is looked at, and one run shows every race.
Model: vector clocks, as in FastTrack (Flanagan and Freund, PLDI 2009), with the last writer and the
last reader of each stream kept for every cell of memory. Cost grows with the bytes accessed.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt

from arch_configs.spec import ArchSpec
from compiler.ir.dtype import dtype_bytes
from compiler.ir.rules import RuleError
from compiler.ir.tokens import program_order
from compiler.isa import Access, Buffer, Gather, Instr, Program, operands, reads, walk, writes

Array = npt.NDArray[Any]
Env = dict[str, int]
Clock = Array  # int32, one count a stream


def check_races(program: Program, arch: ArchSpec) -> None:
    """Raise RuleError `race` for the first two accesses to one byte, one a write, that nothing orders.

    Runs the token machine, so it also raises ProgramDeadlock. Transfers of one queue count as ordered:
    queues are in order. For small programs: it visits every dynamic instruction.
    """
    Detector(program).run()


class Shadow:
    """For each cell of a memory, who wrote it last and when each stream read it last."""

    def __init__(self, cells: int, pitch: int) -> None:
        """Nothing was accessed yet."""
        self.pitch = pitch  # cells between partitions
        self.writer: Array = np.zeros(cells, np.int16)
        self.written: Array = np.zeros(cells, np.int32)  # 0: never
        self.read: dict[int, Array] = {}  # by stream


class Detector:
    """Vector clocks of the streams, and the shadow of each memory."""

    def __init__(self, program: Program, before: Callable[[str, Instr, Env], None] | None = None) -> None:
        """`before` is called with each dynamic instruction before its accesses are noted."""
        self.program = program
        self.streams = [name for name, _ in program.streams]
        self.position = {name: i for i, name in enumerate(self.streams)}
        self.clocks: list[Clock] = [np.zeros(len(self.streams), np.int32) for _ in self.streams]
        start = np.zeros(len(self.streams), np.int32)
        self.posted = {c.name: deque([start] * c.initial) for c in program.channels}
        self.log: list[list[tuple[Instr, Env]]] = [[] for _ in self.streams]
        self.buffers = program.buffer_map()
        self.cell = _cell_bytes(program)
        self.before = before
        self.shadows = {
            memory: self._make_shadow([b for b in program.buffers if b.memory == memory])
            for memory in dict.fromkeys(b.memory for b in program.buffers)
        }

    def _make_shadow(self, buffers: list[Buffer]) -> Shadow:
        pitch = -(-max(b.address + b.nbytes for b in buffers) // self.cell)
        return Shadow(pitch * max(1, *(b.partitions for b in buffers)), pitch)

    def run(self) -> None:
        """Visit every dynamic instruction."""
        for name, instr, env in program_order(self.program):
            stream = self.position[name]
            if self.before is not None:
                self.before(name, instr, env)
            clock = self.clocks[stream].copy()
            for channel, count in instr.waits:
                for _ in range(count):
                    np.maximum(clock, self.posted[channel].popleft(), out=clock)
            clock[stream] += 1
            self.clocks[stream] = clock
            self.log[stream].append((instr, dict(env)))
            for access in reads(instr):
                self._read(stream, clock, self.cells(instr, access, env))
            for access in writes(instr):
                self._write(stream, clock, self.cells(instr, access, env))
            for channel, count in instr.signals:
                self.posted[channel].extend([clock] * count)

    def cells(self, instr: Instr, access: Access, env: Env) -> tuple[Access, Shadow, Array]:
        """The indices of the cells an operand covers."""
        buffer, size = self.buffers[access.buffer], dtype_bytes(access.dtype)
        shadow = self.shadows[buffer.memory]
        at = buffer.address + access.slot.at(env) % buffer.slots * buffer.slot_bytes
        at = (at + access.offset.at(env) * size) // self.cell
        if isinstance(instr, Gather) and access is instr.src:
            # which rows are read is not known: the whole table from the first row on
            end = (buffer.address + buffer.nbytes) // self.cell
            return access, shadow, np.arange(at, end)
        wide = size // self.cell
        axes = [(stride * wide, count) for stride, count in access.dims] + [(1, wide)]
        if access.partitions:
            at += access.partition * shadow.pitch
            axes.insert(0, (shadow.pitch, access.partitions))
        cells = np.array([at])
        for stride, count in axes:
            if count > 1:
                cells = (cells[:, None] + np.arange(count) * stride).reshape(-1)
        return access, shadow, cells

    def _read(self, stream: int, clock: Clock, where: tuple[Access, Shadow, Array]) -> None:
        access, shadow, cells = where
        self._after_writes(stream, clock, access, shadow, cells, "reads")
        last = shadow.read.get(stream)
        if last is None:
            last = shadow.read[stream] = np.zeros(shadow.written.size, np.int32)
        last[cells] = clock[stream]

    def _write(self, stream: int, clock: Clock, where: tuple[Access, Shadow, Array]) -> None:
        access, shadow, cells = where
        self._after_writes(stream, clock, access, shadow, cells, "writes")
        for other, last in shadow.read.items():
            late = last[cells] > clock[other]
            if late.any():
                self._report(stream, access, "writes", other, int(last[cells][late][0]), "reads")
        shadow.writer[cells] = stream
        shadow.written[cells] = clock[stream]

    def _after_writes(
        self, stream: int, clock: Clock, access: Access, shadow: Shadow, cells: Array, verb: str
    ) -> None:
        """Every earlier write to these cells happened before."""
        writer, written = shadow.writer[cells], shadow.written[cells]
        late = written > clock[writer]
        if late.any():
            self._report(stream, access, verb, int(writer[late][0]), int(written[late][0]), "writes")

    def _report(self, stream: int, access: Access, verb: str, other: int, when: int, did: str) -> NoReturn:
        """Name both accesses; the other operand is the one that shares bytes."""
        instr, env = self.log[stream][-1]
        earlier, earlier_env = self.log[other][when - 1]
        found = self._sharing(instr, env, access, earlier, earlier_env, did)
        raise RuleError(
            "race",
            f"program {self.program.name!r}: {self._describe(stream, len(self.log[stream]) - 1)} {verb} "
            f"{access.buffer!r} ({self._range(access)}), and "
            f"{self._describe(other, when - 1)} {did} {found.buffer!r} ({self._range(found)}); "
            f"no channel orders them",
        )

    def _sharing(
        self, instr: Instr, env: Env, access: Access, earlier: Instr, earlier_env: Env, did: str
    ) -> Access:
        cells = self.cells(instr, access, env)[2]
        memory = self.buffers[access.buffer].memory
        for candidate in writes(earlier) if did == "writes" else reads(earlier):
            same = self.buffers[candidate.buffer].memory == memory
            if same and np.intersect1d(cells, self.cells(earlier, candidate, earlier_env)[2]).size:
                return candidate
        raise AssertionError(f"no operand of {earlier} shares bytes with {access}")

    def _describe(self, stream: int, index: int) -> str:
        instr, env = self.log[stream][index]
        return (
            f"stream {self.streams[stream]!r} dynamic instruction {index} "
            f"({type(instr).__name__}, op {instr.op!r}, counters {env})"
        )

    def _range(self, access: Access) -> str:
        buffer = self.buffers[access.buffer]
        return f"{buffer.memory} bytes {buffer.address} to {buffer.address + buffer.nbytes}"


def _cell_bytes(program: Program) -> int:
    """The largest unit in which every operand is whole: the fewer cells the faster."""
    unit = 0
    for buffer in program.buffers:
        unit = math.gcd(unit, buffer.address)
        if buffer.slots > 1:
            unit = math.gcd(unit, buffer.slot_bytes)
    for _, nodes in program.streams:
        for instr, _ in walk(nodes):
            for _, access in operands(instr):
                unit = math.gcd(unit, dtype_bytes(access.dtype))
    return unit or 1
