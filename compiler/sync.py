"""Which stream must wait for which: dependences of a TileGraph, as channels.

Two accesses conflict if their buffers and partitions overlap in memory, one of them writes, and they are
on different streams (two writes of one op to a DRAM tensor do not: a kernel writes each element once).
For each loop, conflicts between two of its children become an edge: signal behind the first, wait in
front of the second. Both run once an iteration, so tokens balance. A conflict with a later iteration
becomes an edge with initial tokens: as many iterations may be under way as the buffer has slots. Edges
that another edge of the same two streams implies are dropped. Every wait points backwards in program
order, so a program in that order cannot deadlock.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from math import prod
from typing import NamedTuple

from compiler.ir.tiles import TileBuffer, TileGraph, TileInstr, TileLoop
from compiler.isa import Access, Channel, Token, reads, writes

TileNode = TileInstr | TileLoop


class Touch(NamedTuple):
    """That a child of a loop uses a buffer: on which stream, which partitions, for which op."""

    position: int
    stream: str
    writes: bool
    low: int  # partitions low .. high; all of a DRAM buffer is 0 .. 1
    high: int
    op: str


@dataclass(frozen=True, slots=True)
class Edge:
    """`source` of one iteration before `target` of the iteration `distance` later, within one loop."""

    source: int
    target: int
    distance: int


@dataclass(slots=True)
class SyncPlan:
    """The channels, and what each tree node waits for and signals, per stream."""

    channels: list[Channel] = field(default_factory=list)
    waits: dict[tuple[int, str], list[Token]] = field(default_factory=lambda: defaultdict(list))
    signals: dict[tuple[int, str], list[Token]] = field(default_factory=lambda: defaultdict(list))


def plan_sync(graph: TileGraph, overlaps: Mapping[str, tuple[str, ...]]) -> SyncPlan:
    """Derive all channels. `overlaps[b]` names the buffers that share memory with `b`, itself included."""
    plan = SyncPlan()
    _Planner(graph, overlaps, plan).visit(graph.root, ())
    return plan


class _Planner:
    def __init__(self, graph: TileGraph, overlaps: Mapping[str, tuple[str, ...]], plan: SyncPlan) -> None:
        self._buffers = graph.buffers
        self._overlaps = overlaps
        self._plan = plan

    def visit(self, loop: TileLoop, above: tuple[TileLoop, ...]) -> dict[str, list[Touch]]:
        """Plan `loop` and all below; return who touches which buffer inside."""
        touches: dict[str, list[Touch]] = defaultdict(list)
        path = (*above, loop)
        times = prod(node.count for node in path)
        for position, child in enumerate(loop.body):
            if isinstance(child, TileLoop):
                for name, users in self.visit(child, path).items():
                    touches[name] += [user._replace(position=position) for user in users]
            else:
                for access, write in _instr_accesses(child):
                    low, high = access.partition, access.partition + max(1, access.partitions)
                    touches[access.buffer].append(
                        Touch(position, child.stream, write, low, high, child.instr.op)
                    )
        edges: dict[tuple[str, str], set[Edge]] = defaultdict(set)
        for name in touches:
            for other in self._overlaps.get(name, (name,)):
                if other in touches:
                    self._pair(loop, name, touches[name], touches[other], name == other, times, edges)
        stages = [child.stage for child in loop.body]
        for (producer, consumer), found in sorted(edges.items()):
            for edge in _prune(found, stages):
                self._connect(loop, edge, producer, consumer)
        return {name: _merged(users) for name, users in touches.items()}

    def _pair(
        self,
        loop: TileLoop,
        name: str,
        first: list[Touch],
        second: list[Touch],
        same: bool,
        times: int,
        edges: dict[tuple[str, str], set[Edge]],
    ) -> None:
        """Edges from accesses of one buffer to later conflicting accesses of the other."""
        buffer = self._buffers[name]
        distance = _reuse_distance(buffer, loop, same) if times > 1 else 0
        in_dram = buffer.partitions == 0
        for j, consumer, writes_second, low, high, op in second:
            latest: dict[str, int] = {}
            last: dict[str, int] = {}
            for i, producer, writes_first, first_low, first_high, first_op in first:
                if producer == consumer or not (writes_first or writes_second):
                    continue
                if first_low >= high or low >= first_high:
                    continue
                if in_dram and writes_first and writes_second and op == first_op:
                    continue
                if i < j:
                    latest[producer] = max(latest.get(producer, -1), i)
                elif i > j:  # within one child, the edges of that inner loop run on
                    last[producer] = max(last.get(producer, -1), i)
            for producer, i in latest.items():
                edges[producer, consumer].add(Edge(i, j, 0))
            if distance:
                for producer, i in last.items():
                    edges[producer, consumer].add(Edge(i, j, distance))

    def _connect(self, loop: TileLoop, edge: Edge, producer: str, consumer: str) -> None:
        name = f"c{len(self._plan.channels)}"
        self._plan.channels.append(Channel(name, producer, consumer, edge.distance))
        self._plan.signals[id(loop.body[edge.source]), producer].append((name, 1))
        self._plan.waits[id(loop.body[edge.target]), consumer].append((name, 1))


def _reuse_distance(buffer: TileBuffer, loop: TileLoop, same: bool) -> int:
    """Iterations of `loop` until the memory is used again: as many as it has slots, if made anew in each."""
    return buffer.slots if same and buffer.home is loop else 1


def _instr_accesses(node: TileInstr) -> Iterable[tuple[Access, bool]]:
    for access in reads(node.instr):
        yield access, False
    for access in writes(node.instr):
        yield access, True


def _merged(users: list[Touch]) -> list[Touch]:
    """One touch for each stream, direction and op, over all their partitions."""
    found: dict[tuple[str, bool, str], Touch] = {}
    for user in users:
        key = (user.stream, user.writes, user.op)
        old = found.get(key, user)
        found[key] = user._replace(low=min(old.low, user.low), high=max(old.high, user.high))
    return [found[key] for key in sorted(found)]


def _prune(edges: set[Edge], stages: list[int]) -> list[Edge]:
    """Drop edges implied by another one between the same two streams (each runs its children in order)."""
    kept: list[Edge] = []
    ordered = sorted(edges, key=lambda e: (e.distance, e.target - e.source, e.source, e.target))
    for edge in ordered:
        if not any(_implies(other, edge, stages) for other in kept):
            kept = [other for other in kept if not _implies(edge, other, stages)]
            kept.append(edge)
    return sorted(kept, key=lambda e: (e.target, e.source, e.distance))


def _implies(strong: Edge, weak: Edge, stages: list[int]) -> bool:
    """Whether holding `strong` makes `weak` hold too.

    Within an iteration positions order a stream; software pipelining delays a child by its stage, so an
    edge over iterations implies another only while the stages do not turn the order round.
    """
    if strong.target > weak.target or strong.distance > weak.distance:
        return False
    if strong.source >= weak.source:
        return True
    gap = weak.distance - strong.distance
    return gap > stages[weak.source] - stages[strong.source] and gap > 0
