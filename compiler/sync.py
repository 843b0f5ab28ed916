"""Which stream must wait for which: dependences of a TileGraph, as channels.

Two accesses conflict if their buffers and partitions overlap in memory, one of them writes, and they are
on different streams (two writes of one op to a DRAM tensor do not: a kernel writes each element once; nor do
its reads and writes of a state: what it writes follows from what it read there, which it reads once).
For each loop, conflicts between two of its children become an edge: signal behind the first, wait in
front of the second. Both run once an iteration, so tokens balance. A conflict with a later iteration
becomes an edge with initial tokens: as many iterations may be under way as the buffer has slots. Edges
that another edge of the same two streams implies are dropped. Every wait points backwards in program
order, so a program in that order cannot deadlock.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import groupby
from typing import NamedTuple

from compiler.allocation import Placement
from compiler.ir.tiles import TileGraph, TileInstr, TileLoop
from compiler.isa import Channel, Token, reads, writes

IN_DRAM = -1


class Touch(NamedTuple):
    """That a child of a loop uses some memory: on which stream, which bytes and partitions, for which op."""

    position: int
    stage: int
    stream: str
    writes: bool
    start: int  # bytes start .. end of each partition, or of DRAM
    end: int
    low: int  # partitions low .. high; DRAM has none and says IN_DRAM
    high: int
    op: str
    state: bool  # of a tensor in DRAM that ops update in place

    def meets(self, other: Touch) -> bool:
        """Whether both use some byte."""
        return (
            self.start < other.end
            and other.start < self.end
            and self.low < other.high
            and other.low < self.high
        )

    def covers(self, other: Touch) -> bool:
        """Whether every byte of `other` is in this one."""
        return (
            self.start <= other.start
            and other.end <= self.end
            and self.low <= other.low
            and other.high <= self.high
        )

    def without(self, other: Touch) -> tuple[Touch, ...]:
        """What `other` leaves of this, as long as that is at most two parts; else all of it."""
        if other.low <= self.low and self.high <= other.high:
            before = self._replace(end=min(self.end, other.start))
            behind = self._replace(start=max(self.start, other.end))
            return tuple(part for part in (before, behind) if part.start < part.end)
        if other.start <= self.start and self.end <= other.end:
            before = self._replace(high=min(self.high, other.low))
            behind = self._replace(low=max(self.low, other.high))
            return tuple(part for part in (before, behind) if part.low < part.high)
        return (self,)

    def runs_behind(self, other: Touch, distance: int) -> bool:
        """Whether this use, `distance` iterations later, comes behind `other` on a stream they share."""
        return (distance + self.stage, self.position) >= (other.stage, other.position)


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


def plan_sync(graph: TileGraph, placement: Placement) -> SyncPlan:
    """Derive all channels."""
    plan = SyncPlan()
    _Planner(graph, placement, plan).visit(graph.root, 1)
    return plan


Touches = list[tuple[str, Touch]]  # (buffer, touch) in program order
Edges = dict[tuple[str, str], set[Edge]]


class _Planner:
    def __init__(self, graph: TileGraph, placement: Placement, plan: SyncPlan) -> None:
        self._slots = graph.buffers
        self._placed = placement.buffers
        self._overlaps = {name: dict.fromkeys(others) for name, others in placement.overlaps.items()}
        self._plan = plan

    def visit(self, loop: TileLoop, times: int) -> Touches:
        """Plan `loop`, which starts `times` times, and all below; return what it touches."""
        times *= loop.count
        touches: Touches = []
        for position, child in enumerate(loop.body):
            if isinstance(child, TileLoop):
                inner = self.visit(child, times)
                touches += [(n, touch._replace(position=position, stage=child.stage)) for n, touch in inner]
            else:
                touches += self._of(child, position)
        edges: Edges = defaultdict(set)
        rotating = {n for n, _ in touches if self._slots[n].home is loop and self._slots[n].slots > 1}
        self._order(touches, rotating, times > 1, edges)
        for name in sorted(rotating):
            self._rotate([touch for other, touch in touches if other == name], self._slots[name].slots, edges)
        stages = [child.stage for child in loop.body]
        for (producer, consumer), found in sorted(edges.items()):
            for edge in _prune(found, stages):
                self._connect(loop, edge, producer, consumer)
        return _merged(touches)

    def _of(self, node: TileInstr, position: int) -> Touches:
        found = []
        accesses = [(a, False) for a in reads(node.instr)] + [(a, True) for a in writes(node.instr)]
        for access, write in accesses:
            buffer = self._placed[access.buffer]
            low, high = access.partition, access.partition + access.partitions
            if not access.partitions:
                low, high = IN_DRAM, IN_DRAM + 1
            end = buffer.address + buffer.nbytes
            use = (position, node.stage, node.stream, write)
            rest = (node.instr.op, buffer.kind == "state")
            found.append((access.buffer, Touch(*use, buffer.address, end, low, high, *rest)))
        return found

    def _order(self, touches: Touches, rotating: set[str], again: bool, edges: Edges) -> None:
        """Edges to the latest conflicting uses, within an iteration and from one to the next.

        A use that a later one covers and must wait for is forgotten: waiting for the later one is enough.
        Not one of the same stream that pipelining puts behind: see `Touch.runs_behind`.
        Buffers that rotate over slots in this loop meet themselves only `slots` iterations on.
        """
        alive: dict[str, list[tuple[int, Touch]]] = defaultdict(list)
        for turn in range(2 if again else 1):
            for _, group in groupby(touches, key=lambda item: item[1].position):
                child = [(name, touch) for name, touch in group if not (turn and name in rotating)]
                if len(child) > 1:  # any of a child's uses may come first: all wait before one forgets
                    for name, touch in child:
                        for other in self._near(name, alive):
                            self._meet(alive[other], touch, turn, edges)
                for name, touch in child:
                    for other in self._near(name, alive):
                        alive[other] = self._meet(alive[other], touch, turn, edges)
                        if not alive[other]:
                            del alive[other]
                    alive[name].append((turn, touch))

    def _near(self, name: str, alive: Mapping[str, object]) -> list[str]:
        """The buffers under way that share bytes with `name`: the shorter list is looked through."""
        overlaps = self._overlaps[name]
        if len(overlaps) < len(alive):
            return [other for other in overlaps if other in alive]
        return [other for other in alive if other in overlaps]

    def _meet(
        self, earlier: list[tuple[int, Touch]], touch: Touch, turn: int, edges: Edges
    ) -> list[tuple[int, Touch]]:
        """Order `touch` behind the conflicting ones of `earlier`; return those still worth knowing."""
        kept = []
        for when, old in earlier:
            turned = old.stream == touch.stream and not touch.runs_behind(old, turn - when)
            if turned or not old.meets(touch):
                kept.append((when, old))
                continue
            conflict = old.writes or touch.writes
            if conflict and not _is_free(old, touch):
                # Within one child, the edges of that inner loop order both, also from turn to turn.
                if old.stream != touch.stream and old.position != touch.position:
                    edges[old.stream, touch.stream].add(Edge(old.position, touch.position, turn - when))
                together = old.position == touch.position and when == turn  # either may come last
                if together or not touch.writes:
                    kept.append((when, old))
                else:
                    kept += [(when, rest) for rest in old.without(touch)]
            elif not (old.writes == touch.writes and old.stream == touch.stream and touch.covers(old)):
                kept.append((when, old))
        return kept

    def _rotate(self, touches: list[Touch], slots: int, edges: Edges) -> None:
        """Edges to the iteration that uses the same slot again."""
        for first in touches:
            for second in touches:
                conflict = (first.writes or second.writes) and first.meets(second)
                if conflict and first.stream != second.stream and first.position > second.position:
                    edges[first.stream, second.stream].add(Edge(first.position, second.position, slots))

    def _connect(self, loop: TileLoop, edge: Edge, producer: str, consumer: str) -> None:
        name = f"c{len(self._plan.channels)}"
        self._plan.channels.append(Channel(name, producer, consumer, edge.distance))
        self._plan.signals[id(loop.body[edge.source]), producer].append((name, 1))
        self._plan.waits[id(loop.body[edge.target]), consumer].append((name, 1))


def _is_free(first: Touch, second: Touch) -> bool:
    """Two uses of a DRAM tensor by one op whose order is free, or follows from the data.

    Each element is written once; of a state, it was read before, by what made the new one.
    """
    in_dram = first.low == IN_DRAM == second.low
    return in_dram and first.op == second.op and ((first.writes and second.writes) or first.state)


def _merged(touches: Touches) -> Touches:
    """One touch for each buffer, stream, direction and op, over all their partitions, in order."""
    found: dict[tuple[str, str, bool, str], Touch] = {}
    for name, touch in touches:
        key = (name, touch.stream, touch.writes, touch.op)
        old = found.pop(key, touch)
        found[key] = touch._replace(low=min(old.low, touch.low), high=max(old.high, touch.high))
    return [(key[0], touch) for key, touch in found.items()]


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
