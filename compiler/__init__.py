"""The compiler: a graph and an architecture in, a program out, on one page."""

from __future__ import annotations

from dataclasses import replace

from arch_configs.spec import ArchSpec
from compiler.allocation import Placement, allocate
from compiler.codegen import emit
from compiler.cost import CostModel
from compiler.errors import CompileError, Infeasible, Shortfall, VerifyError
from compiler.ir.graph import Graph
from compiler.ir.verify_program import verify_program
from compiler.isa import Program
from compiler.lowering import Lowered, lower
from compiler.options import CompileOptions
from compiler.passes import parse_pass, run_pipeline
from compiler.sync import plan_sync
from compiler.user_kernel import compile_kernel

__all__ = [
    "CompileError",
    "CompileOptions",
    "Infeasible",
    "Program",
    "Shortfall",
    "VerifyError",
    "compile_graph",
    "compile_kernel",
    "optimise",
    "tile_graph",
]


def compile_graph(
    graph: Graph,
    arch: ArchSpec,
    options: CompileOptions | None = None,
    cost: CostModel | None = None,
) -> Program:
    """Compile `graph` for one core of `arch`.

    Raises Infeasible (the design is too small, with the shortfall) or CompileError (the graph or an
    option is wrong).
    """
    options = options or CompileOptions()
    graph = optimise(graph, arch, options)  # canonicalise, fuse
    lowered, placement = tile_graph(graph, arch, options, cost)
    plan = plan_sync(lowered.tiles, placement)  # who waits for whom
    program = emit(
        lowered.tiles,
        placement,
        plan,
        outputs=lowered.outputs,
        layouts=lowered.layouts,
        shapes=lowered.shapes,
    )  # one stream for each engine and queue
    if options.verify:
        verify_program(program, arch)
    return program


def optimise(graph: Graph, arch: ArchSpec, options: CompileOptions) -> Graph:
    """The graph after the passes that `options` names."""
    return run_pipeline(graph, tuple(parse_pass(text) for text in options.passes), arch)


def tile_graph(
    graph: Graph, arch: ArchSpec, options: CompileOptions, cost: CostModel | None
) -> tuple[Lowered, Placement]:
    """Tiles and addresses; where they do not fit, without pipelining, then smaller, then of one slot.

    Raises Infeasible with the least shortfall of all that was tried.
    """
    ladder = [options, replace(options, pipeline=False)]
    ladder += [replace(ladder[1], scratch_share=options.scratch_share / n) for n in (2, 4)]
    ladder += [replace(ladder[1], double_buffer=False)]
    failures: list[Infeasible] = []
    for attempt in ladder:
        lowered = lower(graph, arch, attempt, cost)  # layouts, kernels, tiling, engines
        misfits = list(lowered.misfits)
        try:
            placement = allocate(lowered.tiles, arch)  # addresses from lifetimes
        except Infeasible as error:
            misfits.append(error)
        if not misfits:
            return lowered, placement
        if attempt.scratch_share == options.scratch_share:  # else what is available is not the memory
            failures.append(max(misfits, key=_missing))  # the fix must be enough for all ops
    raise min(failures, key=_missing)


def _missing(error: Infeasible) -> int:
    return error.shortfall.needed - error.shortfall.available
