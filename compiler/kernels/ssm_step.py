"""One position of the selective scan: the state streams by once, states n on partitions.

What comes in is `delta x B`: the array turns a column of `delta x`, again and again the same one, into a row
on every partition, where B is a factor a partition. What comes out is a product with C that contracts over n.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from arch_configs.spec import ArchSpec
from compiler.builder import Builder, Range, Tensor
from compiler.ir.dtype import dtype_bytes
from compiler.ir.graph import Node, TensorType
from compiler.ir.layout import Layout, feature_blocked
from compiler.isa import Affine
from compiler.kernels.site import Port, Site, bank_pitch, base_block, turned_block
from compiler.kernels.strips import blocked
from compiler.kernels.transpose import check_rows
from compiler.kernels.wants import PLAIN, Fixed, Kernel, Want
from compiler.ops.ssm import SsdStep


def _feature_block(arch: ArchSpec, op: SsdStep, dtype: str) -> int:
    """Features a block: some whole heads of one group, or a divisor of a head."""
    own = turned_block(arch, op.head_dim, dtype)
    if own < op.head_dim:
        return own
    each = op.heads // op.groups
    most = min(base_block(arch), arch.bank_bytes(arch.accumulator) // dtype_bytes(dtype))
    most = min(most, arch.array.moving_max) // op.head_dim
    return op.head_dim * max(n for n in range(1, max(1, most) + 1) if each % n == 0)


def state_layout(block: int) -> Layout:
    """[batch, features, state] stored as [state in block, batch, block, features]."""
    return Layout(((2, block),), (3, 0, 2, 1))


def _wants(node: Node, types: Mapping[str, TensorType], arch: ArchSpec) -> tuple[Want, ...]:
    op = node.op
    assert isinstance(op, SsdStep)
    dtype = types[node.inputs[1]].dtype
    block = turned_block(arch, op.state, dtype)
    x, state = Fixed(feature_blocked(_feature_block(arch, op, dtype))), Fixed(state_layout(block))
    return (state, x, PLAIN, Fixed(feature_blocked(block)), PLAIN, PLAIN, PLAIN, x, state)


@dataclass(frozen=True, slots=True)
class _Fixed:
    """Vectors of the heads, on chip for all sequences: rows on the states' partitions, or along features."""

    rate: Tensor  # [states, heads] -exp(a_log)
    shift: Tensor  # [states, heads]
    feature_shift: Tensor  # [features, blocks]
    skip: Tensor  # [features, blocks]


@dataclass(frozen=True, slots=True)
class _Here:
    """Some sequences on chip."""

    x: Tensor  # [features, blocks, sequences]
    scaled: Tensor  # x delta
    skipped: Tensor  # x d
    decay: Tensor  # [states, sequences, heads]
    mixed: Tensor  # [states, 2 * groups * blocks, sequences] B, then C
    y: Tensor


@dataclass(frozen=True, slots=True)
class _Step:
    b: Builder
    site: Site
    op: SsdStep

    @property
    def block(self) -> int:
        """Features a block."""
        return self.site.inputs[1].block

    @property
    def bank(self) -> int:
        """Elements of an accumulator bank."""
        arch = self.site.arch
        return arch.bank_bytes(arch.accumulator) // dtype_bytes(self.site.inputs[1].type.dtype)

    @property
    def states(self) -> int:
        """States a block."""
        return self.site.inputs[3].block

    def _tile(self, name: str, *shape: int, dtype: str = "fp32") -> Tensor:
        return self.b.scratch(shape, dtype, slots=self.site.slots, name=name)

    def along(self, name: str, rows: Tensor, dtype: str) -> Tensor:
        """`rows` [..., heads] in DRAM as [features, ..., blocks]: each head's value on all its features."""
        b, width, block = self.b, self.op.head_dim, self.block
        each, pieces = max(1, block // width), max(1, width // block)
        heads = self.op.heads // each
        tile = self._tile(name, block, *rows.shape[:-1], heads * pieces, dtype=dtype)
        lead = (slice(None),) * (len(rows.shape) - 1)
        for j in range(each):
            for piece in range(pieces):
                height = min(width, block)
                target = tile[((j * height, height), *lead, (piece, heads, pieces))]
                source = rows.repeat(0, height)[(slice(None), *lead, (j, heads, each))]
                b.dma(target, source, "aux")
        return tile

    def fixed(self) -> _Fixed:
        """Load what all sequences share."""
        b, (a_log, dt_bias, d) = self.b, self.site.inputs[4:]
        dtype = a_log.type.dtype
        raw, shift = (self._rows(port) for port in (a_log, dt_bias))
        rate = self._tile("rate", *raw.shape)
        b.activate(rate[:], raw[:], "exp")
        b.tensor_scalar(rate[:], rate[:], "multiply", -1.0)
        along = (self.along(name, p.tensor, dtype) for name, p in (("bias", dt_bias), ("d", d)))
        return _Fixed(rate, shift, *along)

    def _rows(self, port: Port) -> Tensor:
        tile = self._tile("row", self.states, self.op.heads, dtype=port.type.dtype)
        self.b.dma(tile[:], port.tensor.repeat(0, self.states)[:], "aux")
        return tile

    def load(self, part: Range, fixed: _Fixed) -> _Here:
        """What some sequences bring, made ready."""
        b, (_, x, dt, mixed, *_) = self.b, self.site.inputs
        dtype, columns = x.type.dtype, (part.start, part.size)
        shape = (self.block, x.tensor.shape[1], part.size)
        held, scaled, y = (self._tile(name, *shape, dtype=dtype) for name in ("x", "scaled", "y"))
        skipped = self._tile("skipped", *shape)
        b.dma(held[:], blocked(x)[:, :, columns], "input")
        rows = dt.tensor.part(0, part.start, part.size)
        delta = self._softplus(self.along("delta", rows, dtype), fixed.feature_shift.repeat(1, part.size))
        b.tensor_tensor(scaled[:], held[:], delta.permute(0, 2, 1)[:], "multiply")
        b.tensor_tensor(skipped[:], held[:], fixed.skip.stretch(part.size)[:], "multiply")
        raw = self._tile("dt", self.states, part.size, self.op.heads, dtype=dtype)
        b.dma(raw[:], rows.repeat(0, self.states)[:], "aux")
        decay = self._softplus(raw, fixed.shift.repeat(1, part.size))
        b.tensor_tensor(decay[:], decay[:], fixed.rate.repeat(1, part.size)[:], "multiply")
        b.activate(decay[:], decay[:], "exp")
        both = self._tile("bc", self.states, mixed.tensor.shape[1], part.size, dtype=dtype)
        b.dma(both[:], blocked(mixed)[:, :, columns], "input")
        return _Here(held, scaled, skipped, decay, both, y)

    def _softplus(self, raw: Tensor, shift: Tensor) -> Tensor:
        delta = self._tile("step", *raw.shape)
        self.b.tensor_tensor(delta[:], raw[:], shift[:], "add")
        self.b.activate(delta[:], delta[:], "softplus")
        return delta

    def heads(
        self, here: _Here, which: tuple[Affine, Affine], heads: Range, group: Affine, at_once: int
    ) -> None:
        """The state of some heads of one sequence: number `which` of all, and of those here."""
        b, op, (whole, n) = self.b, self.op, which
        width, dtype, count = heads.size * op.head_dim, here.x.dtype, op.state // self.states
        at = (heads.start * op.head_dim, width)
        old, new = (self._tile(name, self.states, count, width, dtype=dtype) for name in ("state", "next"))
        b.dma(old[:], self.site.inputs[0].tensor.pick(1, whole)[:, :, at], "weight")
        kept = self._tile("kept", self.states, count, width)
        decay = here.decay.pick(1, n).stretch(op.head_dim)[:, (heads.start, heads.size)]
        for i in range(count):
            target, source = (tile.pick(1, i).split(1, op.head_dim)[:] for tile in (kept, old))
            b.tensor_tensor(target, source, decay, "multiply")
        for h in b.tiles(heads.size, at_once, "hh"):
            own = Range(h.start * op.head_dim, h.size * op.head_dim, h.index)
            self._blocks(here, n, (heads.start * op.head_dim + own.start, group), (kept, new), own)
        b.dma(self.site.outputs[1].tensor.pick(1, whole)[:, :, at], new[:], "output")

    def _blocks(
        self, here: _Here, n: Affine, where: tuple[Affine, Affine], tiles: tuple[Tensor, Tensor], own: Range
    ) -> None:
        """Some blocks of features, `own` in the tiles: what comes in is added, and their y."""
        b, (kept, new), (first, group) = self.b, tiles, where
        block, blocks, count = self.block, own.size // self.block, kept.shape[1]
        dtype, slots = here.x.dtype, self.site.slots
        pitch = bank_pitch(self.site.arch, block, dtype_bytes(dtype)) if blocks * block > self.bank else block
        rows = b.accumulator((self.states, blocks, pitch), dtype=dtype, slots=slots, name="rows")
        added = rows[:, :, (0, block)]
        for j in b.tiles(blocks, 1, "j"):
            column = here.scaled.pick(1, first // block + j.start).pick(1, n).stretch(self.states)
            b.transpose(rows[:, j.start, (0, block)], column[:])
        total = b.accumulator((block, blocks), slots=slots, name="y")
        for i in range(count):
            entering, leaving = (
                here.mixed.pick(1, (group + side) * count + i)[:, (n, 1)] for side in (0, self.op.groups)
            )
            target, source = (
                tile.pick(1, i).part(1, own.start, own.size).split(1, block)[:] for tile in (new, kept)
            )
            b.tensor_tensor(target, added, source, "add", scale=entering)
            for j in b.tiles(blocks, 1, "k"):
                part = new[:, i, (own.start + j.start * block, block)]
                b.matmul(total[:, (j.start, 1)], part, leaving, reset=None if i else ())
        place = (slice(None), (first // block, blocks), n)
        b.tensor_tensor(here.y[place], here.skipped[place], total[:], "add")


def ssd_step(b: Builder, site: Site) -> None:
    """Lower an `SsdStep` op."""
    op, out = site.op, site.outputs[0]
    assert isinstance(op, SsdStep)
    check_rows(site, out.type.dtype)
    step = _Step(b, site, op)
    fixed, each = step.fixed(), op.heads // op.groups
    size, count = dtype_bytes(out.type.dtype), op.state // step.states
    bank = site.arch.bank_bytes(site.arch.accumulator) // size // op.head_dim
    at_once = _heads_at_once(step, each, bank)
    room = site.room // 2 // (op.head_dim * count * (2 * size + 4) * site.slots)
    for part in b.tiles(out.type.shape[0], _batch_at_once(site, op), "part"):
        here = step.load(part, fixed)
        for g in b.tiles(op.groups, 1, "g"):
            for h in b.tiles(each, _heads_at_once(step, each, room), "h"):
                heads = Range(g.start * each + h.start, h.size, h.index)
                for n in b.tiles(part.size, 1, "n"):
                    which = (part.start + n.start, n.start)
                    step.heads(here, which, heads, g.start, min(at_once, h.size))
        b.dma(blocked(out)[:, :, (part.start, part.size)], here.y[:], "output")


def _heads_at_once(step: _Step, each: int, most: int) -> int:
    """Heads that fit, in whole blocks: a divisor of those of a group."""
    whole = max(1, step.block // step.op.head_dim)
    return max(n for n in range(whole, each + 1, whole) if each % n == 0 and n <= max(whole, most))


def _batch_at_once(site: Site, op: SsdStep) -> int:
    """Sequences whose operands fit a quarter of the scratchpad."""
    size, block = dtype_bytes(site.inputs[1].type.dtype), site.inputs[1].block
    mixed = 2 * op.groups * op.state // site.inputs[3].block
    each = (op.features // block * (4 * size + 8) + op.heads * (size + 4) + mixed * size) * site.slots
    return max(1, min(site.inputs[1].type.shape[0], site.room // 4 // each))


SSD_STEP = Kernel(_wants, ssd_step)
