"""What the compiler may know about time: a small protocol, and a roofline that fills it.

The evaluator hands in a model built on the simulator's own laws; the compiler never imports them.
"""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction
from math import ceil
from typing import Protocol

from arch_configs.spec import ArchSpec, VectorOp
from compiler.isa import (
    Activate,
    AffineSelect,
    Copy,
    Instr,
    Memset,
    Reduce,
    TensorScalar,
    TensorTensor,
)
from compiler.rows import ONE, share_of_passes

VECTOR_CLASSES: dict[type[Instr], VectorOp] = {
    Copy: "copy",
    TensorScalar: "scalar_op",
    TensorTensor: "tensor_op",
    Reduce: "reduce",
    Activate: "activate",
    Memset: "memset",
    AffineSelect: "select",
}


def vector_class(instr: Instr) -> VectorOp:
    """The cost class of a vector instruction (a key of `VectorSpec.ops`)."""
    return VECTOR_CLASSES[type(instr)]


class CostModel(Protocol):
    """Times the compiler weighs choices with."""

    def vector_ps(self, instr: Instr, engine: str, kinds: Mapping[str, str]) -> int:
        """Picoseconds of `instr` on a vector engine; `kinds` gives the memory kind of each buffer."""
        ...

    def matmul_ps(self, moving: int, dtype: str, count: int = 1, chain: int = 1) -> int:
        """Picoseconds of `count` matmuls of `moving` columns, in chains that add to the same sums."""
        ...

    def transfer_ps(self, nbytes: int) -> int:
        """Picoseconds to move `nbytes` between DRAM and the chip at the full rate."""
        ...


class Roofline:
    """Peak rates plus each instruction's fixed overhead."""

    def __init__(self, arch: ArchSpec) -> None:
        """Read the rates of `arch` once."""
        self._arch = arch
        self._rate = min(arch.dram_sustained, arch.dma_bandwidth)

    def vector_ps(self, instr: Instr, engine: str, kinds: Mapping[str, str]) -> int:
        """Overhead plus one element a lane and cycle, times the class factor."""
        spec = self._arch.vectors[engine]
        factor = spec.ops[vector_class(instr)].base
        src = getattr(instr, "src", None) or getattr(instr, "lhs", None) or instr.dst  # type: ignore[attr-defined]
        passes = -(-src.partitions // spec.lanes)
        cycles = spec.overhead + max(spec.min_interval, -(-src.free_elements * passes * factor // 1))
        return int(-(-cycles * 10**12 // spec.clock))

    def matmul_ps(self, moving: int, dtype: str, count: int = 1, chain: int = 1) -> int:
        """Issue-limited time of the array."""
        array = self._arch.array
        whole: Fraction = array.passes.get(dtype, ONE)  # type: ignore[call-overload]
        passes, issued = share_of_passes(whole, chain)
        cycles = ceil((passes * max(moving, array.min_interval) + issued * array.overhead) / array.units)
        return ceil(cycles * count * 10**12 / (array.clock * array.sustained))

    def transfer_ps(self, nbytes: int) -> int:
        """Bytes over the slower of DRAM and DMA."""
        return -(-nbytes * 10**12 // self._rate)
