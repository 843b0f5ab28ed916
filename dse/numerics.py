"""Does the compiled program compute what the graph means? Both run in numpy on the same random feeds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from compiler import compile_fused, compile_graph, optimise
from compiler.grid import undivided
from compiler.ir.dtype import numpy_dtype
from compiler.ir.graph import Graph, Repeat
from compiler.ir.interpret import run_graph, run_program
from compiler.ir.reference import Array, random_feeds, uneven_feeds
from dse.costs import LawCost
from dse.errors import SpaceError
from dse.evaluation import check_dram, matrix_dtype, resolve
from dse.point import Point
from eventsim import instances, simulate

MOST_MACS = 4 * 10**9  # assumed: a minute of numpy; beyond it the oracle takes longer than anyone waits
MOST_UNEVEN_MACS = 3 * 10**8  # assumed: some seconds more, for a second look at the same program
# Largest error against the largest magnitude of an output. Assumed: a few roundings of the type deep.
TOLERANCE = {"fp32": 1e-4, "bf16": 4e-2, "fp16": 1e-2}
COARSE = 2e-1  # 8-bit types
ROUNDINGS = 4  # assumed: measured errors are up to 2.7 times what rounding alone costs the reference
LEAST = 1e-4  # of fp32, whose sums differ by their order


@dataclass(frozen=True, slots=True)
class OutputError:
    """How far one output or state of the program is from the graph's reference."""

    output: str
    order: str  # "program" or "time": the order in which the instructions ran
    max_abs: float
    relative: float  # to the largest magnitude of the reference
    tolerance: float

    @property
    def passed(self) -> bool:
        """Within tolerance; NaN is not."""
        return bool(self.relative <= self.tolerance)


@dataclass(frozen=True, slots=True)
class OpError:
    """How far one op's result is from what it should be; inside a region, in the last iteration.

    `relative` is the largest error against the largest magnitude of the exact result (all float32);
    `rounding` the same of a reference that only rounds what it stores: what the element types cost. The
    tolerance is that, and what program and rounding reference may differ by.
    """

    op: str
    kind: str
    dtype: str
    max_abs: float
    relative: float
    ulp: float  # the largest error in units of the last place of the largest magnitude
    rounding: float
    tolerance: float

    @property
    def passed(self) -> bool:
        """Within tolerance; NaN is not."""
        return bool(self.relative <= self.tolerance)


def op_errors(point: Point) -> tuple[OpError, ...]:
    """The error of every op whose result lies in memory, in program order, fused as compiled.

    Raises: as `numerics`.
    """
    arch, graph, options = resolve(point)
    check_size(point, graph)
    check_dram(graph, arch)
    graph = optimise(graph, arch, options)
    program = compile_fused(graph, arch, options, LawCost(arch))
    feeds = random_feeds(graph, point.seed)
    exact = run_graph(graph, feeds, round_storage=False, inner=True)
    rounded = run_graph(graph, feeds, inner=True)
    got = run_program(program, arch, feeds, inner=True)
    types = {value.name: value.type.dtype for value in graph.values}
    handed_on = {c.final: c.result for item in graph.nodes if isinstance(item, Repeat) for c in item.carries}
    return tuple(
        _op_error(node.name, node.op.kind, types[name], got[name], exact[name], rounded[name])
        for node, _ in graph.walk()
        for name in (handed_on.get(output, output) for output in node.outputs)
        if name in got and name in exact and got[name].shape == exact[name].shape
    )


def _op_error(op: str, kind: str, dtype: str, got: Array, exact: Array, rounded: Array) -> OpError:
    want = exact.astype(np.float64)
    top = float(np.abs(want).max(initial=0.0)) or 1.0
    worst = float(np.abs(got.astype(np.float64) - want).max(initial=0.0))
    plain = float(np.abs(rounded.astype(np.float64) - want).max(initial=0.0))
    unit = last_place(top, dtype)
    tolerance = TOLERANCE.get(dtype, COARSE) + plain / top
    return OpError(op, kind, dtype, worst, worst / top, worst / unit, plain / top, tolerance)


def last_place(value: float, dtype: str) -> float:
    """The distance of neighbouring numbers of a float type at `value`; 1 for whole numbers."""
    kind = numpy_dtype(dtype)
    if kind.kind in "iub":
        return 1.0
    return float(np.spacing(np.abs(np.asarray(value, dtype=kind))))


def first_diverging(found: Sequence[OpError]) -> OpError | None:
    """The first op that is out of tolerance."""
    return next((item for item in found if not item.passed), None)


def check_size(point: Point, graph: Graph) -> None:
    """Raise SpaceError for a graph that numpy would take too long to execute, with a cut that would do."""
    if graph.macs <= MOST_MACS:
        return
    problem = f"got {graph.macs} MACs, want at most {MOST_MACS} to execute"
    raise SpaceError([f"{point.workload}: {problem}; cut it, as with layers=1, batch=1 or a short seq"])


def numerics(point: Point) -> tuple[OutputError, ...]:
    """Errors of every output, in program order and in the order of simulated time.

    Raises: the user's errors, Infeasible, and SpaceError for a model too large to execute.
    """
    arch, graph, options = resolve(point)
    check_size(point, graph)
    check_dram(graph, arch)
    program = compile_graph(graph, arch, options, LawCost(arch))
    feeds = random_feeds(graph, point.seed)
    want = run_graph(graph, feeds)
    trace = simulate(undivided(program), arch, fold=False, record=True)
    runs = {
        "program": run_program(program, arch, feeds),
        "time": run_program(program, arch, feeds, instances(trace, program)),
    }
    tolerance = TOLERANCE.get(matrix_dtype(graph), COARSE)
    return tuple(
        OutputError(name, order, *_off(got[name], reference), tolerance)
        for order, got in runs.items()
        for name, reference in want.items()
    )


def uneven_numerics(point: Point) -> tuple[OutputError, ...]:
    """Errors of every output on uneven numbers, against a tolerance that follows from rounding.

    It is ROUNDINGS times what rounding alone costs the reference, and one last place: tight for one op,
    wide for a model that magnifies small differences.

    Raises: as `numerics`.
    """
    arch, graph, options = resolve(point)
    check_size(point, graph)
    check_dram(graph, arch)
    program = compile_graph(graph, arch, options, LawCost(arch))
    feeds = uneven_feeds(graph, point.seed)
    want, exact = run_graph(graph, feeds), run_graph(graph, feeds, round_storage=False)
    got = run_program(program, arch, feeds)
    types = {value.name: value.type.dtype for value in graph.values}
    return tuple(
        OutputError(
            name,
            "program",
            *_off(got[name], reference),
            ROUNDINGS * _off(exact[name], reference)[1] + max(LEAST, last_place(1.0, types[name])),
        )
        for name, reference in want.items()
    )


def _off(got: Array, reference: Array) -> tuple[float, float]:
    """The largest error, and relative to the largest magnitude of the reference."""
    worst = float(np.abs(got.astype(np.float64) - reference.astype(np.float64)).max(initial=0.0))
    top = float(np.abs(reference.astype(np.float64)).max(initial=0.0))
    return worst, worst / top if top else worst
