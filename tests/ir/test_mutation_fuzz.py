"""Random single edits of compiled programs: someone notices, or nothing that matters has changed.

Those who may notice: the rules, the rules of the run (races, deadlock, unwritten bytes, the array), the
MACs of each op, the results on even and on uneven numbers, and execution in simulated time. What nobody
notices must give the results of the original, up to a rounding of bf16.
"""

from __future__ import annotations

import random
from collections import Counter
from functools import cache

import numpy as np
import pytest
from mutations import mutate
from real_programs import Case, small

from compiler import Infeasible, compile_graph
from compiler.errors import VerifyError
from compiler.ir.interpret import Array, run_program
from compiler.ir.reference import random_feeds, run_graph, uneven_feeds
from compiler.ir.verify_program import check_run, verify_program
from compiler.isa import Program
from dse.summary import macs_conserved
from eventsim import instances, simulate
from tests.compiler.designs import design
from workloads import build

TOLERANCE = 2**-6  # of one kernel; the designs allow more
ROUNDING = 2**-7  # of the largest value: the last place of bf16
MOST_INSTRUCTIONS = 600
EACH = 600

Feeds = dict[str, Array]


@cache
def numbers(case: Case) -> tuple[tuple[Feeds, Feeds, Feeds], ...]:
    """(feeds, reference, result of the program) on even and on uneven numbers."""
    feeds = (random_feeds(case.graph, 1), uneven_feeds(case.graph, 1))
    return tuple((f, run_graph(case.graph, f), run_program(case.program, case.arch, f)) for f in feeds)


@cache
def random_cases() -> tuple[Case, ...]:
    """Small programs on random machines."""
    found = []
    for seed in range(40):
        arch, workload = design(seed)
        graph = build(workload)
        try:
            program = compile_graph(graph, arch)
        except Infeasible:
            continue
        trace = simulate(program, arch)
        if sum(s.instructions for s in trace.streams) <= MOST_INSTRUCTIONS and graph.macs < 10**7:
            found.append(Case(f"seed {seed}", arch, graph, program))
    return tuple(found)


def error(want: Feeds, got: Feeds) -> float:
    """The largest error against the largest value of its tensor; not a number counts as infinite."""
    worst = 0.0
    for name, value in want.items():
        top = float(np.abs(value).max(initial=0.0)) or 1.0
        off = float(np.abs(got[name].astype(np.float64) - value).max(initial=0.0)) / top
        worst = max(worst, off if np.isfinite(off) else np.inf)
    return worst


def noticed_by(case: Case, program: Program) -> str | None:
    """Who finds fault with a program for a case's graph; None: nobody."""
    try:
        verify_program(program, case.arch)
        check_run(program, case.arch)
    except VerifyError as fault:
        return str(fault).partition("]")[0][1:]
    if not macs_conserved(program, case.graph):
        return "macs"
    runs = [(*each, run_program(program, case.arch, each[0])) for each in numbers(case)]
    if not all(error(want, got) <= TOLERANCE for _, want, _, got in runs):
        return "numbers"
    for _, _, before, got in runs:
        assert error(before, got) <= ROUNDING, "other results, and nobody notices"
    feeds, got = runs[0][0], runs[0][3]
    trace = simulate(program, case.arch, fold=False, record=True)
    assert trace.time_ps == simulate(program, case.arch).time_ps, "folding changes the time"
    timed = run_program(program, case.arch, feeds, order=instances(trace, program))
    return "time order" if error(got, timed) else None


def fuzz(cases: tuple[Case, ...], seed: int) -> Counter[str]:
    rng = random.Random(seed)
    found: Counter[str] = Counter()
    for number in range(EACH):
        case = rng.choice(cases)
        what, program = mutate(case.program, rng)
        if program == case.program:
            continue
        try:
            found[noticed_by(case, program) or "harmless"] += 1
        except Exception as fault:
            fault.add_note(f"seed {seed}, edit {number} of {case.name}: {what}")
            raise
    return found


@pytest.mark.parametrize("seed", range(4))
def test_an_edit_of_a_kernel_is_noticed_or_harmless(seed: int) -> None:
    found = fuzz(small(), seed)
    assert {"race", "numbers", "uninitialised-read", "token-balance", "buffer-bounds"} <= set(found)
    assert found["harmless"] < 0.3 * found.total(), found


@pytest.mark.parametrize("seed", range(4, 6))
def test_an_edit_on_a_random_machine_is_noticed_or_harmless(seed: int) -> None:
    cases = random_cases()
    assert len(cases) > 10
    found = fuzz(cases, seed)
    assert found["harmless"] < 0.3 * found.total(), found
