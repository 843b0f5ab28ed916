"""Addresses: buffers of one memory that are alive at the same time do not overlap.

Lifetimes are intervals of positions in program order. A buffer that rotates over several slots, or is
made anew in every iteration while an outer one stays, lives through the whole of its loop; one with a
single slot lives from its first to its last use at the level of its home loop. Where there is room,
bytes rest for a while before they are used again, so that later work need not wait for earlier work.
"""

from __future__ import annotations

from bisect import insort
from collections import defaultdict
from dataclasses import dataclass

from arch_configs.spec import ArchSpec
from compiler.errors import Infeasible, Shortfall
from compiler.ir.tiles import TileBuffer, TileGraph, TileInstr, TileLoop
from compiler.isa import Buffer, operands

SLACKS = (256, 64, 16, 0)  # positions a buffer is kept after its last use, if there is room for that
STRETCH = 128  # positions that are looked up together
MANY = 16  # stretches from which looking at all lives is cheaper; both only matter for speed
ALIGNMENT = 64  # bytes; assumed: one DMA beat


def aligned(nbytes: int) -> int:
    """Bytes with what is left out behind them, so that what follows begins aligned."""
    return -(-nbytes // ALIGNMENT) * ALIGNMENT


@dataclass(frozen=True, slots=True)
class Lifetime:
    """First and last position (inclusive) of program order in which a buffer holds something."""

    first: int
    last: int

    def overlaps(self, other: Lifetime) -> bool:
        """Whether both are alive at some position."""
        return self.first <= other.last and other.first <= self.last


@dataclass(frozen=True, slots=True)
class Placement:
    """All buffers with addresses, and which of them share bytes."""

    buffers: dict[str, Buffer]
    overlaps: dict[str, tuple[str, ...]]


def lifetimes(graph: TileGraph) -> dict[str, tuple[Lifetime, Lifetime]]:
    """The lifetimes of every buffer that is used: with one slot, and with several."""
    spans: dict[str, tuple[Lifetime, Lifetime]] = {}
    position = 0

    def visit(loop: TileLoop) -> dict[str, tuple[int, int]]:
        nonlocal position
        start = position
        uses: dict[str, tuple[int, int]] = {}
        for child in loop.body:
            if isinstance(child, TileInstr):
                position += 1
                found = {access.buffer: (position, position) for _, access in operands(child.instr)}
            else:
                begin = position + 1
                found = dict.fromkeys(visit(child), (begin, position))
            for name, (lo, hi) in found.items():
                old = uses.get(name, (lo, hi))
                uses[name] = (min(old[0], lo), max(old[1], hi))
        pipelined = loop.count > 1 and any(child.stage for child in loop.body)
        if pipelined:  # the ends of iterations overlap: nothing in the loop may share bytes
            for name in uses:
                spans[name] = (Lifetime(start + 1, position),) * 2
        for name, use in uses.items():
            buffer = graph.buffers[name]
            if buffer.home is loop:
                one, whole = Lifetime(*use), Lifetime(start + 1, position)
                again = loop.count > 1 or loop.share is not None  # NOTE: a loop of pieces may be around one
                spans[name] = (whole if pipelined else one, whole if again else one)
        return uses

    visit(graph.root)
    return spans


def allocate(graph: TileGraph, arch: ArchSpec) -> Placement:
    """Place every buffer; raise Infeasible with the largest terms if a memory overflows."""
    alive = lifetimes(graph)
    by_memory: dict[str, list[TileBuffer]] = defaultdict(list)
    for name in graph.buffers:
        if name in alive:
            by_memory[graph.buffers[name].memory].append(graph.buffers[name])
    placed: dict[str, Buffer] = {}
    overlaps: dict[str, list[str]] = {name: [name] for name in graph.buffers}
    for memory, buffers in by_memory.items():
        if memory == arch.dram:
            _place_dram(buffers, arch, placed)
            continue
        _place_on_chip(memory, buffers, alive, arch, placed)
        _find_overlaps([placed[b.name] for b in buffers], overlaps)
    return Placement(placed, {name: tuple(others) for name, others in overlaps.items()})


def _place_dram(buffers: list[TileBuffer], arch: ArchSpec, placed: dict[str, Buffer]) -> None:
    """One behind the other."""
    address = 0
    for b in buffers:
        placed[b.name] = _buffer(b, address, b.slot_bytes)
        address = aligned(address + b.slot_bytes * b.slots)
    spec = arch.memories[arch.dram]
    available = spec.capacity - spec.reserved
    if address > available:
        raise Infeasible(
            _shortfall("dram-capacity", arch.dram, address, available, buffers, "a smaller model")
        )


def _place_on_chip(
    memory: str,
    buffers: list[TileBuffer],
    alive: dict[str, tuple[Lifetime, Lifetime]],
    arch: ArchSpec,
    placed: dict[str, Buffer],
) -> None:
    """Place all; while they do not fit, give up slots of the largest: less overlap, but it runs."""
    limit = arch.partition_bytes(memory)
    by_name = {b.name: b for b in buffers}

    def life(b: TileBuffer) -> Lifetime:
        return alive[b.name][b.slots > 1]

    while True:
        fresh: dict[str, Buffer] = {}
        top = _pack(memory, buffers, alive, arch, fresh)
        if fresh[top].address + fresh[top].nbytes <= limit:
            placed.update(fresh)
            return
        if not _give_up_slots(buffers, {b.name: life(b) for b in buffers}, fresh, top, limit):
            dense: dict[str, Buffer] = {}
            top = _pack(memory, buffers, alive, arch, dense, slacks=(0,))
            peak = dense[top].address + dense[top].nbytes
            if peak > limit:
                others = [b for b in buffers if life(b).overlaps(life(by_name[top]))]
                ops = {_op(b) for b in buffers if dense[b.name].address + dense[b.name].nbytes > limit}
                raise Infeasible(_overflow(memory, peak, others, arch), tuple(sorted(ops)))
            placed.update(dense)
            return


def _give_up_slots(
    buffers: list[TileBuffer], life: dict[str, Lifetime], placed: dict[str, Buffer], top: str, limit: int
) -> bool:
    """Take a slot from the largest of what lives beside `top`; False if nothing there has one to spare.

    So too beside other buffers above `limit`, one for each op (on a grid: each program of a piece) that the
    ones before did not reach.
    """
    ends = {b.name: placed[b.name].address + placed[b.name].nbytes for b in buffers}
    above = [b for b in buffers if ends[b.name] > limit]
    seen: set[tuple[str, int]] = set()
    for high in sorted(above, key=lambda b: (b.name != top, -ends[b.name], b.name)):
        if (_op(high), high.piece) in seen:
            continue
        beside = [b for b in buffers if life[b.name].overlaps(life[high.name])]
        spare = [b for b in beside if b.slots > b.need and (_op(b), b.piece) not in seen]
        if high.name == top and not spare:
            return False
        seen |= {(_op(b), b.piece) for b in beside}
        spare.sort(key=lambda b: (-b.slot_bytes * (b.slots - b.need), b.name))
        for b in spare[: max(1, len(spare) // 4)]:
            b.slots -= 1
    return True


def _pack(
    memory: str,
    buffers: list[TileBuffer],
    alive: dict[str, tuple[Lifetime, Lifetime]],
    arch: ArchSpec,
    placed: dict[str, Buffer],
    *,
    slacks: tuple[int, ...] = SLACKS,
) -> str:
    """Largest first, each at the lowest address that is free for its whole life; return the topmost.

    Bytes rest behind and in front of a life for as many positions as still fit.
    """
    limit = arch.partition_bytes(memory)
    bank = arch.bank_bytes(memory) if arch.memories[memory].kind == "accumulator" else 0
    done = _Occupied()
    peak, top = -1, ""
    for b in sorted(buffers, key=lambda b: (-b.slot_bytes * b.slots, b.name)):
        step, align = _step(b.slot_bytes, bank)
        size, life = step * b.slots, alive[b.name][b.slots > 1]
        for slack in slacks:
            address = done.lowest(size, align, life.first - slack, life.last + slack)
            if address + size <= limit:
                break
        placed[b.name] = _buffer(b, address, step)
        done.add(address, address + size, life.first, life.last)
        if address + size > peak:
            peak, top = address + size, b.name
    return top


class _Occupied:
    """Bytes that are taken, and when: (address, end, first, last) by address, for each stretch of time.

    A life stands in every stretch it touches, so a question about a short time looks at few of them.
    """

    def __init__(self) -> None:
        self._all: list[tuple[int, int, int, int]] = []
        self._stretches: dict[int, list[tuple[int, int, int, int]]] = defaultdict(list)

    def add(self, address: int, end: int, first: int, last: int) -> None:
        """Take `address` to `end` from `first` to `last`."""
        entry = (address, end, first, last)
        insort(self._all, entry)
        for stretch in range(first // STRETCH, last // STRETCH + 1):
            insort(self._stretches[stretch], entry)

    def lowest(self, size: int, align: int, born: int, dies: int) -> int:
        """The lowest aligned address at which `size` bytes are free from `born` to `dies`."""
        address = 0
        for lo, hi, first, last in self._within(born, dies):
            if first <= dies and born <= last:
                if address + size <= lo:
                    break
                if hi > address:
                    address = -(-hi // align) * align
        return address

    def _within(self, born: int, dies: int) -> list[tuple[int, int, int, int]]:
        low, high = born // STRETCH, dies // STRETCH
        if high - low > MANY:
            return self._all
        if low == high:
            return self._stretches.get(low, [])
        found: list[tuple[int, int, int, int]] = []
        for stretch in range(low, high + 1):
            found += self._stretches.get(stretch, ())
        found.sort()  # of sorted runs; that a life in two stretches stands in it twice does no harm
        return found


def _step(slot_bytes: int, bank: int) -> tuple[int, int]:
    """Distance of slots and alignment; a slot of an accumulator must not straddle a bank."""
    if not bank:
        return aligned(slot_bytes), ALIGNMENT
    if slot_bytes >= bank:
        return -(-slot_bytes // bank) * bank, bank
    share = bank
    while share % 8 == 0 and share // 2 >= slot_bytes:  # a share stays a multiple of 4, the bytes of a sum
        share //= 2
    return share, share


def _find_overlaps(buffers: list[Buffer], overlaps: dict[str, list[str]]) -> None:
    ordered = sorted(buffers, key=lambda b: (b.address, b.name))
    for i, b in enumerate(ordered):
        end = b.address + b.nbytes
        for other in ordered[i + 1 :]:
            if other.address >= end:
                break
            overlaps[b.name].append(other.name)
            overlaps[other.name].append(b.name)


def _buffer(b: TileBuffer, address: int, slot_bytes: int) -> Buffer:
    return Buffer(b.name, b.memory, b.dtype, address, slot_bytes, b.slots, b.partitions, b.tensor, b.kind)


def _op(buffer: TileBuffer) -> str:
    """The op that a tile serves."""
    return buffer.tensor.rpartition(":")[0]


def _overflow(memory: str, peak: int, buffers: list[TileBuffer], arch: ArchSpec) -> Shortfall:
    limit = arch.partition_bytes(memory)
    code = f"{arch.memories[memory].kind}-capacity"
    total = peak * arch.partitions(memory) + arch.memories[memory].reserved
    return _shortfall(code, memory, peak, limit, buffers, f"memories.{memory}.capacity >= {total} B")


def _shortfall(
    code: str, memory: str, needed: int, available: int, buffers: list[TileBuffer], fix: str
) -> Shortfall:
    """The shortfall with the eight largest buffers."""
    terms = sorted(
        ((b.tensor or b.name, b.slot_bytes * b.slots) for b in buffers), key=lambda t: (-t[1], t[0])
    )
    unit = "B" if code == "dram-capacity" else "B per partition"
    return Shortfall(code, memory, needed, available, unit, tuple(terms[:8]), fix)
