"""What the product says of measured rows."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from arch_configs import ArchError, ArchSpec
from compiler.errors import CompileError, Infeasible
from dse.errors import SpaceError
from dse.kernel import KernelReport, parse_sizes, time_kernel
from dse.kernel_files import load_kernel
from dse.measured import CYCLES, TIMES_PS, WORK, Measured
from dse.point import Point
from dse.pool import Evaluate, evaluate_all
from dse.result import Record
from dse.roles import load_with_roles
from dse.summary import LAUNCH

Regime = Literal["launch-bound", "memory-bound", "compute-bound"]
REGIMES: tuple[Regime, ...] = ("launch-bound", "memory-bound", "compute-bound")
PS_PER_S = 10**12


@dataclass(frozen=True, slots=True)
class Prediction:
    """A measured row and what was predicted of it; without a value, `reason` says why."""

    row: Measured
    status: Literal["ok", "infeasible", "error"]
    value: float | None = None  # in the row's unit
    duration_ps: int | None = None  # what the metric asks for
    bound_ps: int | None = None  # its analytic lower bound; None where there is none
    regime: Regime | None = None
    reason: str = ""

    @property
    def ratio(self) -> float | None:
        """Predicted time over measured time, also where rates are compared: above 1 we are slower."""
        if self.value is None:
            return None
        return self.row.reference / self.value if self.row.is_rate else self.value / self.row.reference

    @property
    def times_ps(self) -> tuple[float, float] | None:
        """Measured and predicted duration, whatever the unit; None without a value."""
        ratio = self.ratio
        if ratio is None or self.duration_ps is None:
            return None
        return self.duration_ps / ratio, float(self.duration_ps)


@dataclass(frozen=True, slots=True)
class Timed:
    """What a row can ask for, of a record or of a kernel."""

    time_ps: int  # with the launch
    launch_ps: int
    compute_ps: int  # lower bounds
    memory_ps: int
    busy_ps: Mapping[str, int]
    dram_bytes: int
    flops: int
    throughput: Mapping[str, float]


def predict(
    rows: Sequence[Measured],
    evaluate: Evaluate,
    *,
    jobs: int = 1,
    heard: Callable[[Record], None] = lambda record: None,
) -> list[Prediction]:
    """Predictions of all rows in their order; each distinct point is evaluated once.

    A point that does not fit or fails is a prediction without a value. `heard` gets each record.
    """
    points = points_of(rows)
    records = dict(zip(points, evaluate_all(evaluate, points, jobs, heard), strict=True))
    return [_of_kernel(row) if row.is_kernel else _of_record(row, records[row.point]) for row in rows]


def points_of(rows: Sequence[Measured]) -> list[Point]:
    """The distinct points that the rows ask for; kernels are none."""
    return list(dict.fromkeys(row.point for row in rows if not row.is_kernel))


def _of_record(row: Measured, record: Record) -> Prediction:
    if record["status"] != "ok":
        reason = record["reason"]
        text = f"{reason['code']}: {reason['fix']}" if reason else "no reason given"
        return Prediction(row, record["status"], reason=text)
    arch = load_with_roles(row.arch, dict(row.overrides))
    bounds = record["bounds"]
    timed = Timed(
        time_ps=record["time_ps"] or 0,
        launch_ps=max((engine["wait_ps"].get(LAUNCH, 0) for engine in record["engines"].values()), default=0),
        compute_ps=bounds["compute_ps"] if bounds else 0,
        memory_ps=bounds["memory_ps"] if bounds else 0,
        busy_ps={name: engine["busy_ps"] for name, engine in record["engines"].items()},
        dram_bytes=(record["hbm_read_bytes"] or 0) + (record["hbm_write_bytes"] or 0),
        flops=record["flops_model"] or 0,
        throughput=record["throughput"],
    )
    return prediction(row, timed, arch)


def _of_kernel(row: Measured) -> Prediction:
    """A tile kernel, compiled and simulated here: they are small."""
    target, *texts = row.workload.split(",")
    sizes = dict(text.partition("=")[::2] for text in texts)
    dtype = sizes.pop("dtype", None)
    try:
        arch = load_with_roles(row.arch, dict(row.overrides))
        report = time_kernel(load_kernel(target), arch, parse_sizes(tuple(sizes.items())), dtype)
    except Infeasible as problem:
        return Prediction(row, "infeasible", reason=str(problem))
    except (ArchError, CompileError, SpaceError) as problem:
        return Prediction(row, "error", reason=str(problem))
    return prediction(row, _timed_kernel(report), arch)


def _timed_kernel(report: KernelReport) -> Timed:
    time_ps = report.time_ps + report.launch_ps
    return Timed(
        time_ps=time_ps,
        launch_ps=report.launch_ps,
        compute_ps=0,
        memory_ps=report.problem_bound_ps,
        busy_ps={stream.name: stream.busy_ps for stream in report.streams},
        dram_bytes=report.dma.read_bytes + report.dma.write_bytes,
        flops=2 * report.macs,
        throughput={"ops_per_s": PS_PER_S / time_ps},
    )


def prediction(row: Measured, timed: Timed, arch: ArchSpec) -> Prediction:
    """What the row's metric and unit make of a run."""
    try:
        duration = _duration_ps(row, timed)
        value = _in_unit(row, timed, arch, duration)
    except ValueError as problem:
        return Prediction(row, "error", reason=str(problem))
    lower = max(timed.compute_ps, timed.memory_ps) if row.engine is None else 0
    least = lower + (timed.launch_ps if row.metric == "time" else 0) if lower else None
    return Prediction(row, "ok", value, duration, least, _regime(timed))


def _duration_ps(row: Measured, timed: Timed) -> int:
    """What the row's metric asks for. Raises ValueError if there is no such thing."""
    if row.engine is None:
        return timed.time_ps - (timed.launch_ps if row.metric == "kernel" else 0)
    if row.engine not in timed.busy_ps:
        raise ValueError(f"metric: got no engine {row.engine!r}, want one of {', '.join(timed.busy_ps)}")
    return timed.busy_ps[row.engine]


def _in_unit(row: Measured, timed: Timed, arch: ArchSpec, duration_ps: int) -> float:
    """A duration as the row's unit expresses it. Raises ValueError if it cannot, or is zero."""
    if duration_ps <= 0:
        raise ValueError(f"{row.metric}: got no time at all, want some")
    if row.unit in TIMES_PS:
        return duration_ps / TIMES_PS[row.unit]
    if row.unit == CYCLES:
        engine = row.engine or ""
        if engine not in arch.engines:
            raise ValueError(f"metric: got {row.metric!r}, want an engine with a clock")
        return duration_ps * arch.engines[engine].clock / PS_PER_S
    seconds = duration_ps / PS_PER_S
    if row.unit in WORK:
        return (timed.dram_bytes if row.unit == "GB/s" else timed.flops) / WORK[row.unit] / seconds
    name = row.unit.replace("/", "_per_")
    if name not in timed.throughput:
        raise ValueError(f"unit: got {row.unit!r}, but the workload counts {', '.join(timed.throughput)}")
    return timed.throughput[name] * timed.time_ps / PS_PER_S / seconds


def _regime(timed: Timed) -> Regime:
    """The launch where it is over half of a run; else the larger lower bound, of DRAM or of the array."""
    if 2 * timed.launch_ps > timed.time_ps:
        return "launch-bound"
    return "memory-bound" if timed.memory_ps >= timed.compute_ps else "compute-bound"
