"""Stacks of matrix products, row-major: the general contraction.

The contraction must lie on partitions. A row-major rhs [k, n] has it there; a lhs [m, k] and a transposed
rhs [n, k] are turned through the array, strip by strip.
"""

from __future__ import annotations

from dataclasses import dataclass

from compiler.builder import Builder, Range, Tensor
from compiler.ir.dtype import dtype_bytes
from compiler.isa import Affine
from compiler.kernels.site import Site, base_block
from compiler.kernels.strips import tile_counts
from compiler.kernels.turn import rows_at_once
from compiler.kernels.wants import Kernel, plain_wants
from compiler.ops.tensor import BatchMatmul


def batch_matmul(b: Builder, site: Site) -> None:
    """Lower `BatchMatmul`."""
    op = site.op
    assert isinstance(op, BatchMatmul)
    stacks = [_stacked(port.tensor) for port in (*site.inputs, site.outputs[0])]
    work = _Product(b, site, stacks[0], stacks[1], stacks[2], op.transpose_rhs)
    for i in b.tiles(stacks[0].shape[0], 1, "stack"):
        work.run(i.start)


def _stacked(tensor: Tensor) -> Tensor:
    """[..., rows, columns] as [stack, rows, columns]."""
    if len(tensor.shape) == 2:
        return tensor.repeat(0, 1)
    while len(tensor.shape) > 3:
        tensor = tensor.merge(0)
    return tensor


@dataclass(frozen=True, slots=True)
class _Product:
    b: Builder
    site: Site
    lhs: Tensor
    rhs: Tensor
    out: Tensor
    transposed: bool

    def run(self, at: Affine) -> None:
        """One product: a block of rhs columns held, strips of lhs rows streaming by."""
        b, arch = self.b, self.site.arch
        m, k, n = *self.lhs.shape[1:], self.out.shape[2]
        bank = arch.bank_bytes(arch.accumulator) // 4
        wide = min(n, arch.array.moving_max, bank)
        rows = min(m, rows_at_once(self.site, self.lhs.dtype) or 1, arch.array.cols)
        k_tile = min(k, base_block(arch))
        held = -(-k // k_tile) * dtype_bytes(self.rhs.dtype)
        room = self.site.room // self.site.slots // 2
        block = max(1, min(n, room // held))
        block = block // wide * wide or block
        for c in b.tiles(n, block, "n"):
            right = self._right(at, c, k_tile)
            for r in b.tiles(m, rows, "m"):
                left = self._turned(self.lhs, at, r, k, k_tile, "lhs")
                y = b.scratch((r.size, c.size), self.out.dtype, slots=self.site.slots, name="y")
                for p in b.tiles(c.size, min(wide, c.size), "p"):
                    total = b.accumulator((r.size, p.size), slots=self.site.slots, name="sum")
                    first = True
                    for start, count, height in tile_counts(k, k_tile):
                        for ki in b.tiles(count, 1, "k"):
                            tile = ki.start + start
                            moving = right[(0, height), tile, (p.start, p.size)]
                            reset = (tile,) if first else None
                            b.matmul(total[:], left[(0, height), tile], moving, reset=reset)
                        first = False
                    b.copy(y[:, (p.start, p.size)], total[:])
                with b.stage(1):
                    b.dma(self.out[at, (r.start, r.size), (c.start, c.size)], y[:], "output")

    def _right(self, at: Affine, c: Range, k_tile: int) -> Tensor:
        """[k tile, tiles, columns] of the rhs."""
        b, k = self.b, self.lhs.shape[2]
        if self.transposed:
            return self._turned(self.rhs, at, c, k, k_tile, "rhs")
        tile = b.scratch((k_tile, -(-k // k_tile), c.size), self.rhs.dtype, slots=self.site.slots, name="rhs")
        view = self.rhs.split(1, k_tile)
        for start, count, height in tile_counts(k, k_tile):
            for j in b.tiles(count, 1, "load"):
                source = view[at, j.start + start, (0, height), (c.start, c.size)]
                b.dma(tile[(0, height), j.start + start], source, "weight")
        return tile

    def _turned(self, x: Tensor, at: Affine, r: Range, k: int, k_tile: int, name: str) -> Tensor:
        """[k tile, tiles, rows] of a matrix whose rows hold the contraction."""
        b, slots = self.b, self.site.slots
        tile = b.scratch((k_tile, -(-k // k_tile), r.size), x.dtype, slots=slots, name=name)
        step = min(r.size, rows_at_once(self.site, x.dtype) or 1)
        for s in b.tiles(r.size, step, "s"):
            plane = b.scratch((s.size, k), x.dtype, slots=slots, name=f"{name}.rows")
            b.dma(plane[:], x[at, (r.start + s.start, s.size)], "input")
            for start, count, height in tile_counts(k, k_tile):
                for j in b.tiles(count, 1, "t"):
                    turned = b.accumulator((height, s.size), dtype=x.dtype, slots=slots, name="turned")
                    columns = ((j.start + start) * k_tile, height)
                    b.transpose(turned[:], plane[:, columns])
                    b.copy(tile[(0, height), j.start + start, (s.start, s.size)], turned[:])
        return tile


KERNEL = Kernel(plain_wants, batch_matmul)
