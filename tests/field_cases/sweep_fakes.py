"""Evaluators that stand in for the real one, so that sweeps are tested without a model."""

import os
import signal
import time

from compiler.errors import Shortfall
from dse.digest import digest_json
from dse.point import Point
from dse.result import Record, empty_record, error_reason, point_record, shortfall_reason


def point_id(point: Point) -> str:
    return digest_json(point_record(point))


def _number(point: Point) -> int:
    return int(dict(point.overrides).get("n", "0"))


def good(point: Point) -> Record:
    """A plausible compute- or memory-bound record whose time follows from the point alone."""
    n = _number(point)
    record = empty_record(point, "fake")
    record["status"] = "ok"
    record["time_ps"] = 1_000_000 + 1000 * ((n * 37) % 101)
    record["latency_s"] = record["time_ps"] / 10**12
    return record


def infeasible(point: Point) -> Record:
    record = empty_record(point, "fake")
    record["status"] = "infeasible"
    record["reason"] = shortfall_reason(
        Shortfall("dram-capacity", "hbm", 200, 100, "B", (("weights", 150), ("kv", 50)), "use a larger hbm")
    )
    return record


def mixed(point: Point) -> Record:
    """U062: point 37 does not fit, point 58 raises."""
    n = _number(point)
    if n == 37:
        return infeasible(point)
    if n == 58:
        raise RuntimeError("fifty-eight")
    return good(point)


def deadly(point: Point) -> Record:
    """U115: the worker of point 5 is killed as the out-of-memory killer does it."""
    if _number(point) == 5:
        os.kill(os.getpid(), signal.SIGKILL)
    return good(point)


def slow(point: Point) -> Record:
    time.sleep(0.01)
    return mixed(point)


def endless(point: Point) -> Record:
    if _number(point) == 3:
        while True:
            time.sleep(0.05)
    return good(point)


def failed(point: Point) -> Record:
    record = empty_record(point, "fake")
    record["reason"] = error_reason("RuntimeError", "no")
    return record
