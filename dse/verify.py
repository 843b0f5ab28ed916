"""Every check the compiler knows, run on one point, with what was looked at."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from compiler import CompileError, compile_fused, optimise
from compiler.errors import VerifyError
from compiler.ir.graph import Graph
from compiler.ir.tokens import program_order
from compiler.ir.verify_graph import verify_graph
from compiler.ir.verify_program import check_races, program_macs, verify_program
from compiler.isa import Program, walk
from dse.costs import LawCost
from dse.evaluation import check_dram, resolve
from dse.numerics import MOST_MACS, OutputError, numerics
from dse.point import Point
from eventsim import BoundProgram, Deadlock, audit, bind, simulate_bound

Measure = Callable[[Point], tuple[OutputError, ...]]
STEPS = 200_000  # instructions of a program that is also gone through one by one; assumed: some seconds


@dataclass(frozen=True, slots=True)
class Check:
    """One check: what was looked at, and what was found. `passed` is None where it was left out."""

    name: str
    looked_at: str
    passed: bool | None
    found: str = ""


def verify_point(point: Point, measure: Measure = numerics) -> tuple[Check, ...]:
    """All checks in order; a check that fails does not keep the others from running.

    `measure` executes the program: a caller that does so too hands in one that remembers.
    Raises: Infeasible, or the user's errors.
    """
    arch, graph, options = resolve(point)
    check_dram(graph, arch)
    fused = optimise(graph, arch, options)
    program = compile_fused(fused, arch, options, LawCost(arch))
    instructions = [times for _, nodes in program.streams for _, times in walk(nodes)]
    steps, static = sum(instructions), len(instructions)
    checks = [
        _run("graph", _size(graph), lambda: verify_graph(graph)),
        _run("graph after passes", _size(fused), lambda: verify_graph(fused)),
        _run(
            "program: memories, operands, limits, channels",
            f"{static} instructions, {len(program.buffers)} buffers, {len(program.channels)} channels",
            lambda: verify_program(program, arch),
        ),
        _conserved(graph, program),
    ]
    if steps <= STEPS:
        checks.append(_run("races", f"{steps} instructions", lambda: check_races(program, arch)))
        checks.append(_run("deadlock", f"{steps} instructions", lambda: _walk_all(program)))
    else:
        left_out = f"{steps} instructions, more than {STEPS}: left out"
        checks += [Check(name, left_out, None) for name in ("races", "deadlock")]
    return (*checks, _audited(bind(program, arch)), *_numbers(point, graph, measure))


def _audited(bound: BoundProgram) -> Check:
    laws = audit(simulate_bound(bound), bound)
    failed = [name for name, passed in laws.items() if not passed]
    return Check("audit of the simulation", f"{len(laws)} laws", not failed, ", ".join(failed))


def _numbers(point: Point, graph: Graph, measure: Measure) -> list[Check]:
    if graph.macs > MOST_MACS:
        return [Check("numbers", f"{graph.macs} MACs, more than {MOST_MACS}: left out", None)]
    return [
        Check(
            "numbers",
            f"{item.output}, instructions in order of {item.order}",
            item.passed,
            f"relative error {item.relative:.2g} of {item.tolerance:g}",
        )
        for item in measure(point)
    ]


def _size(graph: Graph) -> str:
    return f"{sum(1 for _ in graph.walk())} ops, {len(graph.values)} values"


def _run(name: str, looked_at: str, check: Callable[[], object]) -> Check:
    try:
        check()
    except (VerifyError, CompileError, Deadlock) as error:
        return Check(name, looked_at, passed=False, found=str(error))
    return Check(name, looked_at, passed=True)


def _conserved(graph: Graph, program: Program) -> Check:
    """The program multiplies what the graph asks for, or more where it computes what is then thrown away."""
    made, _ = program_macs(program)
    return Check("work: MACs of program and graph", f"{made} and {graph.macs}", made >= graph.macs)


def _walk_all(program: Program) -> None:
    for _ in program_order(program):
        pass
