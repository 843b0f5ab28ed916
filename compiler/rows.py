"""Which matmuls of a narrow type share passes of the array.

A type of half a pass has two rows of k in each cell: one pass takes the operands of two matmuls that add
to the same sums. It gains only where there are two, with all operands on chip.
"""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from math import ceil
from typing import cast

from arch_configs.spec import ArchSpec, DTypeName
from compiler.ir.tiles import TileInstr, TileLoop
from compiler.isa import Access, Matmul, writes

Key = tuple[Access, int, int]
ONE = Fraction(1)


def share_of_passes(passes: Fraction, chain: int) -> tuple[Fraction, Fraction]:
    """Passes, and instructions issued, for each of `chain` matmuls that add to the same sums.

    A type of `passes` < 1 has `1 / passes` rows of k in a cell, fed by as many matmuls at once; those left
    over at the end of a chain take a pass that is not full.
    Source: the trainium2_arch guide, double row: K = 256 in the time of K = 128, operands [128, 2, free].
    """
    if passes >= 1:
        return passes, ONE
    rows = ceil(1 / passes)
    groups, rest = divmod(chain, rows)
    last = max(ONE, rest * passes) if rest else Fraction(0)
    return (groups * rows * passes + last) / chain, Fraction(groups + (rest > 0), chain)


def share_passes(loop: TileLoop, arch: ArchSpec, around: tuple[TileLoop, ...] = ()) -> None:
    """Set `chain` of the matmuls below `loop` whose type takes less than one pass."""
    if min(arch.array.passes.values()) >= 1:
        return
    loops = (*around, loop)
    for chain in _chains(loop, arch):
        length = sum(_steps(matmul, loops) for _, matmul in chain)
        for place, matmul in chain:
            node = cast("TileInstr", loop.body[place])
            loop.body[place] = TileInstr(node.stream, replace(matmul, chain=length), node.stage)
    for child in loop.body:
        if isinstance(child, TileLoop):
            share_passes(child, arch, loops)


def _chains(loop: TileLoop, arch: ArchSpec) -> list[list[tuple[int, Matmul]]]:
    """Narrow matmuls of the body, with their places, that add to the same sums since these were reset."""
    begun: dict[Key, list[tuple[int, Matmul]]] = {}
    chains = []
    for place, child in enumerate(loop.body):
        instr = child.instr if isinstance(child, TileInstr) else None
        if not isinstance(instr, Matmul) or not _is_narrow(instr, arch):
            continue
        key = (instr.dst, instr.stationary.partitions, instr.stationary.free_elements)
        if instr.reset == () or key not in begun:
            begun[key] = []
            chains.append(begun[key])
        begun[key].append((place, instr))
    return chains


def _is_narrow(instr: Matmul, arch: ArchSpec) -> bool:
    types = [cast("DTypeName", access.dtype) for access in (instr.stationary, instr.moving)]
    return all(arch.array.passes.get(dtype, 1) < 1 for dtype in types)


def _steps(instr: Matmul, loops: tuple[TileLoop, ...]) -> int:
    """How many matmuls an instruction stands for: iterations in which it adds up operands that are there."""
    steps = 1
    for loop in reversed(loops):
        made = {access.buffer for node in loop.instructions() for access in writes(node.instr)}
        is_loaded = not made & {instr.stationary.buffer, instr.moving.buffer}
        if not is_loaded or not any(name == loop.var for part in instr.reset or () for name, _ in part.terms):
            break
        steps *= loop.count
    return steps
