"""How to tile a linear layer: which operand stays on chip, and how large the blocks are."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial

from arch_configs.spec import ArchSpec
from compiler.allocation import aligned
from compiler.builder import Builder
from compiler.decisions import decide
from compiler.errors import Infeasible, Shortfall
from compiler.ir.dtype import dtype_bytes
from compiler.isa import Access, Copy
from compiler.kernels.norm import normalise_bytes
from compiler.kernels.site import LinearPorts, Site, grouped
from compiler.ops.matmul import Linear

SLOTS = 3  # of a streamed tile where time is equal: one ahead evens out what other transfers take away


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

    @property
    def token_tile(self) -> int:
        """Tokens a tile: the side that no DRAM layout fixes."""
        return self.m_tile if self.weight_is_stationary else self.s_tile

    def with_token_tile(self, tokens: int) -> Shape:
        """The same problem in tiles of fewer tokens."""
        if self.weight_is_stationary:
            return replace(self, m_tile=tokens)
        return replace(self, s_tile=tokens)


@dataclass(frozen=True, slots=True)
class Plan:
    """`hold` is the operand that stays on chip ('s', 'm' or 'sums'); block sizes in elements."""

    hold: str
    s_block: int
    m_block: int
    k_block: int  # k tiles loaded at once
    slots: int  # copies of each streamed tile


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


def choose(site: Site, shape: Shape, b: Builder, *, needs_norm: bool) -> tuple[Shape, Plan] | None:
    """The plan with the least estimated time that fits; None if x must be held whole and cannot be.

    Of plans within `traffic_slack` of the least time, the one that moves fewest DRAM bytes; ties go to
    `SLOTS` slots, then to the one that needs less memory, then to the first. Where nothing fits, tiles hold
    fewer tokens. Raises Infeasible if not even the smallest tiles fit.
    """
    if needs_norm and shape.k_tile > site.arch.array.cols:
        return None  # the sums of squares would not fit on as many partitions
    while True:
        plans = list(_candidates(site, shape, needs_norm))
        needs = [scratch_bytes(site, shape, plan, needs_norm) for plan in plans]
        fitting = [
            (estimate(b, site, shape, plan), traffic_bytes(shape, plan), abs(plan.slots - SLOTS), need, i)
            for i, (plan, need) in enumerate(zip(plans, needs, strict=True))
            if need <= site.room and _sums_fit(site, shape, plan)
        ]
        if fitting:
            best = min(fitting)[0]
            most = max(best, int(best * (1 + site.options.traffic_slack)))
            taken = min((found[1:], found[0]) for found in fitting if found[0] <= most)
            chosen = (taken[1], plans[taken[0][-1]])
            timed = [(found[0], plans[found[-1]]) for found in fitting]
            b.graph.decisions.append(
                decide(site.name, "tiles", timed, chosen, len(plans), partial(say, shape))
            )
            return shape, chosen[1]
        if needs_norm:
            return None
        if shape.token_tile == 1:
            held = [need for plan, need in zip(plans, needs, strict=True) if _sums_fit(site, shape, plan)]
            raise site.too_small("smallest tiles", min(held)) if held else _too_few_sums(site, shape)
        shape = shape.with_token_tile(shape.token_tile // 2)


def say(shape: Shape, plan: Plan) -> str:
    """A plan in words: what stays on chip, and blocks as k x stationary x moving."""
    weight, tokens = ("stationary", "moving") if shape.weight_is_stationary else ("moving", "stationary")
    held = {"s": "stationary", "m": "moving"}.get(plan.hold, "")
    kept = {weight: "weights held", tokens: "tokens held"}.get(held, "sums held")
    k = min(shape.k, plan.k_block * shape.k_tile)
    sides = f"{min(shape.s, plan.s_block)} x {min(shape.m, plan.m_block)}"
    return f"{kept}, weight {weight}, blocks k {k} x {sides}"


def traffic_bytes(shape: Shape, plan: Plan) -> int:
    """DRAM bytes that a plan moves, the operand that is not held loaded again for every block."""
    s_copies, m_copies = _copies(shape)
    s_blocks, m_blocks = count_of(shape.s, plan.s_block), count_of(shape.m, plan.m_block)
    s_times = 1 if plan.hold == "s" else m_blocks
    m_times = 1 if plan.hold == "m" else s_blocks
    loads = shape.k * (shape.s * s_copies * s_times + shape.m * m_copies * m_times)
    return (loads + shape.s * shape.m) * shape.itemsize


def _candidates(site: Site, shape: Shape, needs_norm: bool) -> Iterator[Plan]:
    x_side = "m" if shape.weight_is_stationary else "s"
    whole = shape.k_tiles
    for slots in (2, 3, 4) if site.options.double_buffer else (1,):
        for s_block in _block_sizes(shape.s, shape.s_tile):
            for m_block in _block_sizes(shape.m, shape.m_tile):
                for hold in ("m", "s"):
                    if not needs_norm or hold == x_side:
                        yield Plan(hold, s_block, m_block, whole, slots)
                k_block = 1
                while k_block < whole and not needs_norm:
                    yield Plan("sums", s_block, m_block, k_block, slots)
                    k_block *= 2


def count_of(extent: int, block: int) -> int:
    """Blocks that cover `extent`, the last may be short."""
    return -(-extent // block)


def _copies(shape: Shape) -> tuple[int, int]:
    """How many tensors the stationary and the moving side bring (two for a gated weight)."""
    return (shape.weights, 1) if shape.weight_is_stationary else (1, shape.weights)


def held_slots(shape: Shape, plan: Plan, *, norm: bool) -> tuple[int, int]:
    """Slots of the stationary and of the moving tiles: the held one needs several only if it changes.

    With a fused norm one block is normalised while one is multiplied and the next one loads.
    """
    held = min(3 if norm else 2, plan.slots + norm)
    s_held = held if count_of(shape.s, plan.s_block) > 1 else 1
    m_held = held if count_of(shape.m, plan.m_block) > 1 else 1
    return (s_held if plan.hold == "s" else plan.slots), (m_held if plan.hold == "m" else plan.slots)


def scratch_bytes(site: Site, shape: Shape, plan: Plan, norm: bool) -> int:
    """Scratchpad bytes a partition that the plan's tiles need; each slot starts aligned."""
    op = site.op
    assert isinstance(op, Linear)
    size, (s_copies, m_copies), (s_slots, m_slots) = (
        shape.itemsize,
        _copies(shape),
        held_slots(shape, plan, norm=norm),
    )
    s_tile, m_tile = (aligned(plan.k_block * size * block) for block in (plan.s_block, plan.m_block))
    operands = s_tile * s_copies * s_slots + m_tile * m_copies * m_slots
    result = aligned(count_of(plan.s_block, shape.s_tile) * plan.m_block * size)
    out = result * min(2, plan.slots) * (1 + op.residual)
    temporary = 2 * 4 * shape.m_tile if (op.gated or op.bias or op.activation) else 0
    x_block = plan.m_block if shape.weight_is_stationary else plan.s_block
    extra = normalise_bytes(x_block, shape.k_tiles) if norm else 0
    return operands + out + temporary + extra + (4 * count_of(shape.s, shape.s_tile) if op.bias else 0)


def _sums_fit(site: Site, shape: Shape, plan: Plan) -> bool:
    memory = site.arch.accumulator
    bank = site.arch.bank_bytes(memory)
    if shape.m_tile * 4 > bank:
        return False
    if plan.hold != "sums":
        return site.arch.memories[memory].banks * bank >= shape.weights * shape.m_tile * 4
    per_row = count_of(plan.m_block, shape.m_tile) * bank
    return count_of(plan.s_block, shape.s_tile) * per_row * shape.weights <= site.arch.partition_bytes(memory)


def _stretched(site: Site, nbytes: int, run: int) -> int:
    """Bytes as the DMA engines feel them: runs shorter than a descriptor cost as much as one."""
    least = site.arch.dma.descriptor_bytes
    return nbytes if run >= least else nbytes * least // max(1, run)


def _block_bytes(site: Site, shape: Shape, plan: Plan) -> tuple[int, int]:
    """Felt bytes of one block of the stationary and of the moving operand."""
    size, (s_copies, m_copies) = shape.itemsize, _copies(shape)
    k = min(shape.k, plan.k_block * shape.k_tile)
    tile = shape.s_tile if shape.weight_is_stationary else shape.m_tile
    runs = [plan.k_block * tile * size, (plan.m_block if shape.weight_is_stationary else plan.s_block) * size]
    s_run, m_run = runs if shape.weight_is_stationary else runs[::-1]
    s_bytes = k * min(plan.s_block, shape.s) * s_copies * size
    m_bytes = k * min(plan.m_block, shape.m) * m_copies * size
    return _stretched(site, s_bytes, s_run), _stretched(site, m_bytes, m_run)


def _array_ps(b: Builder, site: Site, shape: Shape, chain: int) -> int:
    """Array time of all matmuls; `chain` k tiles are on chip at once."""
    dtype = site.inputs[0].type.dtype
    tiles = count_of(shape.s, shape.s_tile) * shape.k_tiles * shape.weights
    whole, rest = divmod(shape.m, shape.m_tile)
    total = b.cost.matmul_ps(shape.m_tile, dtype, tiles * whole, chain)
    return total + (b.cost.matmul_ps(rest, dtype, tiles, chain) if rest else 0)


def _eviction_ps(b: Builder, site: Site, shape: Shape) -> int:
    """Time to take one tile of sums out of the accumulators, on the fastest engine that reaches them."""
    dims = ((1, shape.m_tile),)
    sums = Access("sums", "fp32", dims, partitions=shape.s_tile)
    out = Access("out", site.outputs[0].type.dtype, dims, partitions=shape.s_tile)
    copy, kinds = Copy(dst=out, src=sums), {"sums": "accumulator", "out": "scratchpad"}
    able = [n for n, e in site.arch.vectors.items() if site.arch.accumulator in e.reads and "copy" in e.ops]
    return min((b.cost.vector_ps(copy, name, kinds) for name in able), default=0)


def estimate(b: Builder, site: Site, shape: Shape, plan: Plan) -> int:
    """Picoseconds: steady state of the innermost block, times blocks, plus what nothing hides.

    A block takes as long as the slowest of: its matmuls, taking its sums out, its share of all transfers,
    starting its transfer, and the round trip from asking for a block until its slot is free, over the slots.
    Sums that stay in the accumulators over all k blocks are taken out while the array waits.
    """
    dma = site.arch.dma
    s_blocks, m_blocks = count_of(shape.s, plan.s_block), count_of(shape.m, plan.m_block)
    s_bytes, m_bytes = _block_bytes(site, shape, plan)
    k_blocks = count_of(shape.k_tiles, plan.k_block) if plan.hold == "sums" else 1
    blocks = s_blocks * m_blocks * k_blocks
    s_loads = s_blocks if plan.hold == "s" else blocks
    m_loads = m_blocks if plan.hold == "m" else blocks
    out = shape.s * shape.m * shape.itemsize
    moved = b.cost.transfer_ps(s_loads * s_bytes + m_loads * m_bytes + out)
    compute = _array_ps(b, site, shape, plan.k_block)
    streamed = b.cost.transfer_ps((s_bytes if plan.hold != "s" else 0) + (m_bytes if plan.hold != "m" else 0))
    starts = dma.issue * (2 if shape.k % shape.k_tile and shape.k > shape.k_tile else 1)  # short tile apart
    delay = starts + dma.latency + dma.completion
    round_trip = -(-(delay + streamed + compute // blocks) // plan.slots)
    evict = _eviction_ps(b, site, shape) * shape.weights
    evict *= count_of(shape.s, shape.s_tile) * count_of(shape.m, shape.m_tile)
    beside, behind = (0, evict) if plan.hold == "sums" else (evict, 0)
    period = max(compute // blocks, beside // blocks, moved // blocks, starts, round_trip)
    first = b.cost.transfer_ps(s_bytes + m_bytes)
    last = b.cost.transfer_ps(min(plan.s_block, shape.s) * min(plan.m_block, shape.m) * shape.itemsize)
    return period * blocks + behind + first + last + 2 * delay


def _too_few_sums(site: Site, shape: Shape) -> Infeasible:
    """The shortfall of accumulators that do not hold the sums of the smallest tiles."""
    arch, memory = site.arch, site.arch.accumulator
    spec, need = arch.memories[memory], shape.m_tile * 4 * shape.weights
    fix = f"memories.{memory}.capacity >= {need * arch.partitions(memory) * spec.banks + spec.reserved} B"
    terms, have = ((f"{site.name}: smallest tiles", need),), arch.bank_bytes(memory)
    return Infeasible(Shortfall("accumulator-capacity", memory, need, have, "B per bank", terms, fix))
