"""The simulation of one bound program: build the machine, run it to the end, report."""

from __future__ import annotations

from collections import deque

import simpy

from arch_configs.spec import ArchSpec
from compiler.isa import Program, operands
from eventsim.bind import BoundProgram, BoundStream, bind
from eventsim.errors import Deadlock, Waiting
from eventsim.fold import Folder
from eventsim.kernel import num_events
from eventsim.memory import Fluid
from eventsim.ports import Arbiter
from eventsim.queues import Ring
from eventsim.record import Recorder
from eventsim.stream import Step, Stream
from eventsim.sync import Chan
from eventsim.trace import StreamTrace, Trace

INFINITY = simpy.core.Infinity


def _time_and_rank(stream: Stream) -> tuple[int, int]:
    return stream.t, stream.rank


class Sim:
    """The mutable state of one run; lives only inside `simulate_bound`."""

    def __init__(self, bound: BoundProgram, *, record: bool) -> None:
        self.bound = bound
        self.env = simpy.Environment()
        self.ready: deque[Stream] = deque()
        self.anchored: list[Stream] = []
        self.chans = [Chan(i, c.initial) for i, c in enumerate(bound.program.channels)]
        self.arbiter = Arbiter(self.env, len(bound.ports))
        num_queues = sum(s.is_queue for s in bound.streams)
        self.fluid = Fluid(bound, self.env, num_queues)
        self.op_names = [self._ops(s) for s in bound.streams]
        self.streams = [
            self._stream(s, record, ops) for s, ops in zip(bound.streams, self.op_names, strict=True)
        ]
        self.rings = [s.ring for s in self.streams if s.ring is not None]
        self.recorder = Recorder(self.streams) if record else None
        self.fold: Folder | None = None

    @staticmethod
    def _ops(stream: BoundStream) -> dict[str, int]:
        return {op: i for i, op in enumerate(dict.fromkeys(b.instr.op for b in stream.instrs))}

    def _stream(self, bound: BoundStream, record: bool, ops: dict[str, int]) -> Stream:
        code = bound.plain if record else bound.fused
        steps = [Step(op, self.chans, bound, ops.get(op.label, 0)) for op in code.ops]
        stream = Stream(self, bound, steps, code.num_slots)
        if bound.is_queue:
            spec = self.bound.arch.dma
            stream.ring = Ring(self, bound.rank, spec.issue + spec.latency, max(1, len(ops)))
        return stream

    def _drain(self) -> None:
        """Run every stream that can go on; let anchored ones, in order of time, look for a repeat.

        An anchored stream goes on only when the kernel has nothing left to do before its time: then all
        that is earlier is over, and the state it compares says all about the future.
        """
        ready, anchored = self.ready, self.anchored
        while True:
            while ready:
                ready.popleft().run()
            if not anchored:
                return
            stream = min(anchored, key=_time_and_rank) if len(anchored) > 1 else anchored[0]
            if stream.t > self.env.peek():
                return
            anchored.remove(stream)
            assert self.fold is not None
            self.fold.visit(stream)
            step = stream.code[stream.pc]
            left = stream.counters[step.slot] - 1
            stream.counters[step.slot] = left
            stream.pc = step.target if left else stream.pc + 1
            ready.append(stream)

    def run(self) -> None:
        """Simulate to the end. Raises: Deadlock when streams are left that cannot go on."""
        env, ready, anchored = self.env, self.ready, self.anchored
        ready.extend(self.streams)
        self._drain()
        # NOTE: not `env.run()`, which returns without a word when nothing is scheduled any more, and
        # which would let time pass an anchored stream.
        while env.peek() < INFINITY:
            env.step()
            if ready or anchored:
                self._drain()
        stuck = tuple(self._waiting(s) for s in self.streams if not s.done)
        if stuck:
            raise Deadlock(int(env.now), stuck)

    def _waiting(self, stream: Stream) -> Waiting:
        step = stream.code[stream.pc]
        instr = stream.bound.instrs[step.index].instr
        channels = self.bound.program.channels
        short = [(c, n) for c, n in step.waits or () if c.old + len(c.stamps) < n]
        assert short, f"{stream.bound.name} stands still at {instr} without a missing token"
        chan, need = short[0]
        held = tuple(dict.fromkeys(access.buffer for _, access in operands(instr)))
        channel = channels[chan.index]
        return Waiting(
            stream=stream.bound.name,
            instruction=f"{type(instr).__name__} #{step.index}",
            op=instr.op,
            channel=channel.name,
            producer=channel.producer,
            needed=need,
            available=chan.old + len(chan.stamps),
            held=held,
        )

    # -- results -------------------------------------------------------------------------------
    def trace(self) -> Trace:
        """The figures of a finished run."""
        ends = [max(s.t, s.ring.ended) if s.ring else s.t for s in self.streams]
        time_ps = max(ends, default=0)
        waits: list[dict[str, int]] = [{} for _ in self.streams]
        position = {s.bound.name: i for i, s in enumerate(self.streams)}
        for chan, spec in zip(self.chans, self.bound.program.channels, strict=True):
            if chan.stall:
                causes = waits[position[spec.consumer]]
                causes[spec.producer] = causes.get(spec.producer, 0) + chan.stall
        moving = [b for s in self.bound.streams for b in s.instrs]
        transfers = [(b.transfer, b.times, b.fetches) for b in moving if b.transfer is not None]
        return Trace(
            program=self.bound.program.name,
            time_ps=time_ps,
            streams=tuple(
                self._stream_trace(i, s, time_ps, ends[i], waits[i]) for i, s in enumerate(self.streams)
            ),
            dram_read_bytes=sum(t.dram_read_bytes * n for t, _, n in transfers),
            dram_write_bytes=sum(t.dram_write_bytes * n for t, _, n in transfers),
            dma_effective_bytes=sum(t.effective_bytes * n for t, n, _ in transfers),
            dram_moved_bytes=self.fluid.dram_bytes(),
            dma_active_ps=self.fluid.active_ps,
            kernel_events=num_events(self.env),
            jumps=self.fold.jumps if self.fold else 0,
            columns=self.recorder.columns if self.recorder else (),
            jump_list=tuple(self.fold.jump_list) if self.fold else (),
        )

    def _stream_trace(
        self, i: int, stream: Stream, time_ps: int, end_ps: int, wait: dict[str, int]
    ) -> StreamTrace:
        bound = stream.bound
        by_op = dict.fromkeys(self.op_names[i], 0)
        if stream.ring is not None:
            for op, index in self.op_names[i].items():
                by_op[op] = stream.ring.busy[index]
            wait["issue"] = stream.ring.issue_ps
        else:
            for b in bound.instrs:
                by_op[b.instr.op] += b.times * b.duration
            wait["table"] = stream.table_ps
            wait["ramp"] = stream.ramp_ps
            for ports, lost in stream.port_ps.items():
                wait[self._port_name(ports)] = wait.get(self._port_name(ports), 0) + lost
        wait = {cause: ps for cause, ps in wait.items() if ps}
        busy = sum(by_op.values())
        idle = time_ps - busy - sum(wait.values())
        assert idle >= 0, (bound.name, time_ps, busy, wait)
        return StreamTrace(bound.name, busy, wait, idle, end_ps, sum(b.times for b in bound.instrs), by_op)

    def _port_name(self, ports: tuple[int, ...]) -> str:
        return "port:" + "+".join(dict.fromkeys(self.bound.ports[port] for port in ports))


def simulate_bound(bound: BoundProgram, *, fold: bool = True, record: bool = False) -> Trace:
    """Simulate a bound program; with `fold`, repeats are skipped exactly; `record` keeps every start.

    Raises: Deadlock when instructions are left that can never start.
    """
    sim = Sim(bound, record=record)
    if fold:
        sim.fold = Folder(sim)
    sim.run()
    return sim.trace()


def simulate(program: Program, arch: ArchSpec, *, fold: bool = True, record: bool = False) -> Trace:
    """Simulate `program` on `arch`. All times are integer picoseconds, without `launch_overhead`.

    Raises: SimError when the program cannot exist on this machine; Deadlock when it cannot finish.
    """
    return simulate_bound(bind(program, arch), fold=fold, record=record)
