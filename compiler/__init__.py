"""The compiler: a graph and an architecture in, a program out, on one page."""

from __future__ import annotations

from arch_configs.spec import ArchSpec
from compiler.allocation import allocate
from compiler.codegen import emit
from compiler.cost import CostModel
from compiler.errors import CompileError, Infeasible, Shortfall, VerifyError
from compiler.ir.graph import Graph
from compiler.ir.verify_program import verify_program
from compiler.isa import Program
from compiler.lowering import lower
from compiler.options import CompileOptions
from compiler.passes import parse_pass, run_pipeline
from compiler.sync import plan_sync

__all__ = [
    "CompileError",
    "CompileOptions",
    "Infeasible",
    "Program",
    "Shortfall",
    "VerifyError",
    "compile_graph",
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
    graph = run_pipeline(
        graph, tuple(parse_pass(p) for p in options.passes), arch
    )  # Graph -> Graph: canonicalise, fuse
    lowered = lower(graph, arch, options, cost)  # Graph -> TileGraph: layouts, kernels, tiling, engines
    placement = allocate(lowered.tiles, arch)  # addresses from lifetimes
    plan = plan_sync(lowered.tiles, placement.overlaps)  # who waits for whom
    program = emit(
        lowered.tiles,
        placement,
        plan,
        outputs=lowered.outputs,
        layouts=lowered.layouts,
        shapes=lowered.shapes,
    )  # streams
    if options.verify:
        verify_program(program, arch)
    return program
