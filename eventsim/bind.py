"""Attach durations: (Program, ArchSpec) -> Bound, all the integers that a simulation needs.

A Program is compiled once per structure; binding it to another architecture of the same structure
costs one law evaluation per static instruction.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from arch_configs.spec import ArchSpec, SystolicSpec, VectorSpec
from compiler.cost import VECTOR_CLASSES
from compiler.isa import (
    Dma,
    Gather,
    Instr,
    Matmul,
    Node,
    Program,
    Sync,
    Transpose,
    operands,
    walk,
)
from eventsim.assemble import Code, assemble
from eventsim.clock import cycles_to_ps
from eventsim.dma import Transfer, transfer_of
from eventsim.engines.systolic import Ramp, systolic_ps
from eventsim.engines.vector import table_of, vector_ps
from eventsim.errors import SimError
from eventsim.grid import Grid, Nest, nested
from eventsim.sharing import FlowClass


@dataclass(frozen=True, slots=True)
class BoundInstr:
    """One static instruction with its timing."""

    instr: Instr
    times: int  # how often it runs, of a grid on the busiest core
    duration: int  # ps on the warm engine; in a queue: the issue time
    table: str | None = None  # activation table it needs, on an engine where changing it costs
    ports: int = 0  # bit i: holds exclusion group i while it runs
    transfer: Transfer | None = None
    fetches: int = 0  # how often the transfer crosses the DRAM's pins, of a grid on all cores together
    flow_class: int = -1


@dataclass(frozen=True)
class BoundStream:
    """One stream with its timing."""

    name: str
    is_queue: bool
    nodes: tuple[Node, ...]
    instrs: tuple[BoundInstr, ...]  # in the order of `compiler.isa.walk`
    rank: int  # arbitration order: lowest first
    latency: int  # ps from the end of an instruction until its signals are seen
    channels: Mapping[str, int]
    table_ps: int = 0
    ramp: Ramp | None = None

    @cached_property
    def fused(self) -> Code:
        """Flat code with runs of instructions that cannot wait made one step."""
        return assemble(self, fuse=True)

    @cached_property
    def plain(self) -> Code:
        """Flat code, one step an instruction."""
        return assemble(self, fuse=False)


@dataclass(frozen=True)
class BoundProgram:
    """A program with durations, ready to simulate any number of times."""

    program: Program
    arch: ArchSpec
    streams: tuple[BoundStream, ...]
    flow_classes: tuple[FlowClass, ...]
    ports: tuple[str, ...]  # memory of exclusion group i

    @property
    def launch_ps(self) -> int:
        """What the host and the starts of ops on a grid add to the simulated time."""
        grid = self.arch.grid
        return self.arch.launch_overhead + (grid.launch * self.program.launches if grid else 0)

    @property
    def instructions(self) -> int:
        """Dynamic instructions of all streams, of a grid those of the busiest core."""
        return sum(b.times for s in self.streams for b in s.instrs)


class _Binder:
    """The tables that the instructions of one program share while it is bound."""

    def __init__(self, program: Program, arch: ArchSpec) -> None:
        self.arch = arch
        memory_kind = {name: spec.kind for name, spec in arch.memories.items()}
        for b in program.buffers:
            if b.memory not in memory_kind:
                raise SimError(
                    f"buffer {b.name!r}: got memory {b.memory!r}, want one of {', '.join(memory_kind)}"
                )
        self.memories = {b.name: b.memory for b in program.buffers}
        self.kinds = {b.name: memory_kind[b.memory] for b in program.buffers}
        self.flow_classes: dict[FlowClass, int] = {}
        self.ports = self._ports(program)
        self.grid = Grid(program, arch)

    def _touches(self, instr: Instr, memory: str) -> bool:
        return any(self.memories[access.buffer] == memory for _, access in operands(instr))

    def _ports(self, program: Program) -> list[tuple[frozenset[str], str]]:
        """Exclusion groups in which two engines really meet in this program."""
        found = []
        for rule in self.arch.exclusions:
            users = [
                name
                for name, nodes in program.streams
                if name in rule.engines
                and any(times and self._touches(i, rule.memory) for i, times in walk(nodes, own=True))
            ]
            if len(users) > 1:
                found.append((frozenset(users), rule.memory))
        return found

    def queue(self, instr: Instr, times: int, stream: str, around: Nest) -> BoundInstr:
        """Timing of an instruction in a DMA queue."""
        if isinstance(instr, Sync):
            return BoundInstr(instr, times, 0)
        if not isinstance(instr, (Dma, Gather)):
            raise SimError(f"stream {stream}: got a {type(instr).__name__}, want Dma, Gather or Sync")
        spec = self.arch.dma
        transfer = transfer_of(instr, spec, self.kinds)
        crossings = self.grid.crossings(instr, around)
        load = self.grid.load(instr, crossings, times)
        share = FlowClass(load * transfer.dram_bytes / transfer.effective_bytes, transfer.cap)
        index = self.flow_classes.setdefault(share, len(self.flow_classes))
        return BoundInstr(instr, times, spec.issue, transfer=transfer, fetches=crossings, flow_class=index)

    def engine(self, instr: Instr, times: int, stream: str, around: Nest) -> BoundInstr:
        """Timing of an instruction of an engine."""
        if isinstance(instr, Sync):
            return BoundInstr(instr, times, 0)
        spec = self.arch.engines[stream]
        table = None
        if isinstance(spec, SystolicSpec) and isinstance(instr, (Matmul, Transpose)):
            duration = systolic_ps(instr, spec)
        elif isinstance(spec, VectorSpec) and type(instr) in VECTOR_CLASSES:
            duration = vector_ps(instr, spec, self.kinds)
            table = table_of(instr) if spec.table_load else None
        else:
            raise SimError(
                f"stream {stream}: got a {type(instr).__name__}, which a {spec.kind} engine cannot run"
            )
        ports = 0
        for bit, (users, memory) in enumerate(self.ports):
            if stream in users and self._touches(instr, memory):
                ports |= 1 << bit
        return BoundInstr(instr, times, duration, table, ports)


def bind(program: Program, arch: ArchSpec) -> BoundProgram:
    """Attach the durations that `arch` gives to `program`.

    Raises: SimError when a stream, an instruction or a channel cannot exist on this machine.
    """
    binder = _Binder(program, arch)
    ranks = {name: rank for rank, name in enumerate((*arch.engines, *arch.queue_names))}
    channels = {c.name: i for i, c in enumerate(program.channels)}
    streams = []
    for name, nodes in program.streams:
        if name not in ranks:
            raise SimError(f"stream {name!r}: got no such engine or queue, want one of {', '.join(ranks)}")
        _check_channels(program, name, nodes)
        spec = arch.engines.get(name)
        law = binder.queue if spec is None else binder.engine
        instrs = tuple(law(instr, times, name, around) for instr, times, around in nested(nodes))
        streams.append(
            BoundStream(
                name=name,
                is_queue=spec is None,
                nodes=nodes,
                instrs=instrs,
                rank=ranks[name],
                latency=arch.dma.completion if spec is None else cycles_to_ps(spec.latency, spec.clock),
                channels=channels,
                table_ps=spec.table_load if isinstance(spec, VectorSpec) else 0,
                ramp=Ramp.of(spec.ramp) if isinstance(spec, SystolicSpec) else None,
            )
        )
    ports = tuple(memory for _, memory in binder.ports)
    return BoundProgram(program, arch, tuple(streams), tuple(binder.flow_classes), ports)


def _check_channels(program: Program, stream: str, nodes: tuple[Node, ...]) -> None:
    """Rules R1 and R2: one producing and one consuming stream a channel."""
    table = {c.name: c for c in program.channels}
    for instr, _ in walk(nodes):
        for role, tokens in (("consumer", instr.waits), ("producer", instr.signals)):
            for name, _count in tokens:
                if name not in table:
                    raise SimError(f"stream {stream}: got unknown channel {name!r}")
                owner = table[name].consumer if role == "consumer" else table[name].producer
                if owner != stream:
                    raise SimError(f"channel {name!r}: got {stream} as {role}, want {owner}")
