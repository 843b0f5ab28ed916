"""One point in, one record out: load, build, check, compile, simulate, summarise. Pure."""

from __future__ import annotations

import platform
import subprocess
import time
from dataclasses import fields
from datetime import UTC, datetime
from functools import lru_cache
from importlib.metadata import version
from pathlib import Path
from typing import cast

from arch_configs import ArchError, ArchSpec
from compiler import CompileError, CompileOptions, Infeasible, Shortfall, compile_fused, optimise
from compiler.errors import VerifyError
from compiler.ir.graph import Graph
from dse import summary
from dse.costs import LawCost
from dse.custom import with_kernels
from dse.digest import digest_json, digest_value, model_digest
from dse.errors import SpaceError, did_you_mean
from dse.extrapolation import extrapolated
from dse.label import label
from dse.point import Option, Point
from dse.result import Record, empty_record, error_reason, point_record, shortfall_reason
from dse.roles import by_name, load_with_roles
from dse.roofline import GraphBounds, graph_bounds
from eventsim import BoundProgram, Deadlock, SimError, Trace, bind, simulate_bound
from eventsim.stats import bounds as program_bounds
from workloads import WorkloadError, build

USER_ERRORS = (ArchError, WorkloadError, CompileError, SimError, SpaceError)
LOW_UTILIZATION = 0.05  # assumed: below it, and far from both bounds, a design is probably not what was meant
FAR = 2  # assumed: times the lower bound of array and DRAM


def evaluate(point: Point) -> Record:
    """The record of a point: it works, does not fit, or shows a mistake of the compiler.

    Raises: one of USER_ERRORS when the point itself is wrong; see `dse.pool.guarded`.
    """
    return evaluate_traced(point)[0]


def evaluate_traced(point: Point) -> tuple[Record, BoundProgram | None, Trace | None]:
    """`evaluate`, and with it the bound program and the recorded trace where something was simulated."""
    begun = time.perf_counter()
    arch, graph, options = resolve(point)
    result = empty_record(point, model_digest())
    result["digests"]["arch"] = digest_json(arch.canonical())
    result["digests"]["graph"] = digest_value(graph)
    result["memory"] = summary.memory_skeleton(arch)
    result["array"] = summary.array_skeleton(arch, matrix_dtype(graph))
    result["macs"], result["flops_model"] = graph.macs, 2 * graph.macs
    result["workload"] = dict(graph.meta)
    bounds = graph_bounds(graph, arch)
    bound, trace = None, None
    try:
        check_dram(graph, arch)
        if point.fidelity == "roofline":
            _fill_roofline(result, graph, arch, bounds)
        else:
            fused = optimise(graph, arch, options)
            bound = bind(compile_fused(fused, arch, options, LawCost(arch)), arch)
            trace = simulate_bound(bound, fold=point.fidelity == "event", record=True)
            _fill_simulated(result, graph, fused, bound, trace, bounds)
    except Infeasible as problem:
        _empty_metrics(result, problem.shortfall)
    except (VerifyError, Deadlock) as mistake:  # ours: a legal point gave a program that is not
        if options.kernels:
            raise SpaceError([f"kernels: {mistake}; dse kernel names the line"]) from mistake
        bound = trace = None
        message = f"{mistake}\na mistake of accel-dse, not of the point: please report it"
        result["reason"] = error_reason(type(mistake).__name__, message)
    result["accuracy"] = label(result, arch)
    result["provenance"] = provenance(time.perf_counter() - begun)
    return result, bound, trace


def resolve(point: Point) -> tuple[ArchSpec, Graph, CompileOptions]:
    """What the texts of a point mean; raises the user's errors, all at once."""
    problems: list[str] = []
    try:
        arch = load_with_roles(point.arch, dict(point.overrides))
    except ArchError as error:
        problems += str(error).splitlines()
    try:
        graph = build(point.workload)
    except WorkloadError as error:
        problems += str(error).splitlines()
    try:
        options = compile_options(point.options)
    except SpaceError as error:
        problems += error.problems
    if problems:
        raise SpaceError(problems)
    return arch, with_kernels(graph, options.kernels), options


def point_id(point: Point) -> str:
    """Digest of everything that can change the answer, the model's own source included.

    A value counts, not its spelling: `24 MiB` and `24576 KiB` are one point.
    """
    arch, graph, options = resolve(point)
    plain = arch.canonical()
    named = by_name(dict(point.overrides), arch)
    values = (_value_at(plain, path, text) for path, text in named.items())
    return digest_json(
        {
            "point": {
                **point_record(point),
                "overrides": dict(zip(dict(point.overrides), values, strict=True)),
                "options": {name: getattr(options, name) for name, _ in point.options},
            },
            "arch": plain,
            "graph": digest_value(graph),
            "model": model_digest(),
        }
    )


def _value_at(plain: object, path: str, text: str) -> object:
    """What an override came to; its text where the path does not lead to one value."""
    for part in path.split("."):
        if not isinstance(plain, dict) or part not in plain:
            return text
        plain = plain[part]
    return plain


def compile_options(options: tuple[tuple[str, Option], ...]) -> CompileOptions:
    """Options by name; a list is written with commas. Raises SpaceError for unknown or wrong ones."""
    known = {field.name: field for field in fields(CompileOptions)}
    defaults = CompileOptions()
    values: dict[str, object] = {}
    problems = []
    for name, value in options:
        if name not in known:
            problems.append(f"options.{name}: got an unknown option{did_you_mean(name, known)}")
            continue
        default = getattr(defaults, name)
        parsed = _option(value, default)
        if parsed is None:
            problems.append(f"options.{name}: got {value!r}, want a value such as {default!r}")
        values[name] = parsed
    if problems:
        raise SpaceError(problems)
    try:
        return CompileOptions(**values)  # type: ignore[arg-type]
    except CompileError as error:
        raise SpaceError(str(error).splitlines()) from error


def _option(value: Option, default: object) -> object | None:
    """`value` as the type of `default`, or None if it is not one."""
    text = str(value).lower()
    if isinstance(default, bool):
        return {"true": True, "false": False, "1": True, "0": False}.get(text)
    if isinstance(default, tuple):
        return tuple(part.strip() for part in str(value).split(",") if part.strip())
    if isinstance(default, (int, float)):
        try:
            return type(default)(text) if text.isascii() else None
        except ValueError:
            return None
    return str(value)


def matrix_dtype(graph: Graph) -> str:
    """Operand type of most of the model's MACs: what its peak and mfu refer to."""
    types = graph.value_map()
    weight: dict[str, int] = {}
    for node, times in graph.walk():
        ins = tuple(types[name].type for name in node.inputs)
        if ins:
            weight[ins[0].dtype] = weight.get(ins[0].dtype, 0) + times * node.op.macs(ins)
    return max(weight, key=lambda dtype: (weight[dtype], dtype), default="bf16")


def check_dram(graph: Graph, arch: ArchSpec) -> None:
    """Raise Infeasible when weights, states, inputs and outputs and the runtime reserve exceed DRAM.

    A bound from below, before any compilation; activations are placed, and checked, by the compiler.
    """
    spec = arch.memories[arch.dram]
    outputs = sum(v.nbytes for v in graph.values if v.name in graph.outputs and v.kind == "activation")
    lines = (
        ("weights", graph.kind_bytes("weight")),
        ("kv cache and states", graph.kind_bytes("state")),
        ("inputs", graph.kind_bytes("input")),
        ("outputs", outputs),
        ("runtime reserve", spec.reserved),
    )
    needed = sum(size for _, size in lines)
    if needed <= spec.capacity:
        return
    terms = tuple(sorted((line for line in lines if line[1]), key=lambda item: -item[1]))
    lever = (
        "a smaller batch or context" if terms[0][0].startswith("kv") else "fewer layers or a narrower type"
    )
    gib = -(-needed // 2**30)
    fix = f"memories.{arch.dram}.capacity >= {gib} GiB, or {lever}"
    raise Infeasible(Shortfall("dram-capacity", arch.dram, needed, spec.capacity, "B", terms, fix))


def _fill_roofline(result: Record, graph: Graph, arch: ArchSpec, bounds: GraphBounds) -> None:
    """Metrics of the bound itself: the time that no schedule can beat."""
    launches = sum(times for _, times in graph.walk()) * arch.grid.launch if arch.grid else 0
    _fill_time(result, graph, arch, bounds.time_ps + arch.launch_overhead + launches)
    result["ops"] = summary.bound_op_records(bounds)
    _fill_bounds(result, bounds, None)
    _fill_traffic(result, arch, bounds.read_bytes, bounds.write_bytes)
    result["audit"] = {"above_lower_bound": True}


def _fill_simulated(
    result: Record, graph: Graph, fused: Graph, bound: BoundProgram, trace: Trace, bounds: GraphBounds
) -> None:
    arch = bound.arch
    serial = program_bounds(bound).serial_ps + bound.launch_ps
    array = summary.array_record(bound.program, arch, matrix_dtype(graph), graph.macs)
    result["digests"]["program"] = digest_value(bound.program)
    result["array"] = array
    _fill_time(result, graph, arch, trace.time_ps + bound.launch_ps)
    result["engines"] = summary.engine_records(trace, bound)
    result["hfu"] = result["engines"][arch.tensor]["utilization"]
    result["memory"] = summary.memory_records(bound.program, arch)
    result["ops"] = summary.op_records(bound, trace, fused)
    result["critical_path"] = summary.path_records(bound, trace)
    _fill_bounds(result, bounds, serial)
    _fill_traffic(result, arch, trace.dram_read_bytes, trace.dram_write_bytes)
    result["audit"] = summary.audit(
        bound, trace, graph, fused=fused, array=array, bounds=bounds, serial=serial
    )
    result["warnings"] = _warnings(result) + extrapolated(result, arch.calibration)


def _fill_time(result: Record, graph: Graph, arch: ArchSpec, time_ps: int) -> None:
    """Time, mfu and throughput. The host gap in front of a run is part of the time."""
    result["status"] = "ok"
    result["time_ps"] = time_ps
    result["latency_s"] = time_ps / 10**12
    peak = arch.peak_flops(matrix_dtype(graph))
    if peak and time_ps:
        result["mfu"] = 2 * graph.macs * 10**12 / (time_ps * peak)
    meta = dict(graph.meta)
    unit, work = meta.get("unit"), meta.get("work")
    if isinstance(unit, str) and isinstance(work, int) and time_ps:
        result["throughput"] = {f"{unit}_per_s": work * 10**12 / time_ps}


def _fill_bounds(result: Record, bounds: GraphBounds, serial: int | None) -> None:
    result["bounds"] = {
        "compute_ps": bounds.compute_ps,
        "memory_ps": bounds.memory_ps,
        "collective_ps": 0,
        "serial_ps": serial,
    }


def _fill_traffic(result: Record, arch: ArchSpec, read: int, write: int) -> None:
    time_ps = cast("int", result["time_ps"])
    result["hbm_read_bytes"], result["hbm_write_bytes"] = read, write
    result["spill_bytes"] = result["link_bytes"] = 0
    if time_ps:
        result["mbu"] = (read + write) * 10**12 / (time_ps * arch.dram_bandwidth)


def _warnings(result: Record) -> list[str]:
    """What a user should not overlook."""
    found = [
        f"audit failed: {name}; please report it" for name, passed in result["audit"].items() if not passed
    ]
    mfu, mbu, bounds, time_ps = result["mfu"], result["mbu"], result["bounds"], result["time_ps"]
    if mfu is None or mbu is None or bounds is None or time_ps is None:
        return found
    if mfu < LOW_UTILIZATION and time_ps > FAR * max(bounds["compute_ps"], bounds["memory_ps"]):
        waits = {
            cause: spent
            for engine in result["engines"].values()
            if engine["kind"] == "systolic"
            for cause, spent in engine["wait_ps"].items()
        }
        if waits:
            cause = f"the array mostly waits for {max(waits, key=lambda name: (waits[name], name))}"
        else:
            first = result["critical_path"][0]
            cause = f"the array has no work, {first['engine']} takes longest: {first['op']} {first['what']}"
        found.append(f"utilization is low: mfu {mfu:.2%}, mbu {mbu:.2%}; {cause}; see dse explain")
    return found


def _empty_metrics(result: Record, shortfall: Shortfall) -> None:
    result["status"] = "infeasible"
    result["reason"] = shortfall_reason(shortfall)


def provenance(wall_s: float) -> dict[str, str | int | float | None]:
    """When, where and with what a record was made; never part of a comparison."""
    return {
        "date": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "version": version("accel-dse"),
        "commit": _commit(),
        "python": platform.python_version(),
        "simpy": version("simpy"),
        "numpy": version("numpy"),
        "host": platform.node(),
        "wall_s": round(wall_s, 6),
    }


@lru_cache(maxsize=1)
def _commit() -> str | None:
    """The commit of the source tree this runs from, `-dirty` if it was changed; None where there is none."""
    root = Path(__file__).resolve().parent.parent
    if not (root / ".git").exists():
        return None
    command = ["git", "-C", str(root), "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip() or None
