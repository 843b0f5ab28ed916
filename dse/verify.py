"""Every check the compiler knows, run on one point, with what was looked at."""

from __future__ import annotations

from collections.abc import Callable

from compiler import CompileError, compile_fused, optimise
from compiler.errors import VerifyError
from compiler.ir.graph import Graph, Repeat
from compiler.ir.verify_graph import verify_graph
from compiler.ir.verify_program import program_macs
from compiler.isa import Program, walk
from dse.costs import LawCost
from dse.evaluation import check_dram, resolve
from dse.numerics import MOST_MACS, MOST_UNEVEN_MACS, OutputError, numerics, uneven_numerics
from dse.point import Point
from dse.rule_checks import Check, rule_checks
from dse.summary import graph_work, macs_conserved
from eventsim import BoundProgram, Deadlock, audit, bind, simulate_bound

__all__ = ["Check", "verify_point"]

Measure = Callable[[Point], tuple[OutputError, ...]]


def verify_point(point: Point, measure: Measure = numerics) -> tuple[Check, ...]:
    """All checks in order; a check that fails does not keep those after it from running.

    `measure` executes the program: a caller that does so too hands in one that remembers.
    Raises: Infeasible, or the user's errors.
    """
    arch, graph, options = resolve(point)
    check_dram(graph, arch)
    fused = optimise(graph, arch, options)
    program = compile_fused(fused, arch, options, LawCost(arch))
    return (
        _run("graph", _size(graph), lambda: verify_graph(graph)),
        _run("graph after passes", _size(fused), lambda: verify_graph(fused)),
        *rule_checks(program, arch),
        _conserved(fused, program),
        _attributed(fused, program),
        _audited(bind(program, arch)),
        *_numbers(point, graph, measure),
    )


def _audited(bound: BoundProgram) -> Check:
    laws = audit(simulate_bound(bound), bound)
    failed = [name for name, passed in laws.items() if not passed]
    return Check("audit of the simulation", f"{len(laws)} laws", not failed, ", ".join(failed))


def _numbers(point: Point, graph: Graph, measure: Measure) -> list[Check]:
    def left_out(name: str, most: int) -> list[Check]:
        return [Check(name, f"{graph.macs} MACs, more than {most}: left out", None)]

    even, uneven = "numbers", "numbers of uneven sizes"
    found = left_out(even, MOST_MACS)
    if graph.macs <= MOST_MACS:
        found = [_number(even, f"instructions in order of {item.order}", item) for item in measure(point)]
    if graph.macs > MOST_UNEVEN_MACS:
        return found + left_out(uneven, MOST_UNEVEN_MACS)
    rows = "rows 64 to 1/256 times as large"
    return found + [_number(uneven, rows, item) for item in uneven_numerics(point)]


def _number(name: str, how: str, item: OutputError) -> Check:
    error = f"relative error {item.relative:.2g} of {item.tolerance:.2g}"
    return Check(name, f"{item.output}, {how}", item.passed, error)


def _size(graph: Graph) -> str:
    return f"{sum(1 for _ in graph.walk())} ops, {len(graph.values)} values"


def _run(name: str, looked_at: str, check: Callable[[], object]) -> Check:
    try:
        check()
    except (VerifyError, CompileError, Deadlock) as error:
        return Check(name, looked_at, passed=False, found=str(error))
    return Check(name, looked_at, passed=True)


def _conserved(graph: Graph, program: Program) -> Check:
    """Each op's matmuls do its MACs; a mask may throw some away, up to what the op has without it."""
    ops = sum(work.macs > 0 for work in graph_work(graph).values())
    made, _ = program_macs(program)
    looked_at = f"{ops} ops, {made} MACs in the program and {graph.macs} in the graph"
    return Check("work: MACs of each op", looked_at, macs_conserved(program, graph))


def _attributed(graph: Graph, program: Program) -> Check:
    """Every instruction is of an op of the graph, or moves a value that a region hands on."""
    names = {node.name for node, _ in graph.walk()}
    regions = tuple(f"{node.name}." for node in graph.nodes if isinstance(node, Repeat))
    ops = {instr.op for _, nodes in program.streams for instr, _ in walk(nodes)}
    strange = sorted(op for op in ops if op not in names and not op.startswith(regions))
    found = f"not in the graph: {', '.join(strange)}" if strange else ""
    return Check("ops: names in the program", f"{len(ops)} names", not strange, found)
