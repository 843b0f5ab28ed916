"""One position of the selective scan: the state streams by once, on the vector engines."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from arch_configs.spec import ArchSpec
from compiler.builder import Builder, Range, Tensor
from compiler.ir.dtype import dtype_bytes
from compiler.ir.graph import Node, TensorType
from compiler.ir.layout import ROW_MAJOR, Layout, feature_blocked
from compiler.isa import Affine
from compiler.kernels.conv1d import stretched
from compiler.kernels.site import Site, head_block
from compiler.kernels.strips import blocked
from compiler.kernels.transpose import check_rows
from compiler.kernels.wants import Fixed, Kernel, Want
from compiler.ops.ssm import SsdStep

_PLAIN = Fixed(ROW_MAJOR)
AT_ONCE = 16 * 1024  # bytes a partition of a tile of the state; assumed


def state_layout(block: int) -> Layout:
    """[batch, features, state] stored as [feature in block, batch, block, state]."""
    return Layout(((1, block),), (2, 0, 1, 3))


def _wants(node: Node, types: Mapping[str, TensorType], arch: ArchSpec) -> tuple[Want, ...]:
    op = node.op
    assert isinstance(op, SsdStep)
    block = head_block(arch, op.head_dim)
    x, state = Fixed(feature_blocked(block)), Fixed(state_layout(block))
    mixed = Fixed(feature_blocked(head_block(arch, op.state)))
    return (state, x, _PLAIN, mixed, _PLAIN, _PLAIN, _PLAIN, x, state)


@dataclass(frozen=True, slots=True)
class _Step:
    """Fixed tiles: rates, shifts and d [block, heads]; x and y [block, blocks, batch]; B and C."""

    b: Builder
    site: Site
    op: SsdStep
    block: int
    rate: Tensor
    shift: Tensor
    skip: Tensor
    x: Tensor
    y: Tensor
    mixed: Tensor  # [state block, 2 * groups * state blocks, batch]

    def delta(self, n: Affine) -> tuple[Tensor, Tensor]:
        """delta and the decay of every head, on all partitions: [block, heads]."""
        b, shape = self.b, self.rate.shape
        dt = self.site.inputs[2]
        raw = b.scratch(shape, dt.type.dtype, slots=self.site.slots, name="dt")
        b.dma(raw[:], dt.tensor.pick(0, n).repeat(0, self.block)[:], "aux")
        delta, decay = (b.scratch(shape, "fp32", slots=self.site.slots, name=k) for k in ("delta", "decay"))
        b.tensor_tensor(delta[:], raw[:], self.shift[:], "add")
        b.activate(delta[:], delta[:], "softplus")
        b.tensor_tensor(decay[:], delta[:], self.rate[:], "multiply")
        b.activate(decay[:], decay[:], "exp")
        return delta, decay

    def rows(self, n: Affine) -> Tensor:
        """B of all groups, then C, on all partitions: [block, 2 * groups, state]."""
        b, (part, count, _) = self.b, self.mixed.shape
        dtype = self.mixed.dtype
        tile = b.scratch((self.block, count, part), dtype, slots=self.site.slots, name="rows")
        for i in b.tiles(count, 1, "i"):
            turned = b.accumulator((self.block, part), dtype=dtype, slots=self.site.slots, name="turned")
            column = stretched(self.mixed.pick(1, i.start).pick(1, n), self.block)
            b.transpose(turned[:], column[:])  # one column again and again: the same row on every partition
            b.copy(tile[:, i.start], turned[:])
        return tile.split(1, count // (2 * self.op.groups))

    def sequence(self, before: Affine, n: Affine, at_once: int) -> None:
        """One sequence, `n` of those whose x is here, `before` in front of them."""
        b, op = self.b, self.op
        fixed, each = (*self.delta(before + n), self.rows(n)), op.heads // op.groups
        for g in b.tiles(op.groups, 1, "g"):
            for h in b.tiles(each, at_once, "h"):
                heads = Range(g.start * each + h.start, h.size, h.index)
                self._heads((before + n, n), heads, g.start, fixed)

    def _heads(
        self, which: tuple[Affine, Affine], heads: Range, group: Affine, fixed: tuple[Tensor, ...]
    ) -> None:
        """The state of some heads of one sequence: number `which` of all, and of those here."""
        b, op, site = self.b, self.op, self.site
        (whole, n), first, count = which, heads.start, heads.size
        delta, decay, rows = fixed
        blocks = op.head_dim // self.block
        at, shape = (first * blocks, count * blocks), (self.block, count, blocks, op.state)
        held = b.scratch(shape, self.x.dtype, slots=site.slots, name="state")
        source = site.inputs[0].tensor.pick(1, whole)
        b.dma(held.merge(1)[:], source[:, at], "input")
        fresh, part = (b.scratch(shape, "fp32", slots=site.slots, name=k) for k in ("fresh", "part"))
        mine = (first, count)
        wide = stretched(stretched(decay, blocks), op.state)
        b.tensor_tensor(fresh[:], held[:], wide[:, mine], "multiply")
        x = self.x.pick(2, n).split(1, blocks)
        scaled = b.scratch(shape[:3], "fp32", slots=site.slots, name="scaled")
        b.tensor_tensor(scaled[:], x[:, mine], stretched(delta, blocks)[:, mine], "multiply")
        row = rows.merge(2).pick(1, group).repeat(1, blocks).repeat(1, count)
        b.tensor_tensor(part[:], stretched(scaled, op.state)[:], row[:], "multiply")
        result = b.scratch(shape, self.x.dtype, slots=site.slots, name="result")
        b.tensor_tensor(result[:], fresh[:], part[:], "add")
        b.dma(site.outputs[1].tensor.pick(1, whole)[:, at], result.merge(1)[:], "output")
        row = rows.merge(2).pick(1, group + op.groups).repeat(1, blocks).repeat(1, count)
        b.tensor_tensor(part[:], result[:], row[:], "multiply")
        total = b.scratch(shape[:3], "fp32", slots=site.slots, name="total")
        b.reduce(total[:], part[:], "add")
        b.tensor_tensor(scaled[:], x[:, mine], stretched(self.skip, blocks)[:, mine], "multiply")
        b.tensor_tensor(self.y.pick(2, n).split(1, blocks)[:, mine], scaled[:], total[:], "add")


def ssd_step(b: Builder, site: Site) -> None:
    """Lower an `SsdStep` op."""
    op = site.op
    assert isinstance(op, SsdStep)
    _, x, _, mixed, a_log, dt_bias, d = site.inputs
    dtype, block = x.type.dtype, x.block
    check_rows(site, dtype)
    shape = (block, op.heads)
    raw, shift, skip = (b.scratch(shape, dtype, name=k) for k in ("a", "bias", "d"))
    for tile, port in ((raw, a_log), (shift, dt_bias), (skip, d)):
        b.dma(tile[:], port.tensor.repeat(0, block)[:], "aux")
    rate = b.scratch(shape, "fp32", name="rate")
    b.activate(rate[:], raw[:], "exp")
    b.tensor_scalar(rate[:], rate[:], "multiply", -1.0)
    each = op.heads // op.groups
    size = op.head_dim // block * op.state * (2 * dtype_bytes(dtype) + 8) * site.slots
    at_once = max(1, min(each, AT_ONCE * 2 // size, site.room // 2 // size))
    for part in b.tiles(x.type.shape[0], _batch_at_once(site, op, block), "part"):
        columns = (part.start, part.size)
        held = b.scratch((block, x.tensor.shape[1], part.size), dtype, slots=site.slots, name="x")
        b.dma(held[:], blocked(x)[:, :, columns], "input")
        both = b.scratch((mixed.block, mixed.tensor.shape[1], part.size), dtype, slots=site.slots, name="bc")
        b.dma(both[:], blocked(mixed)[:, :, columns], "input")
        y = b.scratch(held.shape, dtype, slots=site.slots, name="y")
        for n in b.tiles(part.size, 1, "n"):
            step = _Step(b, site, op, block, rate, shift, skip, held, y, both)
            step.sequence(part.start, n.start, at_once)
        b.dma(blocked(site.outputs[0])[:, :, columns], y[:], "output")


def _batch_at_once(site: Site, op: SsdStep, block: int) -> int:
    """Sequences whose x, y, B and C fit an eighth of the scratchpad."""
    size = dtype_bytes(site.inputs[1].type.dtype)
    each = 2 * (op.features // block + 2 * op.groups * op.state // site.inputs[3].block) * size * site.slots
    return max(1, min(site.inputs[1].type.shape[0], site.room // 8 // each))


SSD_STEP = Kernel(_wants, ssd_step)
