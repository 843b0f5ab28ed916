"""`dse kernel`: load a user's kernel file, time the kernel, and check it against its reference."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from rich.console import Group, RenderableType

from arch_configs import ArchSpec
from compiler.errors import VerifyError
from compiler.ir.dtype import numpy_dtype
from compiler.ir.interpret import run_program
from compiler.ir.verify_program import check_run, program_macs
from compiler.isa import Program
from compiler.ops.base import Array
from compiler.user_kernel import UserKernel, compile_kernel
from dse.costs import LawCost
from dse.errors import SpaceError
from dse.numerics import COARSE, TOLERANCE, OutputError
from dse.present import numerics_table, show_bytes, show_number, show_share, show_time, words_table
from dse.roofline import PS_PER_S, array_ps, transfer_ps
from dse.summary import memory_records
from eventsim import BoundProgram, Deadlock, Trace, audit, bind, bounds, instances, simulate, simulate_bound

_WHOLE = re.compile("[0-9]{1,18}")  # more digits are no size of anything


@dataclass(frozen=True, slots=True)
class StreamRow:
    """How one engine or queue spent the time; the three parts add up to it."""

    name: str
    busy_ps: int
    wait_ps: dict[str, int]
    idle_ps: int
    instructions: int


@dataclass(frozen=True, slots=True)
class DmaRow:
    """All transfers together."""

    read_bytes: int
    write_bytes: int
    transfers: int
    descriptors: int
    bytes_per_descriptor: int
    active_ps: int  # at least one transfer in flight
    bytes_per_s: int  # over the whole time
    efficiency: float  # bytes moved over what the DMA engines were occupied with


@dataclass(frozen=True, slots=True)
class KernelReport:
    """What is known of a kernel on an architecture."""

    kernel: str
    arch: str
    sizes: dict[str, int]
    dtype: str
    time_ps: int  # without the launch
    launch_ps: int
    problem_bound_ps: int  # the declared work at the peak, tensors moved once
    program_bound_ps: int  # the busiest resource of this program
    macs: int
    array_utilization: float
    streams: tuple[StreamRow, ...]
    dma: DmaRow
    peak_bytes: dict[str, tuple[int, int]]  # memory: peak, capacity
    small: dict[str, int]
    numerics: tuple[OutputError, ...]  # empty: the kernel declares no small sizes
    audit: dict[str, bool]

    @property
    def passed(self) -> bool:
        """Whether the numbers and all audits are right."""
        return all(item.passed for item in self.numerics) and all(self.audit.values())


def parse_sizes(pairs: tuple[tuple[str, str], ...]) -> dict[str, int]:
    """`m=4096` pairs as numbers; raises SpaceError with all that are none."""
    wrong = [
        f"--shape {name}: got {text!r}, want a whole number"
        for name, text in pairs
        if not _WHOLE.fullmatch(text)
    ]
    if wrong:
        raise SpaceError(wrong)
    return {name: int(text) for name, text in pairs}


# ---- timing and numbers --------------------------------------------------------------------------


def time_kernel(
    kernel: UserKernel, arch: ArchSpec, sizes: Mapping[str, int] | None = None, dtype: str | None = None
) -> KernelReport:
    """Compile and simulate `kernel` at `sizes`, and check its numbers at the small ones.

    Raises: Infeasible; CompileError or SpaceError for a mistake in the kernel or the sizes.
    """
    values = kernel.resolve(sizes)
    try:
        program = compile_kernel(kernel, arch, values, dtype=dtype, cost=LawCost(arch))
        numbers = check_numbers(kernel, arch, dtype)
        bound = bind(program, arch)
        trace = simulate_bound(bound)
    except (VerifyError, Deadlock) as error:  # here the kernel is the user's, and so is a broken rule
        raise SpaceError(str(error).splitlines()) from error
    except SystemExit as error:
        where = f"{kernel.file}: kernel {kernel.name}"
        raise SpaceError([f"{where}: got SystemExit({error.code}), want a function that returns"]) from error
    return _report(kernel, values, dtype or kernel.dtype, bound, trace, numbers)


def check_numbers(
    kernel: UserKernel, arch: ArchSpec, dtype: str | None = None, seed: int = 0
) -> tuple[OutputError, ...]:
    """Errors of each output at the small sizes, in program order and in the order of simulated time.

    Raises: as `time_kernel`; RuleError `race` where two accesses are not ordered.
    """
    if not kernel.small:
        return ()
    values = kernel.resolve(small=True)
    types = kernel.types(values, dtype)
    program = compile_kernel(kernel, arch, values, dtype=dtype, cost=LawCost(arch))
    check_run(program, arch)
    rng = np.random.default_rng(seed)
    feeds: dict[str, Array] = {
        operand.name: rng.standard_normal(types[operand.name].shape).astype(
            numpy_dtype(types[operand.name].dtype)
        )
        for operand in kernel.inputs
    }
    wanted = _wanted(kernel, feeds)
    trace = simulate(program, arch, fold=False, record=True)
    runs = {
        "program": run_program(program, arch, feeds),
        "time": run_program(program, arch, feeds, instances(trace, program)),
    }
    return tuple(
        _error(operand.name, order, got[operand.name], reference, types[operand.name].dtype)
        for order, got in runs.items()
        for operand, reference in zip(kernel.outputs, wanted, strict=True)
    )


def _wanted(kernel: UserKernel, feeds: Mapping[str, Array]) -> tuple[Array, ...]:
    """What the reference says, one array an output."""
    where = f"{kernel.file}: kernel {kernel.name}: reference"
    try:
        found = kernel.reference(**{name: array.astype(np.float32) for name, array in feeds.items()})
    except (Exception, SystemExit) as error:  # the user's own code, as in the compiler
        raise SpaceError([f"{where}: {type(error).__name__}: {error}"]) from error
    wanted = found if isinstance(found, tuple) else (found,)
    if len(wanted) != len(kernel.outputs):
        raise SpaceError([f"{where}: got {len(wanted)} arrays, want {len(kernel.outputs)}, one an output"])
    return wanted


def _error(name: str, order: str, got: Array, want: Array, dtype: str) -> OutputError:
    if got.shape != want.shape:
        raise SpaceError([f"reference: {name}: got shape {list(want.shape)}, want {list(got.shape)}"])
    worst = float(np.abs(got.astype(np.float64) - want).max(initial=0.0))
    top = float(np.abs(want).max(initial=0.0))
    return OutputError(name, order, worst, worst / top if top else worst, TOLERANCE.get(dtype, COARSE))


def _report(
    kernel: UserKernel,
    values: dict[str, int],
    dtype: str,
    bound: BoundProgram,
    trace: Trace,
    numbers: tuple[OutputError, ...],
) -> KernelReport:
    program, arch = bound.program, bound.arch
    macs = program_macs(program)[0]
    whole = sum(type_.nbytes for type_ in kernel.types(values, dtype).values())
    work = array_ps(macs, dtype, arch)
    return KernelReport(
        kernel=kernel.name,
        arch=arch.name,
        sizes=values,
        dtype=dtype,
        time_ps=trace.time_ps,
        launch_ps=arch.launch_overhead,
        problem_bound_ps=max(work, transfer_ps(whole, arch)),
        program_bound_ps=bounds(bound).lower_ps,
        macs=macs,
        array_utilization=work / max(1, trace.time_ps),
        streams=tuple(
            StreamRow(s.name, s.busy_ps, dict(s.wait_ps), s.idle_ps, s.instructions) for s in trace.streams
        ),
        dma=_dma(bound, trace),
        peak_bytes=_peaks(program, arch),
        small=kernel.resolve(small=True) if kernel.small else {},
        numerics=numbers,
        audit=audit(trace, bound),
    )


def _dma(bound: BoundProgram, trace: Trace) -> DmaRow:
    moved = [(b.transfer, b.times) for s in bound.streams for b in s.instrs if b.transfer is not None]
    payload = sum(transfer.nbytes * times for transfer, times in moved)
    descriptors = sum(transfer.descriptors * times for transfer, times in moved)
    effective = sum(transfer.effective_bytes * times for transfer, times in moved)
    return DmaRow(
        read_bytes=trace.dram_read_bytes,
        write_bytes=trace.dram_write_bytes,
        transfers=sum(times for _, times in moved),
        descriptors=descriptors,
        bytes_per_descriptor=payload // max(1, descriptors),
        active_ps=trace.dma_active_ps,
        bytes_per_s=payload * PS_PER_S // max(1, trace.time_ps),
        efficiency=payload / effective if effective else 1.0,
    )


def _peaks(program: Program, arch: ArchSpec) -> dict[str, tuple[int, int]]:
    records = memory_records(program, arch)
    return {name: (record["peak_bytes"], record["capacity_bytes"]) for name, record in records.items()}


# ---- text ----------------------------------------------------------------------------------------


def kernel_view(report: KernelReport) -> RenderableType:
    """The report as tables."""
    sizes = ", ".join(f"{name}={size}" for name, size in report.sizes.items())
    facts = words_table(f"{report.kernel} on {report.arch}: {sizes}, {report.dtype}", "", "")
    dma, time_ps = report.dma, report.time_ps
    rows = [
        ("time", f"{show_time(time_ps)} and a launch of {show_time(report.launch_ps)}"),
        ("lower bound of the problem", _bound(report.problem_bound_ps, time_ps)),
        ("lower bound of this program", _bound(report.program_bound_ps, time_ps)),
        ("array at its peak", f"{show_share(report.array_utilization)}, {show_number(report.macs)} MACs"),
        ("DRAM", f"{show_bytes(dma.read_bytes)} read, {show_bytes(dma.write_bytes)} written"),
        (
            "DMA rate",
            f"{show_number(dma.bytes_per_s)}B/s, active {show_share(dma.active_ps / max(1, time_ps))}",
        ),
        (
            "DMA descriptors",
            f"{show_number(dma.descriptors)} of {show_bytes(dma.bytes_per_descriptor)} on average in "
            f"{show_number(dma.transfers)} transfers, {show_share(dma.efficiency)} efficient",
        ),
    ]
    rows += [
        (f"{name} peak", f"{show_bytes(peak)} of {show_bytes(capacity)}")
        for name, (peak, capacity) in report.peak_bytes.items()
    ]
    failed = [name for name, passed in report.audit.items() if not passed]
    rows.append(("audit", f"FAILED: {', '.join(failed)}" if failed else "pass"))
    for row in rows:
        facts.add_row(*row)
    return Group(facts, _stream_table(report), _numbers_view(report))


def _bound(bound_ps: int, time_ps: int) -> str:
    return f"{show_time(bound_ps)}, {show_share(bound_ps / max(1, time_ps))} of the time"


def _stream_table(report: KernelReport) -> RenderableType:
    table = words_table("engines and queues", "name", "busy", "idle", "waits, largest first", "instructions")
    for row in report.streams:
        largest = sorted(row.wait_ps.items(), key=lambda item: (-item[1], item[0]))
        waits = ", ".join(f"{cause} {show_share(ps / max(1, report.time_ps))}" for cause, ps in largest if ps)
        busy, idle = (show_share(ps / max(1, report.time_ps)) for ps in (row.busy_ps, row.idle_ps))
        table.add_row(row.name, busy, idle, waits or "-", f"{row.instructions}")
    return table


def _numbers_view(report: KernelReport) -> RenderableType:
    if not report.numerics:
        return "numbers not checked: the kernel declares no small sizes"
    sizes = ", ".join(f"{name}={size}" for name, size in report.small.items())
    return Group(f"numbers at {sizes}", numerics_table(report.numerics))
