"""The compiler: a graph and an architecture in, a program out, on one page."""

from __future__ import annotations

from arch_configs.spec import ArchSpec
from compiler.allocation import Placement, allocate
from compiler.codegen import emit
from compiler.cost import CostModel
from compiler.errors import CompileError, Infeasible, Shortfall, VerifyError
from compiler.ir.graph import Graph
from compiler.ir.verify_program import verify_program
from compiler.isa import Program
from compiler.lowering import Lowered, lower
from compiler.options import EASED, CompileOptions
from compiler.passes import parse_pass, run_pipeline
from compiler.relayout import with_relayouts
from compiler.rows import share_passes
from compiler.sync import plan_sync
from compiler.user_kernel import compile_kernel

__all__ = [
    "CompileError",
    "CompileOptions",
    "Infeasible",
    "Program",
    "Shortfall",
    "VerifyError",
    "compile_fused",
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
    fused = optimise(graph, arch, options)  # canonicalise, fuse
    return compile_fused(fused, arch, options, cost)


def compile_fused(
    fused: Graph, arch: ArchSpec, options: CompileOptions, cost: CostModel | None = None
) -> Program:
    """The rest of `compile_graph`, for a graph that `optimise` made. Raises: as that."""
    lowered, placement = tile_graph(fused, arch, options, cost)
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
    """The graph after the passes that `options` names, with relayouts where ops want a value differently."""
    graph = run_pipeline(graph, tuple(parse_pass(text) for text in options.passes), arch)
    return with_relayouts(graph, arch)


def tile_graph(
    graph: Graph, arch: ArchSpec, options: CompileOptions, cost: CostModel | None
) -> tuple[Lowered, Placement]:
    """Tiles and addresses; ops that ask for too much are eased step by step (`CompileOptions.eased`).

    Raises Infeasible with the least shortfall of the first and the last attempt.
    """
    eased: dict[str, int] = {}
    failures: list[Infeasible] = []
    while True:
        lowered = lower(graph, arch, options, cost, eased)  # layouts, kernels, tiling, engines
        misfits = list(lowered.misfits)
        try:
            placement = allocate(lowered.tiles, arch)  # addresses from lifetimes
        except Infeasible as error:
            misfits.append(error)
        if not misfits:
            share_passes(lowered.tiles.root, arch)  # which narrow matmuls the array takes at once
            return lowered, placement
        failures.append(max(misfits, key=_missing))  # the fix must be enough for all ops
        ops = {op for misfit in misfits for op in misfit.ops}
        again = [op for op in sorted(ops) if eased.get(op, 0) + 1 < len(EASED)]
        if not again:
            raise min((failures[0], failures[-1]), key=_missing)
        eased.update({op: eased.get(op, 0) + 1 for op in again})


def _missing(error: Infeasible) -> int:
    return error.shortfall.needed - error.shortfall.available
