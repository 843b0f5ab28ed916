"""The text of a TileGraph: program order, streams and stages, before addresses and synchronisation."""

from __future__ import annotations

from compiler.ir.text_program import print_instr
from compiler.ir.tiles import TileBuffer, TileGraph, TileInstr, TileLoop


def print_tiles(graph: TileGraph) -> str:
    """Buffers, then the tree: one instruction a line, `@stream`, `+n` where it runs n iterations late."""
    lines = [f"tiles {graph.name}"]
    lines += [_buffer(buffer) for buffer in graph.buffers.values()]
    lines += _body(graph.root, 0)
    return "\n".join(lines) + "\n"


def _buffer(buffer: TileBuffer) -> str:
    where = f"{buffer.partitions} x {buffer.slot_bytes} B" if buffer.partitions else f"{buffer.slot_bytes} B"
    slots = f" x {buffer.slots} slots" if buffer.slots > 1 else ""
    return f"  {buffer.memory} {buffer.name}: {buffer.dtype} {where}{slots} in {buffer.home.var}"


def _body(loop: TileLoop, depth: int) -> list[str]:
    lines = []
    indent = "  " * (depth + 1)
    for child in loop.body:
        late = f" +{child.stage}" if child.stage else ""
        if isinstance(child, TileInstr):
            lines.append(f"{indent}@{child.stream}{late} {print_instr(child.instr)}")
        else:
            share = "" if child.share is None else f" (busiest core: {child.share})"
            lines.append(f"{indent}for {child.var} in {child.count}{share}{late}:")
            lines += _body(child, depth + 1)
    return lines
