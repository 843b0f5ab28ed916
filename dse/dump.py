"""What the compiler made of a point, as text."""

from __future__ import annotations

from collections.abc import Callable

from compiler import Program, compile_fused, optimise, tile_graph
from compiler.ir.text import print_graph, print_program
from compiler.ir.text_tiles import print_tiles
from dse import summary
from dse.costs import LawCost
from dse.decisions import print_decisions
from dse.evaluation import check_dram, resolve
from dse.point import Point

DUMPS = ("graph", "fused", "decisions", "tiles", "program", "memory")


def dump_point(point: Point, what: str) -> str:
    """One of DUMPS as text. Raises Infeasible, or the user's errors."""
    arch, graph, options = resolve(point)
    if what == "graph":
        return print_graph(graph)
    cost = LawCost(arch)
    fused = optimise(graph, arch, options)
    if what == "fused":
        return print_graph(fused)
    check_dram(graph, arch)
    if what == "decisions":
        return print_decisions(graph, arch, options)
    if what == "tiles":
        return print_tiles(tile_graph(fused, arch, options, cost)[0].tiles)
    program = compile_fused(fused, arch, options, cost)
    views: dict[str, Callable[[Program], str]] = {"program": print_program, "memory": _memory_map}
    text = views[what](program)
    if what == "memory":
        peaks = summary.memory_records(program, arch)
        lines = [f"{name}: peak {m['peak_bytes']} B of {m['capacity_bytes']} B" for name, m in peaks.items()]
        text += "\n".join(lines) + "\n"
    return text


def _memory_map(program: Program) -> str:
    """Every buffer by memory and address; on chip, addresses and sizes are per partition."""
    lines = [
        f"{'memory':<8} {'address':>12} {'end':>12} {'slots':>5} {'partitions':>10} {'type':<6} name (tensor)"
    ]
    for buffer in sorted(program.buffers, key=lambda b: (b.memory, b.address, b.name)):
        tensor = f" ({buffer.tensor})" if buffer.tensor and buffer.tensor != buffer.name else ""
        lines.append(
            f"{buffer.memory:<8} {buffer.address:>12} {buffer.address + buffer.nbytes:>12} "
            f"{buffer.slots:>5} {buffer.partitions:>10} {buffer.dtype:<6} {buffer.name}{tensor}"
        )
    return "\n".join(lines) + "\n"
