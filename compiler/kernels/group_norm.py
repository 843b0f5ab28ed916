"""Group norm with channels on partitions.

Sums of a channel are taken along its partition; sums of a group are a product with a matrix that says which
channel is in which group, for groups need not end where blocks of partitions do. Its transpose hands the
statistics back to the channels. Matrices are made on chip, by keeping a band of ones.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import prod

from compiler.builder import Builder, Range, Tensor
from compiler.errors import Infeasible, Shortfall
from compiler.ir.dtype import dtype_bytes
from compiler.isa import Affine
from compiler.kernels.move import load_vector
from compiler.kernels.site import Site
from compiler.kernels.strips import blocked, tile_counts
from compiler.kernels.wants import PLAIN, Features, Kernel, Same, always
from compiler.ops.image import GroupNorm


def group_norm(b: Builder, site: Site) -> None:
    """Lower `GroupNorm`: image by image, statistics first, then all channels once more."""
    op = site.op
    assert isinstance(op, GroupNorm)
    limit = min(site.arch.array.cols, site.arch.partitions(site.arch.accumulator), site.arch.array.rows)
    if op.groups > limit:
        fix = f"engines.{site.arch.tensor}.cols and rows >= {op.groups}"
        raise Infeasible(
            Shortfall(
                "group-count", site.arch.tensor, op.groups, limit, "groups", ((site.name, op.groups),), fix
            )
        )
    _Kernel(b, site, op).run()


@dataclass(slots=True)
class _Kernel:
    b: Builder
    site: Site
    op: GroupNorm
    pieces: list[tuple[int, int, int]] = field(init=False)  # (first block, blocks, channels of each)
    pixels: int = field(init=False)
    held: bool = field(init=False)  # an image stays on chip between the two passes
    step: int = field(init=False)  # pixels at once
    tables: list[tuple[Tensor, Tensor]] = field(init=False)

    def __post_init__(self) -> None:
        x = self.site.inputs[0]
        _, c, *size = x.type.shape
        self.pixels = prod(size)
        self.pieces = tile_counts(c, x.block)
        item = dtype_bytes(x.type.dtype)
        blocks = -(-c // x.block)
        room = self.site.room // self.site.slots - 8 * self.op.groups * blocks - 4096
        self.held = 3 * blocks * self.pixels * item <= room
        fits = max(1, room // (3 * item + 4))
        self.step = self.pixels if self.held else min(self.pixels, fits, max(1, 4096 // item))

    def run(self) -> None:
        """Constants, then every image."""
        b, block = self.b, self.site.inputs[0].block
        self.tables = [self._members(first, count, rows) for first, count, rows in self.pieces]
        gain, beta = (
            load_vector(b, port, port.type.shape[0], block, name)
            for port, name in zip(self.site.inputs[1:], ("gain", "beta"), strict=True)
        )
        for n in b.tiles(self.site.inputs[0].type.shape[0], 1, "n"):
            held = [
                self._load(n, 0, count, rows, first, None) for first, count, rows in self.pieces if self.held
            ]
            pair = self._statistics(n, held)
            for i, (first, count, rows) in enumerate(self.pieces):
                for k in b.tiles(count, 1, "k"):
                    scale, shift = self._per_channel(pair, i, k.start, rows, gain, beta, first)
                    for t in b.tiles(self.pixels, self.step, "t"):
                        self._apply(n, i, k, t, held, scale, shift)

    # ---- constants -------------------------------------------------------------------------------
    def _members(self, first: int, count: int, rows: int) -> tuple[Tensor, Tensor]:
        """[channels, blocks, groups] and [groups, blocks, channels]: 1 where the channel is of the group."""
        b, groups, block = self.b, self.op.groups, self.site.inputs[0].block
        per = self.site.inputs[0].type.shape[1] // groups
        into = b.scratch((rows, count, groups), "fp32", name="into")
        back = b.scratch((groups, count, rows), "fp32", name="back")
        b.memset(into[:], 1.0)
        b.memset(back[:], 1.0)
        for k in range(count):
            start = (first + k) * block
            for table, channel, group in ((into[:, k], 1, -per), (back[:, k], -per, 1)):
                # channel - per * group is from 0 to per - 1; partitions are `channel` apart, columns `group`
                b.affine_select(table, table, Affine(start), channel, group, 0.0)
                b.affine_select(table, table, Affine(per - 1 - start), -channel, -group, 0.0)
        return into, back

    # ---- statistics ------------------------------------------------------------------------------
    def _load(
        self, n: Range, start: Affine | int, count: int, rows: int, first: int, t: Range | None
    ) -> Tensor:
        """[channels, blocks, pixels] of an image: all of a piece, or `count` blocks of some pixels."""
        b, x = self.b, self.site.inputs[0]
        at, size = (0, self.pixels) if t is None else (t.start, t.size)
        tile = b.scratch((rows, count, size), x.type.dtype, slots=self.site.slots, name="x")
        source = blocked(x).split(2, self.pixels)
        b.dma(tile[:], source[(0, rows), (start + first, count), n.start, (at, size)], "input")
        return tile

    def _statistics(self, n: Range, held: list[Tensor]) -> Tensor:
        """Mean and 1 / deviation of each group, [groups, 2]."""
        b, groups = self.b, self.op.groups
        total = b.accumulator((groups, 2), slots=self.site.slots, name="total")
        started = False
        for i, (first, count, rows) in enumerate(self.pieces):
            into = self.tables[i][0]
            for k in b.tiles(count, 1, "k"):
                sums = self._sums(n, held[i] if held else None, k, rows, first)
                b.matmul(
                    total[:], into[:, k.start], sums[:], reset=None if started else (k.start,), model=False
                )
            started = True
        share = 1.0 / (self.pixels * (self.site.inputs[0].type.shape[1] // groups))
        pair = b.scratch((groups, 2), "fp32", slots=self.site.slots, name="pair")
        b.tensor_scalar(pair[:], total[:], "multiply", share)
        square = b.scratch((groups, 1), "fp32", slots=self.site.slots, name="square")
        mean, second = pair[:, (0, 1)], pair[:, (1, 1)]
        b.tensor_tensor(square[:], mean, mean, "multiply")
        b.tensor_tensor(second, second, square[:], "subtract")
        b.tensor_scalar(second, second, "max", 0.0, "add", self.op.eps)
        b.activate(second, second, "rsqrt")
        return pair

    def _sums(self, n: Range, held: Tensor | None, k: Range, rows: int, first: int) -> Tensor:
        """Sum and sum of squares of each channel of a block, [channels, 2]."""
        b, slots = self.b, self.site.slots
        sums = b.scratch((rows, 2), "fp32", slots=slots, name="sums")
        several = self.step < self.pixels
        if several:
            b.memset(sums[:], 0.0)
        for t in b.tiles(self.pixels, self.step, "s"):
            x = held[:, k.start] if held else self._load(n, k.start, 1, rows, first, t)[:, 0]
            part = b.scratch((rows, 2), "fp32", slots=slots, name="part") if several else sums
            squares = b.scratch((rows, t.size), "fp32", slots=slots, name="squares")
            b.reduce(part[:, (0, 1)], x, "add")
            b.activate(squares[:], x, "square", accumulate=part[:, (1, 1)])
            if several:
                b.tensor_tensor(sums[:], sums[:], part[:], "add")
        return sums

    # ---- the result ------------------------------------------------------------------------------
    def _per_channel(
        self, pair: Tensor, i: int, k: Affine, rows: int, gain: Tensor, beta: Tensor, first: int
    ) -> tuple[Tensor, Tensor]:
        """Factor and summand of each channel of a block, [channels, 1]."""
        b, slots = self.b, self.site.slots
        spread = b.accumulator((rows, 2), slots=slots, name="spread")
        b.matmul(spread[:], self.tables[i][1][:, k], pair[:], model=False)
        scale, shift = (b.scratch((rows, 1), "fp32", slots=slots, name=name) for name in ("scale", "shift"))
        b.tensor_tensor(scale[:], spread[:, (1, 1)], gain[(0, rows), (k + first, 1)], "multiply")
        b.tensor_tensor(shift[:], spread[:, (0, 1)], scale[:], "multiply")
        b.tensor_tensor(shift[:], beta[(0, rows), (k + first, 1)], shift[:], "subtract")
        return scale, shift

    def _apply(
        self, n: Range, i: int, k: Range, t: Range, held: list[Tensor], scale: Tensor, shift: Tensor
    ) -> None:
        b, out = self.b, self.site.outputs[0]
        first, _, rows = self.pieces[i]
        x = held[i][:, k.start] if held else self._load(n, k.start, 1, rows, first, t)[:, 0]
        y = b.scratch((rows, t.size), out.type.dtype, slots=self.site.slots, name="y")
        b.activate(y[:], x, self.op.activation or "identity", scale=scale[:], bias=shift[:])
        target = blocked(out).split(2, self.pixels)
        with b.stage(1):
            b.dma(target[(0, rows), k.start + first, n.start, (t.start, t.size)], y[:], "output")


KERNEL = Kernel(always(Features(), PLAIN, PLAIN, Same(0)), group_norm)
