"""What the compiler decided for a point and why, as text."""

from __future__ import annotations

from arch_configs.spec import ArchSpec
from compiler import optimise, tile_graph
from compiler.decisions import Decision
from compiler.ir.graph import Graph
from compiler.ir.layout import Layout
from compiler.lowering import Lowered
from compiler.options import EASED, CompileOptions
from compiler.passes import parse_pass, run_pipeline
from dse.costs import LawCost
from dse.present import show_time


def print_decisions(graph: Graph, arch: ArchSpec, options: CompileOptions) -> str:
    """Passes, layouts, turned values, tiles with their runners-up, and what had to be made smaller.

    Raises Infeasible.
    """
    fused = optimise(graph, arch, options)
    lowered, _ = tile_graph(fused, arch, options, LawCost(arch))
    lines = ["passes", *_passes(graph, arch, options)]
    lines += ["values in DRAM", *_layouts(fused, lowered)]
    turned = [node for node, _ in fused.walk() if node.op.kind == "relayout"]
    lines += ["turned between two ops", *(f"  {n.inputs[0]} -> {n.outputs[0]}" for n in turned)]
    lines += [] if turned else ["  none"]
    lines += ["tiles; times are the estimates they were chosen by"]
    lines += [line for decision in lowered.tiles.decisions for line in _decision(decision)]
    chosen = {decision.op for decision in lowered.tiles.decisions}
    others = [node.name for node, _ in fused.walk() if node.name not in chosen]
    lines += [f"  by rule, without a choice: {', '.join(others)}"] if others else []
    lines += ["made smaller, because memory was short"]
    lines += [f"  {op}: {_eased(level)}" for op, level in lowered.eased] or ["  none"]
    return "\n".join(lines) + "\n"


def _passes(graph: Graph, arch: ArchSpec, options: CompileOptions) -> list[str]:
    """Each pass with the ops that it took away."""
    lines = []
    for text in options.passes:
        before = [node.name for node, _ in graph.walk()]
        graph = run_pipeline(graph, (parse_pass(text),), arch)
        left = {node.name for node, _ in graph.walk()}
        gone = [name for name in before if name not in left]
        names = f"; gone: {', '.join(gone)}" if gone else ""
        lines.append(f"  {text}: {len(before)} -> {len(left)} ops{names}")
    return lines


def _layouts(graph: Graph, lowered: Lowered) -> list[str]:
    layouts = dict(lowered.layouts)
    width = max(len(value.name) for value in graph.values)
    return [
        f"  {value.name:<{width}} {value.kind:<10} {value.type.dtype} "
        f"{list(value.type.shape)} {layout_text(layouts[value.name])}".rstrip()
        for value in graph.values
    ]


def layout_text(layout: Layout) -> str:
    """A layout in words; nothing for plain rows."""
    blocks = [f"axis {axis} in blocks of {block}" for axis, block in layout.splits]
    order = [f"order {', '.join(map(str, layout.order))}"] if layout.order else []
    return "; ".join((*blocks, *order))


def _decision(decision: Decision) -> list[str]:
    lines = [f"  {decision.op}: {decision.what}: {decision.chosen}"]
    if not decision.time_ps:
        return [*lines, f"    {decision.reason}"]
    counts = f"{decision.considered} considered, {decision.fitting} fit"
    lines.append(f"    {show_time(decision.time_ps)}, {decision.reason}; {counts}")
    if decision.runner_up:
        more = decision.runner_up_ps / decision.time_ps - 1
        lines.append(f"    next: {decision.runner_up}, {show_time(decision.runner_up_ps)} ({more:+.1%})")
    return lines


def _eased(level: int) -> str:
    pipeline, double_buffer, share = EASED[level]
    parts = [f"{share:.0%} of the scratchpad"]
    parts += [] if pipeline else ["no pipelining"]
    parts += [] if double_buffer else ["one slot"]
    return ", ".join(parts)
