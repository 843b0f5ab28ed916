"""What a trace says: bounds that must hold around it, and utilisation."""

from __future__ import annotations

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
    moving = [b for s in bound.streams for b in s.instrs]
    moved = [(b.transfer, b.times, b.fetches) for b in moving if b.transfer is not None]
    dram = sum(t.dram_bytes * n for t, _, n in moved)
    effective = sum(t.effective_bytes * n for t, n, _ in moved)
    pool = arch.dma_bandwidth
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
    rates = [Fraction(transfer.cap), Fraction(bound.arch.dma_bandwidth - queues)]
    share = bound.flow_classes[b.flow_class].dram_share
    if share:
        rates.append((bound.arch.dram_sustained - queues * max(Fraction(1), share)) / share)
    rate = max(1, int(min(rates)))
    flow = ceil_div(transfer.effective_bytes * PS_PER_S, rate) + 2
    return spec.issue + spec.latency + flow + spec.completion


def utilization(trace: Trace) -> dict[str, Fraction]:
    """Share of the time each stream was busy."""
    return {s.name: Fraction(s.busy_ps, max(1, trace.time_ps)) for s in trace.streams}


def times_add_up(trace: Trace, bound: BoundProgram) -> bool:
    """Whether the times of each stream, each summed while it ran, come to its end, and idle to the rest.

    An engine works or waits until its end. What a queue's issuing side waits for behind its last transfer
    has no cause, so its end may be later.
    """
    for stream, is_queue in zip(trace.streams, (s.is_queue for s in bound.streams), strict=True):
        spent = stream.busy_ps + sum(stream.wait_ps.values())
        early = stream.end_ps - spent
        if spent + stream.idle_ps != trace.time_ps or early < 0 or (early and not is_queue):
            return False
    return True


def audit(trace: Trace, bound: BoundProgram) -> dict[str, bool]:
    """Checks that must hold of every simulation, by name."""
    arch, limits = bound.arch, bounds(bound)
    ps = trace.time_ps
    dram = trace.dram_read_bytes + trace.dram_write_bytes
    pool = arch.dma_bandwidth
    return {
        "busy + waits + idle = makespan": times_add_up(trace, bound),
        "dram bytes conserved": trace.dram_moved_bytes == dram,
        "dram bytes <= bandwidth * time": dram * PS_PER_S <= arch.dram_bandwidth * ps,
        "dma bytes <= engines * time": trace.dma_effective_bytes * PS_PER_S <= pool * ps,
        "lower bound <= simulated": limits.lower_ps <= ps,
        "simulated <= serial bound": ps <= limits.serial_ps,
        "instructions conserved": sum(s.instructions for s in trace.streams) == bound.instructions,
    }
