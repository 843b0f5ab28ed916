"""Ops on a grid of cores: which pieces they deal among themselves, and the operands of each piece.

An op says how it may be cut (`Op.cuts`). Pieces of equal shape are one loop with a `share`: the iterations
that the busiest core runs when pieces are dealt largest first. Only that core is simulated.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product
from math import lcm, prod

from compiler.builder import Builder
from compiler.cost import CostModel
from compiler.decisions import Decision
from compiler.ir.dtype import dtype_bytes
from compiler.ir.graph import TensorType
from compiler.ir.layout import Layout
from compiler.isa import Affine, Loop, Node, Program
from compiler.kernels.site import Port, Site
from compiler.ops.base import Cut, Op, Span

MOST_SIZES = 12  # sizes looked at for one cut
EXPOSED = 4  # one part in so many of what overlaps shows all the same: first loads, uneven queues; assumed
MOST_WRITTEN_OUT = 64  # pieces that each get a program of their own


@dataclass(frozen=True, slots=True)
class Piece:
    """Some equal pieces of an op: along each cut, how many of what size from where on."""

    op: Op
    ins: tuple[TensorType, ...]
    outs: tuple[TensorType, ...]
    runs: tuple[tuple[Cut, int, int, int], ...]  # cut, first unit, units a piece, pieces

    @property
    def count(self) -> int:
        """How many."""
        return prod(run[3] for run in self.runs)


def pieces(op: Op, ins: tuple[TensorType, ...], sizes: Sequence[tuple[str, int]]) -> list[Piece]:
    """`op` cut along each named axis in turn, whole pieces before the short last one."""
    found = [Piece(op, ins, op.infer(ins), ())]
    for name, size in sizes:
        found = [part for piece in found for part in _divided(piece, name, size)]
    return found


def _divided(piece: Piece, name: str, size: int) -> Iterator[Piece]:
    cut = next((cut for cut in piece.op.cuts(piece.ins) if cut.name == name), None)
    if cut is None:
        yield piece
        return
    whole, rest = divmod(cut.extent, size)
    if cut.start:
        runs = [(at, min(size, cut.extent - at), 1) for at in range(0, cut.extent, size)]
    else:
        runs = [run for run in ((0, size, whole), (whole * size, rest, 1)) if run[1] and run[2]]
    for first, units, count in runs:
        fields = {field: each * units for field, each in cut.fields}
        if cut.start:
            fields[cut.start] = getattr(piece.op, cut.start) + first
        ins = tuple(_shortened(t, span, units) for t, span in zip(piece.ins, cut.inputs, strict=True))
        op = replace(piece.op, **fields)
        yield Piece(op, ins, op.infer(ins), (*piece.runs, (cut, first, units, count)))


def _shortened(kind: TensorType, span: Span, units: int) -> TensorType:
    if span is None:
        return kind
    axis, each = span
    return replace(kind, shape=(*kind.shape[:axis], units * each, *kind.shape[axis + 1 :]))


# ---- which sizes ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Dealing:
    """What the choice of sizes needs to know of the op and the machine."""

    site: Site
    cost: CostModel
    ins: tuple[TensorType, ...]

    def granule(self, cut: Cut, ports: tuple[Port, ...]) -> int:
        """Units that no layout splits: whole blocks of every operand."""
        spans = (*cut.inputs, *cut.outputs)
        units = 1
        for span, port in zip(spans, ports, strict=True):
            block = dict(port.layout.splits).get(span[0], 1) if span else 1
            units = lcm(units, lcm(block, span[1]) // span[1] if span else 1)
        return units

    def sizes(self, cut: Cut, ports: tuple[Port, ...], piece: Piece) -> list[int]:
        """Granules, doubling, and all of it; off the array also what gives every core one piece.

        Kernels for arrays come in tiles of powers of two, so sizes between do not exist for them. Of what
        is held while a piece is worked on (queries and their results), no more than half the scratchpad.
        """
        granule, arch = self.granule(cut, ports), self.site.arch
        found = []
        if cut.start:
            least = max(-(-cut.extent // MOST_WRITTEN_OUT), arch.array.moving_max // 2)
            granule = -(-least // granule) * granule
        elif not self.site.op.macs(self.ins):
            even = -(-cut.extent // min(arch.cores, cut.extent))
            found.append(-(-even // granule) * granule)
        found += [granule << i for i in range(MOST_SIZES)]
        sizes = sorted({size for size in found if size < cut.extent} | {cut.extent})
        if not cut.held:
            return sizes
        held = piece.ins[0].nbytes + sum(kind.nbytes for kind in piece.outs)
        room = self.site.room * arch.partitions(arch.scratchpad) // 2
        return [size for size in sizes if held * size // cut.extent <= room] or sizes[:1]

    def time(self, sizes: Sequence[tuple[str, int]]) -> int:
        """Picoseconds of the busiest core, roughly: array, vectors or its transfers, and a start each."""
        arch, cores = self.site.arch, self.site.arch.cores
        found = pieces(self.site.op, self.ins, sizes)
        each = [(self._work(piece), piece.count) for piece in found]
        count = sum(n for _, n in each)
        whole = sum(work * n for work, n in each)
        dma = arch.dma
        start = dma.issue + dma.latency + dma.completion
        rounds = -(-count // cores)
        return max(max(work for work, _ in each), rounds * whole // count) + 2 * rounds * start

    def _work(self, piece: Piece) -> int:
        """Picoseconds of one piece on a core that does nothing else."""
        arch = self.site.arch
        macs = piece.op.macs(piece.ins)
        made = sum(t.elements for t in piece.outs) * 4
        spec = arch.memories[arch.accumulator]
        again = -(-made // (spec.capacity - spec.reserved)) if macs else 1  # sums that fit are made in one go
        felt = [
            _felt(port, kind, arch.dma.descriptor_bytes)
            for port, kind in zip(
                (*self.site.inputs, *self.site.outputs), (*piece.ins, *piece.outs), strict=True
            )
        ]
        moved = again * sum(felt[: len(piece.ins)]) + sum(felt[len(piece.ins) :])
        dma = moved * 10**12 // arch.dma_bandwidth
        array = arch.array
        passes = dict(array.passes).get(piece.ins[0].dtype, 1)  # type: ignore[call-overload]
        cells = array.rows * array.cols * array.units
        busy = int(macs * passes * 10**12 / (cells * array.clock * array.sustained))
        lanes = sum(spec.lanes * spec.clock for spec in arch.vectors.values())
        elements = sum(t.elements for t in piece.outs)
        compute = busy + elements * 10**12 // lanes
        return max(dma, compute) + min(dma, compute) // EXPOSED


def _felt(port: Port, kind: TensorType, least: int) -> int:
    """Bytes of a part of an operand as the DMA engines feel them: runs below `least` bytes cost as much."""
    run = dtype_bytes(kind.dtype)
    for part, whole in zip(
        reversed(port.layout.stored_shape(kind.shape)), reversed(port.tensor.shape), strict=True
    ):
        run *= part
        if part < whole:
            break
    return kind.nbytes * max(1, -(-least // run))


def choose(b: Builder, site: Site) -> list[tuple[str, int]]:
    """(cut, units a piece) along each axis that is cut: the least time of the busiest core.

    Pieces are taken as large as equal times allow: larger ones read fewer bytes twice.
    """
    ins = tuple(port.type for port in site.inputs)
    deal = _Dealing(site, b.cost, ins)
    ports = (*site.inputs, *site.outputs)
    best: tuple[int, int, list[tuple[str, int]]] | None = None
    for sizes in _candidates(deal, site.op, ins, ports):
        count = sum(piece.count for piece in pieces(site.op, ins, sizes))
        found = (deal.time(sizes), count, sizes)
        best = found if best is None or found[:2] < best[:2] else best
    if best is None:
        return []
    said = ", ".join(f"{size} {name}" for name, size in best[2]) or "the whole op"
    reason = f"{best[1]} pieces on {site.arch.cores} cores take least time"
    b.graph.decisions.append(Decision(site.name, "grid", f"pieces of {said}", reason))
    return best[2]


def _candidates(
    deal: _Dealing,
    op: Op,
    ins: tuple[TensorType, ...],
    ports: tuple[Port, ...],
    chosen: tuple[tuple[str, int], ...] = (),
) -> Iterator[list[tuple[str, int]]]:
    """All combinations of sizes along the axes that the op can be cut.

    Cuts that appear once others are made (queries of one sequence) are looked at behind them.
    """
    piece = pieces(op, ins, chosen)[0]
    known = {name for name, _ in chosen}
    cuts = [cut for cut in piece.op.cuts(piece.ins) if cut.name not in known]
    if not cuts:
        return
    for sizes in product(*(deal.sizes(cut, ports, piece) for cut in cuts)):
        more = (*chosen, *((cut.name, size) for cut, size in zip(cuts, sizes, strict=True)))
        part = pieces(op, ins, more)[0]
        done = {name for name, _ in more}
        if not any(cut.held and cut.name not in done for cut in part.op.cuts(part.ins)):
            yield list(more)
        yield from _candidates(deal, op, ins, ports, more)


# ---- code ----------------------------------------------------------------------------------------


def deal_out(b: Builder, site: Site) -> Iterator[Site]:
    """The op as pieces that the cores deal among themselves; the caller lowers each inside its loops."""
    found = pieces(site.op, tuple(port.type for port in site.inputs), choose(b, site))
    ranked = sorted(range(len(found)), key=lambda i: (-_weight(found[i]), i))
    shares: dict[int, int] = {}
    dealt = 0
    for i in ranked:
        ahead = dealt + found[i].count
        shares[i] = -(-ahead // site.arch.cores) - -(-dealt // site.arch.cores)
        dealt = ahead
    b.graph.launches += b.times  # one for each layer around it
    for i, piece in enumerate(found):
        yield from _loops(b, site, piece, shares[i], (), piece.runs)


def _weight(piece: Piece) -> int:
    """Size of a piece, to deal the large ones first."""
    return piece.op.macs(piece.ins) or sum(t.elements for t in piece.outs)


def _loops(
    b: Builder,
    site: Site,
    piece: Piece,
    share: int,
    at: tuple[Affine, ...],
    runs: tuple[tuple[Cut, int, int, int], ...],
) -> Iterator[Site]:
    """One loop along each cut; the busiest core's share is that of the innermost one."""
    if not runs:
        yield _part(site, piece, at)
        return
    _, first, units, count = runs[0]
    rest = prod(run[3] for run in runs[1:])
    own = min(count, -(-share // rest))
    with b.loop(count, "core", share=own) as i:
        start = (i * units if count > 1 else Affine()) + first
        yield from _loops(b, site, piece, -(-share // own) if own else 0, (*at, start), runs[1:])


def _part(site: Site, piece: Piece, at: tuple[Affine, ...]) -> Site:
    """The op of a piece on parts of the operands."""

    def cut_port(port: Port, kind: TensorType, spans: Sequence[Span]) -> Port:
        tensor = port.tensor
        for span, start, (_, _, units, _) in zip(spans, at, piece.runs, strict=True):
            if span is not None:
                axis, block = _stored(port.layout, span[0])
                size = -(-units * span[1] // block)
                tensor = tensor.part(axis, start * span[1] // block, size)
        return Port(tensor, kind, port.layout)

    ins = tuple(
        cut_port(port, kind, [run[0].inputs[i] for run in piece.runs])
        for i, (port, kind) in enumerate(zip(site.inputs, piece.ins, strict=True))
    )
    outs = tuple(
        cut_port(port, kind, [run[0].outputs[i] for run in piece.runs])
        for i, (port, kind) in enumerate(zip(site.outputs, piece.outs, strict=True))
    )
    return replace(site, op=piece.op, inputs=ins, outputs=outs)


def _stored(layout: Layout, axis: int) -> tuple[int, int]:
    """Where a logical axis lies in memory, and into how many elements a step along it is."""
    expanded = axis + sum(split < axis for split, _ in layout.splits)
    position = layout.order.index(expanded) if layout.order else expanded
    return position, dict(layout.splits).get(axis, 1)


def undivided(program: Program) -> Program:
    """The program with the pieces of a grid all on one core: what its streams order, they order there too."""

    def whole(node: Node) -> Node:
        if not isinstance(node, Loop):
            return node
        return replace(node, share=None, body=tuple(map(whole, node.body)))

    streams = tuple((name, tuple(map(whole, nodes))) for name, nodes in program.streams)
    return replace(program, streams=streams)
