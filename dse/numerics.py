"""Does the compiled program compute what the graph means? Both run in numpy on the same random feeds."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from compiler import compile_graph
from compiler.ir.interpret import run_graph, run_program
from compiler.ir.reference import random_feeds
from dse.costs import LawCost
from dse.errors import SpaceError
from dse.evaluation import check_dram, matrix_dtype, resolve
from dse.point import Point
from eventsim import instances, simulate

MOST_MACS = 4 * 10**9  # assumed: a minute of numpy; beyond it the oracle takes longer than anyone waits
# Largest error against the largest magnitude of an output. Assumed: a few roundings of the type deep.
TOLERANCE = {"fp32": 1e-4, "bf16": 4e-2, "fp16": 1e-2}
COARSE = 2e-1  # 8-bit types


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


def numerics(point: Point) -> tuple[OutputError, ...]:
    """Errors of every output, in program order and in the order of simulated time.

    Raises: the user's errors, Infeasible, and SpaceError for a model too large to execute.
    """
    arch, graph, options = resolve(point)
    if graph.macs > MOST_MACS:
        problem = f"got {graph.macs} MACs, want at most {MOST_MACS} to execute; use a smaller model"
        raise SpaceError([f"{point.workload}: {problem}"])
    check_dram(graph, arch)
    program = compile_graph(graph, arch, options, LawCost(arch))
    feeds = random_feeds(graph, point.seed)
    want = run_graph(graph, feeds)
    trace = simulate(program, arch, fold=False, record=True)
    runs = {
        "program": run_program(program, arch, feeds),
        "time": run_program(program, arch, feeds, instances(trace, program)),
    }
    tolerance = TOLERANCE.get(matrix_dtype(graph), COARSE)
    found = []
    for order, got in runs.items():
        for name, reference in want.items():
            difference = np.abs(got[name].astype(np.float64) - reference)
            top = float(np.abs(reference).max(initial=0.0))
            worst = float(difference.max(initial=0.0))
            found.append(OutputError(name, order, worst, worst / top if top else worst, tolerance))
    return tuple(found)
