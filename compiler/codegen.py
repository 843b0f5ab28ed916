"""TileGraph + placement + synchronisation -> Program: one in-order stream for each engine and queue.

A stream that runs children of one loop at several stages is software-pipelined: its early children
run ahead by the difference, with a prologue in front and an epilogue behind. Other streams keep their
own shape; channels carry one token an iteration whatever the shape. A loop with fewer iterations than
stages is pipelined on no stream, since a stream in plain order would wait for one that is ahead.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, replace

from compiler.allocation import Placement
from compiler.errors import VerifyError
from compiler.ir.layout import Layout
from compiler.ir.tiles import TileGraph, TileInstr, TileLoop
from compiler.isa import Access, Affine, Loop, Node, Program, Sync, reads, writes
from compiler.sync import SyncPlan

Subst = Callable[[Affine], Affine]


def emit(
    graph: TileGraph,
    placement: Placement,
    plan: SyncPlan,
    *,
    outputs: tuple[str, ...] = (),
    layouts: tuple[tuple[str, Layout], ...] = (),
    shapes: tuple[tuple[str, tuple[int, ...]], ...] = (),
) -> Program:
    """Split the tree into streams."""
    streams = sorted({node.stream for node in graph.root.instructions()}, key=_stream_order)
    emitter = _Emitter(graph, plan)
    return Program(
        name=graph.name,
        streams=tuple((s, tuple(emitter.loop_body(graph.root, s))) for s in streams),
        buffers=tuple(placement.buffers.values()),
        channels=tuple(plan.channels),
        outputs=outputs,
        layouts=layouts,
        shapes=shapes,
        launches=graph.launches,
    )


def _stream_order(name: str) -> tuple[bool, int, str]:
    digits = name[3:] if name.startswith("dma") else ""
    return (digits.isdigit(), int(digits) if digits.isdigit() else 0, name)


class _Emitter:
    def __init__(self, graph: TileGraph, plan: SyncPlan) -> None:
        self._graph = graph
        self._plan = plan
        self._copies = 10**6  # region ids of prologue and epilogue copies

    def loop_body(self, loop: TileLoop, stream: str) -> list[Node]:
        """The nodes of one pass through `loop.body` on `stream`, unpipelined."""
        return [node for child in loop.body for node in self._child(child, stream)]

    def _child(self, child: TileInstr | TileLoop, stream: str) -> list[Node]:
        waits = tuple(self._plan.waits.get((id(child), stream), ()))
        signals = tuple(self._plan.signals.get((id(child), stream), ()))
        if isinstance(child, TileInstr):
            if child.stream != stream:
                return []
            return [replace(child.instr, waits=waits, signals=signals)] if waits or signals else [child.instr]
        inner = self._loop(child, stream)
        if not inner and not waits and not signals:
            return []
        op = next((i.instr.op for i in child.instructions()), "")
        before: list[Node] = [Sync(waits=waits, op=op)] if waits else []
        behind: list[Node] = [Sync(signals=signals, op=op)] if signals else []
        return before + inner + behind

    def _loop(self, loop: TileLoop, stream: str) -> list[Node]:
        parts = [(c.stage, nodes) for c in loop.body if (nodes := self._child(c, stream))]
        if not parts:
            return []
        if loop.count == 1 and loop.share != 0:
            zero = _const(loop.var, 0)
            return [_substitute(n, zero, None) for _, nodes in parts for n in nodes]
        first = min(stage for stage, _ in parts)
        depth = max(stage for stage, _ in parts) - first
        fewest = loop.count if loop.share is None else loop.share
        if depth == 0 or fewest <= max(child.stage for child in loop.body):
            body = tuple(n for _, nodes in parts for n in nodes)
            return [Loop(loop.var, loop.count, body, loop.region, loop.share)]
        _check_order(loop, stream, self._graph)
        lead = [(stage - first, nodes) for stage, nodes in parts]
        out: list[Node] = []
        for step in range(depth):
            out += self._step(lead, loop.var, lambda late, s=step: s - late if late <= s else None)  # type: ignore[misc]
        shifted = [
            _substitute(n, _shift(loop.var, depth - late), None) if late != depth else n
            for late, nodes in lead
            for n in nodes
        ]
        share = None if loop.share is None else loop.share - depth
        out.append(Loop(loop.var, loop.count - depth, tuple(shifted), loop.region, share))
        for step in range(depth):
            out += self._step(
                lead,
                loop.var,
                lambda late, s=step: loop.count + s - late if late > s else None,  # type: ignore[misc]
            )
        return out

    def _step(
        self, lead: list[tuple[int, list[Node]]], var: str, at: Callable[[int], int | None]
    ) -> list[Node]:
        """One prologue or epilogue step: each child at the iteration `at(lateness)`, if any."""
        out: list[Node] = []
        for late, nodes in lead:
            iteration = at(late)
            if iteration is not None:
                out += [_substitute(n, _const(var, iteration), self._fresh) for n in nodes]
        return out

    def _fresh(self, region: int) -> int:
        self._copies += 1
        return self._copies


def _const(var: str, value: int) -> Subst:
    def apply(expression: Affine) -> Affine:
        for name, factor in expression.terms:
            if name == var:
                terms = tuple(t for t in expression.terms if t[0] != var)
                return Affine(expression.const + factor * value, terms)
        return expression

    return apply


def _shift(var: str, by: int) -> Subst:
    return lambda expression: expression.shifted(var, by)


def _substitute(node: Node, change: Subst, fresh: Callable[[int], int] | None) -> Node:
    """`node` with every affine expression changed; inner loops get new region ids from `fresh`."""
    if isinstance(node, Loop):
        body = tuple(_substitute(inner, change, fresh) for inner in node.body)
        region = fresh(node.region) if fresh else node.region
        return Loop(node.var, node.count, body, region, node.share)
    updates: dict[str, object] = {}
    for spec in fields(node):
        old = getattr(node, spec.name)
        new: object = old
        if isinstance(old, Access):
            offset, slot = change(old.offset), change(old.slot)
            if offset is not old.offset or slot is not old.slot:
                new = replace(old, offset=offset, slot=slot)
        elif isinstance(old, Affine):
            new = change(old)
        elif spec.name == "reset" and old:
            new = tuple(change(e) for e in old)
        if new is not old:
            updates[spec.name] = new
    return replace(node, **updates) if updates else node  # type: ignore[arg-type]


def _check_order(loop: TileLoop, stream: str, graph: TileGraph) -> None:
    """Pipelining must not turn round two conflicting accesses of the same stream.

    Two writes of one op to a DRAM tensor do not conflict: a kernel writes each element once.
    """
    seen: dict[str, list[tuple[int, bool, str]]] = {}
    for child in loop.body:
        nodes = child.instructions() if isinstance(child, TileLoop) else iter((child,))
        for node in nodes:
            if node.stream != stream:
                continue
            touched = [(a, False) for a in reads(node.instr)] + [(a, True) for a in writes(node.instr)]
            for access, write in touched:
                buffer = graph.buffers[access.buffer]
                spare = buffer.slots if buffer.home is loop else 1
                for stage, wrote, op in seen.setdefault(access.buffer, []):
                    conflict = write != wrote or (write and (buffer.partitions > 0 or op != node.instr.op))
                    if conflict and abs(child.stage - stage) >= spare:
                        raise VerifyError(
                            f"{node.instr.op}: {stream} pipelines {access.buffer} over "
                            f"{abs(child.stage - stage)} iterations of {loop.var}, but it has {spare} slot(s)"
                        )
                seen[access.buffer].append((child.stage, write, node.instr.op))
