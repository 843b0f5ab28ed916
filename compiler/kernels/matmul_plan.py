"""How to tile a linear layer: which operand stays on chip, and how large the blocks are."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from arch_configs.spec import ArchSpec
from compiler.builder import Builder
from compiler.errors import Infeasible, Shortfall
from compiler.ir.dtype import dtype_bytes
from compiler.kernels.norm import normalise_bytes
from compiler.kernels.site import LinearPorts, Site, grouped
from compiler.ops.matmul import Linear


@dataclass(frozen=True, slots=True)
class Shape:
    """The problem in array terms; `s` is the stationary side, `m` the moving side."""

    k: int
    s: int
    m: int
    k_tile: int
    s_tile: int
    m_tile: int
    itemsize: int
    weights: int  # 2 if gated
    weight_is_stationary: bool

    @property
    def k_tiles(self) -> int:
        """Number of k tiles, the last may be short."""
        return -(-self.k // self.k_tile)


@dataclass(frozen=True, slots=True)
class Plan:
    """`hold` is the operand that stays on chip ('s', 'm' or 'sums'); block sizes in elements."""

    hold: str
    s_block: int
    m_block: int
    k_block: int  # k tiles loaded at once


def weight_tiles(arch: ArchSpec, k: int, n: int, x_block: int, out_block: int) -> tuple[int, int]:
    """(k tile, n tile) of a weight [k, n]: how it is blocked in DRAM.

    `out_block` 0: the result has rows on partitions, and the weight is the moving operand.
    """
    k_tile = grouped(arch.array.rows, x_block)
    moving = min(arch.array.moving_max, arch.bank_bytes(arch.accumulator) // 4)
    n_tile = grouped(arch.array.cols, out_block) if out_block else max(1, moving)
    return min(k_tile, -(-k // x_block) * x_block), min(
        n_tile, -(-n // max(1, out_block)) * max(1, out_block)
    )


def problem(site: Site, ports: LinearPorts) -> Shape:
    """Array terms of the op."""
    array = site.arch.array
    tokens, k = ports.x.type.shape
    n = ports.out.type.shape[1]
    k_tile, n_tile = weight_tiles(site.arch, k, n, ports.x.block, ports.out.block)
    bank = max(1, site.arch.bank_bytes(site.arch.accumulator) // 4)
    stationary = ports.out.block > 0
    return Shape(
        k=k,
        s=n if stationary else tokens,
        m=tokens if stationary else n,
        k_tile=k_tile,
        s_tile=n_tile if stationary else min(array.cols, tokens),
        m_tile=min(array.moving_max, bank, tokens) if stationary else n_tile,
        itemsize=dtype_bytes(ports.x.type.dtype),
        weights=len(ports.weights),
        weight_is_stationary=stationary,
    )


def _block_sizes(extent: int, tile: int) -> list[int]:
    """Candidate block sizes: a few tiles, doubling, up to all."""
    sizes, block = [], tile
    while block < extent:
        sizes.append(block)
        block *= 2
    return [*sizes, -(-extent // tile) * tile]


def choose(site: Site, shape: Shape, b: Builder, *, needs_norm: bool) -> Plan | None:
    """The plan with the least estimated time that fits; None if a held operand is needed and cannot be.

    Time is the larger of array and transfer time, plus the first blocks, which nothing hides.
    Raises Infeasible if not even the smallest tiles fit.
    """
    best: tuple[int, int, Plan] | None = None
    smallest: tuple[int, Plan] | None = None
    for plan in _candidates(shape, needs_norm):
        need = scratch_bytes(site, shape, plan, needs_norm)
        if smallest is None or need < smallest[0]:
            smallest = (need, plan)
        if need > site.arch.partition_bytes(site.arch.scratchpad) or not _sums_fit(site, shape, plan):
            continue
        time = _estimate(b, site, shape, plan)
        if best is None or (time, need) < best[:2]:
            best = (time, need, plan)
    if best is not None:
        return best[2]
    if needs_norm:
        return None
    assert smallest is not None
    raise _too_small(site, shape, *smallest)


def _candidates(shape: Shape, needs_norm: bool) -> Iterator[Plan]:
    held = "m" if shape.weight_is_stationary else "s"
    whole = shape.k_tiles
    for s_block in _block_sizes(shape.s, shape.s_tile):
        for m_block in _block_sizes(shape.m, shape.m_tile):
            for hold in ("m", "s"):
                if not needs_norm or hold == held:
                    yield Plan(hold, s_block, m_block, whole)
            if not needs_norm:
                k_block = 1
                while k_block < whole:
                    yield Plan("sums", s_block, m_block, k_block)
                    k_block *= 2


def _count(extent: int, block: int) -> int:
    return -(-extent // block)


def scratch_bytes(site: Site, shape: Shape, plan: Plan, norm: bool) -> int:
    """Scratchpad bytes a partition that the plan's tiles need."""
    size, slots = shape.itemsize, site.slots
    w_s, w_m = (shape.weights, 1) if shape.weight_is_stationary else (1, shape.weights)
    s_bytes = plan.k_block * plan.s_block * size * w_s
    m_bytes = plan.k_block * plan.m_block * size * w_m
    s_slots = slots if (plan.hold != "s" or _count(shape.s, plan.s_block) > 1) else 1
    m_slots = slots if (plan.hold != "m" or _count(shape.m, plan.m_block) > 1) else 1
    s_bytes, m_bytes = s_bytes * s_slots, m_bytes * m_slots
    tiles = _count(plan.s_block, shape.s_tile) * plan.m_block
    op = site.op
    assert isinstance(op, Linear)
    out = tiles * size * slots * (2 if op.residual else 1)
    temporary = 2 * 4 * shape.m_tile if (op.gated or op.bias or op.activation) else 0
    x_block = plan.m_block if shape.weight_is_stationary else plan.s_block
    extra = normalise_bytes(x_block, shape.k_tiles) if norm else 0
    return s_bytes + m_bytes + out + temporary + extra + 4 * _count(shape.s, shape.s_tile) + 1024


def _sums_fit(site: Site, shape: Shape, plan: Plan) -> bool:
    memory = site.arch.accumulator
    bank = site.arch.bank_bytes(memory)
    if shape.m_tile * 4 > bank:
        return False
    if plan.hold != "sums":
        return site.arch.memories[memory].banks * bank >= shape.weights * shape.m_tile * 4
    per_row = _count(plan.m_block, shape.m_tile) * bank
    return _count(plan.s_block, shape.s_tile) * per_row * shape.weights <= site.arch.partition_bytes(memory)


def _traffic(shape: Shape, plan: Plan) -> tuple[int, int]:
    """(bytes moved in all, bytes before the first matmul)."""
    size = shape.itemsize
    w_s, w_m = (shape.weights, 1) if shape.weight_is_stationary else (1, shape.weights)
    s_all, m_all = shape.k * shape.s * size * w_s, shape.k * shape.m * size * w_m
    s_times = 1 if plan.hold == "s" else _count(shape.m, plan.m_block)
    m_times = 1 if plan.hold == "m" else _count(shape.s, plan.s_block)
    k = min(shape.k, plan.k_block * shape.k_tile)
    first = k * (min(plan.s_block, shape.s) * w_s + min(plan.m_block, shape.m) * w_m) * size
    return s_all * s_times + m_all * m_times + shape.s * shape.m * size, first


def _estimate(b: Builder, site: Site, shape: Shape, plan: Plan) -> int:
    port = site.inputs[0]
    tiles = _count(shape.s, shape.s_tile) * shape.k_tiles * shape.weights
    whole, rest = divmod(shape.m, shape.m_tile)
    array = b.cost.matmul_ps(shape.m_tile, port.type.dtype, tiles * whole)
    if rest:
        array += b.cost.matmul_ps(rest, port.type.dtype, tiles)
    traffic, first = _traffic(shape, plan)
    blocks = _count(shape.s, plan.s_block) * _count(shape.m, plan.m_block)
    if plan.hold == "sums":
        blocks *= _count(shape.k_tiles, plan.k_block)
    dma = site.arch.dma
    last = min(plan.s_block, shape.s) * min(plan.m_block, shape.m) * shape.itemsize
    exposed = b.cost.transfer_ps(first + last) + dma.latency + dma.completion
    return max(array, b.cost.transfer_ps(traffic), blocks * dma.issue) + exposed


def _too_small(site: Site, shape: Shape, need: int, plan: Plan) -> Infeasible:
    memory = site.arch.scratchpad
    have = site.arch.partition_bytes(memory)
    if need <= have:
        memory, need = site.arch.accumulator, shape.m_tile * 4 * shape.weights
        have = site.arch.partition_bytes(memory)
        code = "accumulator-capacity"
    else:
        code = "scratchpad-capacity"
    total = need * site.arch.partitions(memory)
    fix = f"memories.{memory}.capacity >= {total + site.arch.memories[memory].reserved} B"
    terms = ((f"{site.name}: smallest tiles ({plan.s_block} x {plan.m_block}, k {plan.k_block})", need),)
    return Infeasible(Shortfall(code, memory, need, have, "B per partition", terms, fix))
