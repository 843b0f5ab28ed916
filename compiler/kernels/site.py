"""What a kernel is given: the op, its operands in DRAM, and the architecture's natural tile sizes."""

from __future__ import annotations

from dataclasses import dataclass

from arch_configs.spec import ArchSpec
from compiler.builder import Tensor
from compiler.errors import Infeasible, Shortfall
from compiler.ir.dtype import dtype_bytes
from compiler.ir.graph import TensorType
from compiler.ir.layout import Layout
from compiler.ops.base import Op
from compiler.options import CompileOptions


@dataclass(frozen=True, slots=True)
class Port:
    """An operand of an op in DRAM: its stored tensor, logical type and layout."""

    tensor: Tensor
    type: TensorType
    layout: Layout

    @property
    def block(self) -> int:
        """Features (or channels) on partitions per block; 0 if rows are on partitions."""
        return self.layout.splits[0][1] if self.layout.splits else 0


@dataclass(frozen=True, slots=True)
class Site:
    """One op to be lowered."""

    name: str
    op: Op
    inputs: tuple[Port, ...]
    outputs: tuple[Port, ...]
    arch: ArchSpec
    options: CompileOptions

    @property
    def room(self) -> int:
        """Scratchpad bytes a partition that tiling may plan with."""
        return int(self.arch.partition_bytes(self.arch.scratchpad) * self.options.scratch_share)

    @property
    def slots(self) -> int:
        """Slots of a streamed tile."""
        return 2 if self.options.double_buffer else 1

    def too_small(self, what: str, need: int) -> Infeasible:
        """The shortfall of a scratchpad that must hold `need` bytes a partition, of `what`."""
        memory = self.arch.scratchpad
        total = need * self.arch.partitions(memory) + self.arch.memories[memory].reserved
        fix, terms = f"memories.{memory}.capacity >= {total} B", ((f"{self.name}: {what}", need),)
        code, unit = "scratchpad-capacity", "B per partition"
        return Infeasible(Shortfall(code, memory, need, self.room, unit, terms, fix))


def base_block(arch: ArchSpec) -> int:
    """Features a partition block: what both sides of the array can take."""
    return min(
        arch.array.rows, arch.array.cols, arch.partitions(arch.scratchpad), arch.partitions(arch.accumulator)
    )


def head_block(arch: ArchSpec, head_dim: int) -> int:
    """Block of a value cut in heads: the largest divisor of a head that fits, so heads start at 0."""
    return max(d for d in range(1, min(head_dim, base_block(arch)) + 1) if head_dim % d == 0)


def turned_block(arch: ArchSpec, extent: int, dtype: str) -> int:
    """Block of a value that the array turns: the largest divisor of `extent` that fits it and one bank."""
    bank = max(1, arch.bank_bytes(arch.accumulator) // dtype_bytes(dtype))
    most = min(base_block(arch), bank, arch.array.moving_max)
    return max(d for d in range(1, min(extent, most) + 1) if extent % d == 0)


def bank_pitch(arch: ArchSpec, elements: int, itemsize: int) -> int:
    """Distance of rows of `elements` in the accumulators such that none straddles two banks."""
    bank = arch.bank_bytes(arch.accumulator) // itemsize
    if elements > bank:
        return -(-elements // bank) * bank
    share = bank
    while share % 2 == 0 and share // 2 >= elements:
        share //= 2
    return share


def grouped(limit: int, block: int) -> int:
    """The largest multiple of `block` within `limit`: several blocks share one tile."""
    return max(1, limit // block) * block


@dataclass(frozen=True, slots=True)
class LinearPorts:
    """The operands of a `Linear` op by meaning."""

    x: Port
    weights: tuple[Port, ...]
    gain: Port | None
    beta: Port | None
    bias: Port | None
    residual: Port | None
    out: Port

    @classmethod
    def of(cls, site: Site) -> LinearPorts:
        """Name the operands of `site`."""
        named = dict(zip(site.op.roles, site.inputs, strict=True))
        return cls(
            x=named["x"],
            weights=tuple(named[role] for role in ("w", "w_up") if role in named),
            gain=named.get("gain"),
            beta=named.get("beta"),
            bias=named.get("b"),
            residual=named.get("r"),
            out=site.outputs[0],
        )

    def with_x(self, x: Port) -> LinearPorts:
        """The same layer on an x that is already normalised."""
        return LinearPorts(x, self.weights, None, None, self.bias, self.residual, self.out)
