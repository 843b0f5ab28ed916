"""What the cores of a grid ask of the DRAM together: the law of their shared last-level cache.

All cores run the same program on other tiles, so one of them, the busiest, is simulated, and each of its
transfers stands for those that the others make beside it. Many of those ask for the same bytes: the cache
serves all but the first as long as the copies are wanted within one wave, or the operand stays in it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from fractions import Fraction
from math import isqrt, prod

from arch_configs.spec import ArchSpec
from compiler.isa import Access, Dma, Gather, Instr, Loop, Node, Program

Nest = tuple[Loop, ...]  # the loops around an instruction, outermost first
KEPT = Fraction(1, 2)  # share of the cache that one operand may fill and still be there; assumed
ONE = Fraction(1)


def nested(nodes: tuple[Node, ...], around: Nest = ()) -> Iterator[tuple[Instr, int, Nest]]:
    """Every static instruction as `compiler.isa.walk` of the busiest core, with the loops around it."""
    for node in nodes:
        if isinstance(node, Loop):
            yield from nested(node.body, (*around, node))
        else:
            yield node, prod(loop.times(own=True) for loop in around), around


def wave(counts: Sequence[int], cores: int) -> list[int]:
    """How many tiles along each dealt loop are worked on at once: a block as square as it can be.

    Cores take tiles in an order that keeps a wave compact (block swizzling, as in CUTLASS), so that its
    tiles share as many operands as possible.
    """
    sizes = [1] * len(counts)
    for axis, count in enumerate(counts):
        left, rest = cores // prod(sizes), prod(counts[axis + 1 :])
        sizes[axis] = min(count, max(1, isqrt(left) if rest > 1 else left, left // rest))
    return sizes


class Grid:
    """How often the transfers of one program cross the DRAM's pins, on all cores together."""

    def __init__(self, program: Program, arch: ArchSpec) -> None:
        """Look up what may stay in the cache."""
        self._buffers = program.buffer_map()
        self._dram = arch.dram
        self._cores = arch.cores
        self._spec = arch.grid
        self._kept = int(arch.grid.cache * KEPT) if arch.grid else 0
        self._inside = {
            buffer.name
            for buffer in program.buffers
            if buffer.kind == "activation"
            and buffer.nbytes <= self._kept
            and buffer.tensor not in program.outputs
        }
        self._beside = self._others(program) if arch.grid else {}

    def crossings(self, instr: Dma | Gather, around: Nest) -> int:
        """How often the bytes of `instr` cross the pins.

        A write does once a run. A read of bytes that other tiles read too does once a wave, or once in all
        if the whole operand stays in the cache; values between ops that fit never leave it. Source: the reuse
        of shared operands in a last-level cache, e.g. LLMCompass (arXiv 2312.03134, section 3).
        """
        times = prod(loop.count for loop in around)
        dealt = [loop for loop in around if loop.share is not None]
        if self._spec is None or not dealt or not times:
            return times
        sides = [a.buffer for a in (instr.src, instr.dst) if self._buffers[a.buffer].memory == self._dram]
        if self._inside.issuperset(sides):
            return 0
        source = instr.src
        if source.buffer not in sides or isinstance(instr, Gather):
            return times
        inner = around[around.index(dealt[0]) :]
        distinct = prod(loop.count for loop in inner if _moves(source, loop))
        stays = distinct * source.nbytes <= self._kept
        sizes = dict(zip((x.var for x in dealt), wave([x.count for x in dealt], self._cores), strict=True))
        for loop in inner:
            if not _moves(source, loop):
                times = -(-times // (loop.count if stays else sizes.get(loop.var, 1)))
        return times

    def load(self, instr: Dma | Gather, crossings: int, times: int) -> Fraction:
        """Transfers on the pins for each of the busiest core's `times`."""
        return self._beside.get(instr.op, ONE) * crossings / times if times else ONE

    def _others(self, program: Program) -> dict[str, Fraction]:
        """By op: DRAM bytes of all cores over those that the busiest core's transfers stand for.

        More than 1 where other cores work on smaller tiles at the edges, which the busiest does not see.
        """
        total: dict[str, int] = defaultdict(int)
        seen: dict[str, int] = defaultdict(int)
        for _, nodes in program.streams:
            for instr, times, around in nested(nodes):
                if isinstance(instr, (Dma, Gather)):
                    sides = (self._buffers[access.buffer].memory for access in (instr.src, instr.dst))
                    moved = (
                        self.crossings(instr, around) * instr.dst.nbytes * sum(m == self._dram for m in sides)
                    )
                    total[instr.op] += moved
                    seen[instr.op] += moved if times else 0
        return {op: Fraction(total[op], seen[op]) for op in total if seen[op]}


def _moves(access: Access, loop: Loop) -> bool:
    """Whether another iteration of the loop touches other bytes."""
    return any(name == loop.var for name, _ in (*access.offset.terms, *access.slot.terms))
