"""The record of one evaluation: one schema for points that work, do not fit, or fail.

Records are plain JSON data (TypedDicts), so that a journal line, an API result and a file of
`dse run --json` are the same thing. Every key is always there; what is unknown is null.
"""

from __future__ import annotations

import json
from functools import lru_cache
from typing import TYPE_CHECKING, Literal

from pydantic import ConfigDict, TypeAdapter, ValidationError, with_config
from typing_extensions import TypedDict

from dse.point import Option, Point, fidelity

if TYPE_CHECKING:
    from compiler.errors import Shortfall

SCHEMA = "accel-dse/record/3"

_CLOSED = ConfigDict(extra="forbid", strict=True)


@with_config(_CLOSED)
class ReasonRecord(TypedDict):
    """Why there is no result; for errors only `code` and `fix` are filled."""

    code: str
    resource: str
    needed: int | None
    available: int | None
    unit: str
    terms: list[tuple[str, int]]
    fix: str


@with_config(_CLOSED)
class PointRecord(TypedDict):
    """What was asked for."""

    arch: str
    overrides: dict[str, str]
    workload: str
    options: dict[str, Option]
    fidelity: str
    seed: int


@with_config(_CLOSED)
class DigestsRecord(TypedDict):
    """Digests of the resolved inputs and of the model's own source."""

    arch: str | None
    graph: str | None
    program: str | None
    model: str


@with_config(_CLOSED)
class EngineRecord(TypedDict):
    """Where one engine's or queue's time went: busy + all waits + idle = time_ps."""

    kind: str
    busy_ps: int
    wait_ps: dict[str, int]
    idle_ps: int
    instructions: int
    utilization: float


@with_config(_CLOSED)
class MemoryRecord(TypedDict):
    """How full one memory gets at its worst."""

    kind: str
    capacity_bytes: int
    bandwidth_bytes_per_s: int | None
    peak_bytes: int
    by_tensor: list[tuple[str, int]]


@with_config(_CLOSED)
class BoundsRecord(TypedDict):
    """Analytic bounds: max(compute, memory, collective) <= time_ps <= serial."""

    compute_ps: int
    memory_ps: int
    collective_ps: int
    serial_ps: int | None


@with_config(_CLOSED)
class OpRecord(TypedDict):
    """One op of the graph, all its repetitions together; null where the fidelity does not say."""

    op: str
    kind: str
    count: int
    flops: int
    bytes: int  # DRAM bytes moved (event) or compulsory (roofline)
    compute_ps: int  # lower bound of the array
    memory_ps: int  # lower bound of DRAM
    busy_ps: dict[str, int]  # engine -> time, from the simulation


@with_config(_CLOSED)
class ArrayRecord(TypedDict):
    """The matrix engine, and what its cells did, in MACs; null without a program."""

    rows: int
    cols: int
    units: int
    dtype: str  # operand type that `peak_flops_per_s` and mfu refer to
    peak_flops_per_s: int
    model_macs: int | None  # of the program, for the model
    masked_macs: int | None  # scores that attention computes and throws away
    other_macs: int | None  # array work the model does not ask for: transposes, ones-reductions
    padded_macs: int | None  # cells that idled beside a tile smaller than the array


@with_config(_CLOSED)
class PathRecord(TypedDict):
    """One step of the critical path, latest first; equal neighbours are merged."""

    engine: str
    op: str
    what: str
    time_ps: int


@with_config(_CLOSED)
class EnergyRecord(TypedDict):
    """Energy; null until the architecture carries coefficients."""

    total: float | None
    static: float | None
    dynamic: dict[str, float]


@with_config(_CLOSED)
class AccuracyRecord(TypedDict):
    """What to expect of one kind of op, or of the whole run."""

    op: str
    share: float  # of the cost of all ops
    constants: Literal["calibrated", "documented", "assumed"]  # what sets its time in the architecture
    error: float | None  # mean absolute error of measured rows; null where there are none
    rows: int
    on: str  # device of those rows


@with_config(_CLOSED)
class Record(TypedDict):
    """Result of one point."""

    schema: str
    status: Literal["ok", "infeasible", "error"]
    reason: ReasonRecord | None
    point: PointRecord
    digests: DigestsRecord
    time_ps: int | None
    latency_s: float | None
    flops_model: int | None
    macs: int | None
    hbm_read_bytes: int | None
    hbm_write_bytes: int | None
    spill_bytes: int | None
    link_bytes: int | None
    engines: dict[str, EngineRecord]
    array: ArrayRecord | None
    mfu: float | None
    hfu: float | None
    mbu: float | None
    bounds: BoundsRecord | None
    critical_path: list[PathRecord]
    ops: list[OpRecord]
    memory: dict[str, MemoryRecord]
    energy_j: EnergyRecord | None
    area_mm2: dict[str, float] | None
    cost_usd: dict[str, float] | None
    throughput: dict[str, float]
    workload: dict[
        str, str | int | float
    ]  # what its builder says of it: tokens, cache bytes, loads of experts
    audit: dict[str, bool]
    accuracy: list[AccuracyRecord]
    warnings: list[str]
    provenance: dict[str, str | int | float | None]


DEFINITIONS = {
    "mfu": "model FLOPs utilization = 2 x MACs of the model / time / peak FLOP/s of the operand type",
    "hfu": "hardware utilization = time in which the array is busy (padding, transposes too) / time",
    "mbu": "memory bandwidth utilization = DRAM bytes moved / time / DRAM bandwidth of the core",
}


def point_record(point: Point) -> PointRecord:
    """The point as plain data."""
    return {
        "arch": point.arch,
        "overrides": dict(point.overrides),
        "workload": point.workload,
        "options": dict(point.options),
        "fidelity": point.fidelity,
        "seed": point.seed,
    }


def point_of(record: Record) -> Point:
    """The point that a record answers."""
    asked = record["point"]
    return Point(
        arch=asked["arch"],
        workload=asked["workload"],
        overrides=tuple(asked["overrides"].items()),
        options=tuple(asked["options"].items()),
        fidelity=fidelity(asked["fidelity"]),
        seed=asked["seed"],
    )


def busiest_engine(op: OpRecord) -> tuple[str, int]:
    """The engine that an op keeps busy longest, and how long; the DMA queues, of many, do not count."""
    engines = {name: spent for name, spent in op["busy_ps"].items() if name != "dma"}
    return max(engines.items(), key=lambda item: (item[1], item[0]), default=("", 0))


def op_cost_ps(op: OpRecord) -> int:
    """What an op needs of its dearest resource: an engine as simulated, or its own bounds."""
    return max(busiest_engine(op)[1], op["compute_ps"], op["memory_ps"])


def empty_record(point: Point, model: str) -> Record:
    """A record with every key and no metric; the caller fills in what it knows."""
    return {
        "schema": SCHEMA,
        "status": "error",
        "reason": None,
        "point": point_record(point),
        "digests": {"arch": None, "graph": None, "program": None, "model": model},
        "time_ps": None,
        "latency_s": None,
        "flops_model": None,
        "macs": None,
        "hbm_read_bytes": None,
        "hbm_write_bytes": None,
        "spill_bytes": None,
        "link_bytes": None,
        "engines": {},
        "array": None,
        "mfu": None,
        "hfu": None,
        "mbu": None,
        "bounds": None,
        "critical_path": [],
        "ops": [],
        "memory": {},
        "energy_j": None,
        "area_mm2": None,
        "cost_usd": None,
        "throughput": {},
        "workload": {},
        "audit": {},
        "accuracy": [],
        "warnings": [],
        "provenance": {},
    }


def shortfall_reason(shortfall: Shortfall) -> ReasonRecord:
    """A shortfall as plain data."""
    return {
        "code": shortfall.code,
        "resource": shortfall.resource,
        "needed": shortfall.needed,
        "available": shortfall.available,
        "unit": shortfall.unit,
        "terms": [(name, amount) for name, amount in shortfall.terms],
        "fix": shortfall.fix,
    }


def error_reason(code: str, message: str) -> ReasonRecord:
    """Why an evaluation failed: a stable code and the message."""
    return {
        "code": code,
        "resource": "",
        "needed": None,
        "available": None,
        "unit": "",
        "terms": [],
        "fix": message,
    }


@lru_cache(maxsize=1)
def _adapter() -> TypeAdapter[Record]:
    return TypeAdapter(Record)


def parse_record(text: str, where: str) -> Record:
    """Read and check one record from JSON; raises ValueError that says where and what is wrong."""
    try:
        record = _adapter().validate_json(text)
    except ValidationError as error:
        other = _other_schema(text)
        if other is not None:
            raise ValueError(f"{where}: {_wrong_schema(other)}") from error
        first = error.errors()[0]
        path = ".".join(str(part) for part in first["loc"]) or "(whole text)"
        raise ValueError(
            f"{where}: not a record of schema {SCHEMA}: {path}: {first['msg']}; "
            f"{error.error_count()} problem(s) in all"
        ) from error
    if record["schema"] != SCHEMA:
        raise ValueError(f"{where}: {_wrong_schema(record['schema'])}")
    return record


def _wrong_schema(found: str) -> str:
    return f"got a record of schema {found!r}, want {SCHEMA!r}; make it again with this version"


def _other_schema(text: str) -> str | None:
    """The schema that a text names, if it is a record of another one."""
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return None
    schema = found.get("schema") if isinstance(found, dict) else None
    return schema if isinstance(schema, str) and schema != SCHEMA else None


def validate_record(record: Record) -> None:
    """Raise ValueError if a record in memory breaks the schema."""
    try:
        _adapter().validate_python(record)
    except ValidationError as error:
        raise ValueError(str(error)) from error
