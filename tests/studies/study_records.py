"""Made-up records for studies: good, infeasible, failed, in any mix."""

from collections.abc import Mapping

from dse.point import Point
from dse.result import Record, empty_record, error_reason


def good(
    time_ps: int, *, arch: str = "a", overrides: Mapping[str, str] | None = None, workload: str = "w"
) -> Record:
    """A record that worked: a 128 x 128 array busy for half of the time."""
    record = bare(arch, overrides, workload)
    record["status"] = "ok"
    record["time_ps"], record["latency_s"] = time_ps, time_ps / 1e12
    record["mfu"], record["hfu"], record["mbu"] = 0.4, 0.5, 0.25
    record["array"] = {
        "rows": 128, "cols": 128, "units": 1, "dtype": "bf16", "peak_flops_per_s": 90 * 10**12,
        "model_macs": 10, "masked_macs": 0, "other_macs": 0, "padded_macs": 2,
    }  # fmt: skip
    half = time_ps // 2
    record["engines"] = {
        "pe": {
            "kind": "systolic", "busy_ps": half, "wait_ps": {"dma0": half // 4, "dma1": half // 4},
            "idle_ps": time_ps - half - 2 * (half // 4), "instructions": 5, "utilization": 0.5,
        }
    }  # fmt: skip
    record["memory"] = {
        "hbm": _memory("dram", 2**34, 400 * 10**9),
        "sbuf": _memory("scratchpad", 24 * 10**6, None),
    }
    record["ops"] = [
        {
            "op": "y", "kind": "linear", "count": 2, "flops": 10**9, "bytes": 10**7,
            "compute_ps": half, "memory_ps": half // 2, "busy_ps": {"pe": half, "dma": time_ps},
        }
    ]  # fmt: skip
    record["audit"] = {"time_adds_up": True}
    return record


def bare(arch: str = "a", overrides: Mapping[str, str] | None = None, workload: str = "w") -> Record:
    """A record that failed before anything was known."""
    record = empty_record(Point(arch, workload, tuple((overrides or {}).items())), "m")
    record["reason"] = None
    return record


def infeasible(overrides: Mapping[str, str] | None = None, arch: str = "a") -> Record:
    """A record that did not fit."""
    record = bare(arch, overrides)
    record["status"] = "infeasible"
    record["reason"] = error_reason("scratchpad-capacity", "a larger one")
    record["reason"]["needed"], record["reason"]["available"] = 20, 10
    record["memory"] = {"sbuf": _memory("scratchpad", 10**6, None)}
    return record


def failed() -> Record:
    """A record of a crash."""
    record = bare()
    record["reason"] = error_reason("killed", "the worker died")
    return record


def _memory(kind: str, size: int, rate: int | None) -> dict:  # type: ignore[type-arg]
    return {
        "kind": kind, "capacity_bytes": size, "bandwidth_bytes_per_s": rate, "peak_bytes": 0, "by_tensor": [],
    }  # fmt: skip
