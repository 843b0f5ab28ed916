"""What the product says of measured rows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from arch_configs import ArchSpec
from dse.measured import CYCLES, TIMES_PS, WORK, Measured
from dse.pool import Evaluate, evaluate_all
from dse.result import Record
from dse.roles import load_with_roles

Regime = Literal["launch-bound", "memory-bound", "compute-bound"]
REGIMES: tuple[Regime, ...] = ("launch-bound", "memory-bound", "compute-bound")
PS_PER_S = 10**12


@dataclass(frozen=True, slots=True)
class Prediction:
    """A measured row and what was predicted of it; without a value, `reason` says why."""

    row: Measured
    status: Literal["ok", "infeasible", "error"]
    value: float | None = None  # in the row's unit
    bound: float | None = None  # the same of the analytic lower bound; None where it does not apply
    regime: Regime | None = None
    reason: str = ""

    @property
    def ratio(self) -> float | None:
        """Predicted time over measured time, also where rates are compared: above 1 we are slower."""
        if self.value is None:
            return None
        return self.row.reference / self.value if self.row.is_rate else self.value / self.row.reference


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
    points = list(dict.fromkeys(row.point for row in rows))
    records = dict(zip(points, evaluate_all(evaluate, points, jobs, heard), strict=True))
    return [_prediction(row, records[row.point]) for row in rows]


def _prediction(row: Measured, record: Record) -> Prediction:
    if record["status"] != "ok":
        reason = record["reason"]
        text = f"{reason['code']}: {reason['fix']}" if reason else "no reason given"
        return Prediction(row, record["status"], reason=text)
    arch = load_with_roles(row.arch, dict(row.overrides))
    try:
        duration = _duration_ps(row, record, arch)
        value = _in_unit(row, record, arch, duration)
    except ValueError as problem:
        return Prediction(row, "error", reason=str(problem))
    bounds = record["bounds"]
    lower = max(bounds["compute_ps"], bounds["memory_ps"]) if bounds and row.engine is None else 0
    least = lower + (arch.launch_overhead if row.metric == "time" else 0)
    bound = _in_unit(row, record, arch, least) if lower else None
    return Prediction(row, "ok", value, bound, regime_of(record, arch.launch_overhead))


def _duration_ps(row: Measured, record: Record, arch: ArchSpec) -> int:
    """What the row's metric asks of the record. Raises ValueError if the record has no such thing."""
    time_ps = record["time_ps"] or 0
    if row.engine is None:
        return time_ps - (arch.launch_overhead if row.metric == "kernel" else 0)
    if row.engine not in record["engines"]:
        raise ValueError(f"metric: got no engine {row.engine!r}, want one of {', '.join(record['engines'])}")
    return record["engines"][row.engine]["busy_ps"]


def _in_unit(row: Measured, record: Record, arch: ArchSpec, duration_ps: int) -> float:
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
        moved = (record["hbm_read_bytes"] or 0) + (record["hbm_write_bytes"] or 0)
        return (moved if row.unit == "GB/s" else record["flops_model"] or 0) / WORK[row.unit] / seconds
    name = row.unit.replace("/", "_per_")
    if name not in record["throughput"]:
        raise ValueError(f"unit: got {row.unit!r}, but the workload counts {', '.join(record['throughput'])}")
    return record["throughput"][name] * (record["latency_s"] or 0.0) / seconds


def regime_of(record: Record, launch_ps: int) -> Regime:
    """What the time of a run would be least without.

    The launch where it is over half of the run; else the larger lower bound, of DRAM or of the array.
    """
    if 2 * launch_ps > (record["time_ps"] or 0):
        return "launch-bound"
    bounds = record["bounds"]
    is_memory = bounds is None or bounds["memory_ps"] >= bounds["compute_ps"]
    return "memory-bound" if is_memory else "compute-bound"


def points_of(rows: Sequence[Measured]) -> int:
    """How many distinct points the rows ask for."""
    return len({row.point for row in rows})
