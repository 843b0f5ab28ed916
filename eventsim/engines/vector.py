"""Vector engines: cycles of element-by-element instructions."""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction

from arch_configs.spec import VectorCost, VectorSpec
from compiler.cost import vector_class
from compiler.ir.dtype import dtype_bytes
from compiler.isa import (
    Access,
    Activate,
    Instr,
    operands,
)
from eventsim.clock import ceil_div, cycles_to_ps
from eventsim.errors import SimError

# Functions that the activation unit computes without a table (nki.isa.activation: no table switch).
TABLE_FREE = frozenset({"copy", "identity", "relu", "square"})
_STREAMED = ("dst", "src", "lhs", "rhs")  # per-partition scalars do not set the element rate


def _factor(cost: VectorCost, streamed: list[Access], kinds: Mapping[str, str]) -> Fraction:
    """Cycles per element and lane: the fast mode that the operands qualify for, else `base`."""
    narrow = all(dtype_bytes(a.dtype) <= 2 for a in streamed)
    accumulator = any(kinds[a.buffer] == "accumulator" for a in streamed)
    if narrow and not accumulator and cost.narrow is not None:
        return cost.narrow
    if narrow and accumulator and cost.narrow_mixed is not None:
        return cost.narrow_mixed
    if accumulator and cost.accumulator is not None:
        return cost.accumulator
    return cost.base


def vector_cycles(instr: Instr, spec: VectorSpec, kinds: Mapping[str, str]) -> int:
    """Cycles an instruction occupies a vector engine; `kinds`: buffer name -> kind of its memory.

    Model: `overhead + max(min_interval, ceil(N * ceil(partitions / lanes) * factor))`, N the free
    elements of the largest operand (a reduction's input). Summing the results on the fly (`accumulate`)
    costs one more `min_interval`. Left out: stride penalties.
    Source: nki.isa, "max(MIN_II, N) cycles of the engine"; activation_reduce "max(MIN_II, N) + MIN_II".
    """
    cost = spec.ops.get(vector_class(instr))
    if cost is None:
        have = ", ".join(spec.ops)
        raise SimError(f"vector engine: got a {vector_class(instr)!r} instruction, want one of {have}")
    streamed = [access for name, access in operands(instr) if name in _STREAMED]
    free = max(a.free_elements for a in streamed)
    rounds = ceil_div(max(1, *(a.partitions for a in streamed)), spec.lanes)
    factor = _factor(cost, streamed, kinds)
    work = ceil_div(free * rounds * factor.numerator, factor.denominator)
    extra = spec.min_interval if isinstance(instr, Activate) and instr.accumulate is not None else 0
    return spec.overhead + max(spec.min_interval, work) + extra


def vector_ps(instr: Instr, spec: VectorSpec, kinds: Mapping[str, str]) -> int:
    """Occupancy in ps, rounded up once; a change of the activation table comes on top at run time."""
    return cycles_to_ps(vector_cycles(instr, spec, kinds), spec.clock)


def table_of(instr: Instr) -> str | None:
    """The activation table that `instr` needs loaded, or None."""
    if isinstance(instr, Activate) and instr.func not in TABLE_FREE:
        return instr.func
    return None
