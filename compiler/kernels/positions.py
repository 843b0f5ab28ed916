"""Kernels in which positions matter: `Gather`, `TopK`, `CumSum`; all operands row-major.

We model no instruction for the largest elements or for running sums, so both are made of elementwise work
and reductions: six passes over a row for each result, and one pass for each doubling of a distance.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from compiler.builder import Builder, Range, Tensor
from compiler.errors import CompileError
from compiler.ir.dtype import dtype_bytes
from compiler.isa import Access
from compiler.kernels.site import Site
from compiler.kernels.softmax import around, as_rows, on_partitions
from compiler.kernels.strips import strip_block
from compiler.kernels.transpose import check_gather
from compiler.kernels.views import plain
from compiler.kernels.wants import Kernel, plain_wants
from compiler.ops.positions import CumSum, Gather, TopK

BEHIND = 2**23  # added to positions that are not meant: fp32 holds sums with positions below it exactly
NOWHERE = BEHIND // 2  # the position of what is no element; above all positions
FLOOR = 1.5e38  # what is taken, or no element, lies at minus this, below all elements


def gather(b: Builder, site: Site) -> None:
    """Lower `Gather`: rows onto partitions by the DMA; raises Infeasible where it cannot gather."""
    op, (x, ids), out = site.op, site.inputs, site.outputs[0]
    assert isinstance(op, Gather)
    check_gather(site)
    lead, rows, width = around(x.type.shape, op.axis, op.axis + 1)
    count, dtype = ids.type.elements, x.type.dtype
    table, target = plain(x, (lead, rows, width)), plain(out, (lead, count, width))
    index = plain(ids, (count, 1))
    block = strip_block(site, width, dtype_bytes(dtype))
    for t in b.tiles(count, min(count, site.arch.partitions(site.arch.scratchpad)), "t"):
        where = b.scratch((t.size, 1), "int32", slots=site.slots, name="ids")
        b.dma(where[:], index[(t.start, t.size), :], "aux")
        for a in b.tiles(lead, 1, "a"):
            for f in b.tiles(width, block, "f"):
                tile = b.scratch((t.size, f.size), dtype, slots=site.slots, name="rows")
                b.gather(tile[:], table[a.start, 0, (f.start, f.size)], where[:], width)
                with b.stage(1):
                    b.dma(target[a.start, (t.start, t.size), (f.start, f.size)], tile[:], "output")


# ---- the largest ---------------------------------------------------------------------------------
def top_k(b: Builder, site: Site) -> None:
    """Lower `TopK`: piece by piece; each piece is looked through together with the best so far."""
    op = site.op
    assert isinstance(op, TopK)
    site = as_rows(site)
    x = site.inputs[0]
    rows, columns = x.type.shape
    if columns > NOWHERE:
        raise CompileError(f"{site.name}: got rows of {columns} elements, want at most {NOWHERE}")
    # x, fp32 values, positions and work in slots, numbers once; four short tiles of k, two a slot
    each = (dtype_bytes(x.type.dtype) + 3 * 4) * site.slots + 4
    piece = max(1, min(columns, (site.room - 1024 - op.k * 7 * 4 * site.slots) // each))
    limit = min(rows, site.arch.partitions(site.arch.scratchpad))
    numbers = _numbers(b, limit, piece)
    for r in b.tiles(rows, limit, "r"):
        _Best(b, site, op.k, r, piece, numbers.part(0, 0, r.size)).run()


def _numbers(b: Builder, partitions: int, count: int) -> Tensor:
    """0, 1, ... `count - 1` on each partition: what is there, plus how many are there, comes behind it."""
    tile = b.scratch((partitions, count), "fp32", name="numbers")
    b.memset(tile[:, (0, 1)], 0.0)
    done = 1
    while done < count:
        size = min(done, count - done)
        b.tensor_scalar(tile[:, (done, size)], tile[:, (0, size)], "add", float(done))
        done += size
    return tile


@dataclass(frozen=True, slots=True)
class _Best:
    """The `k` largest of some rows, looked through in pieces."""

    b: Builder
    site: Site
    k: int
    rows: Range
    piece: int
    numbers: Tensor

    def run(self) -> None:
        """Find them and store them."""
        b, columns = self.b, self.site.inputs[0].type.shape[1]
        best, places, base = (
            self._tile(n, name) for n, name in ((self.k, "best"), (self.k, "places"), (1, "base"))
        )
        b.memset(base[:], 0.0)
        front = self.k if self.piece < columns else 0  # the best so far, in front of each piece
        if front:
            b.memset(best[:], -FLOOR)
            b.memset(places[:], float(NOWHERE))
        for c in b.tiles(columns, self.piece, "c"):
            values, positions = (self._tile(front + c.size, name) for name in ("values", "positions"))
            if front:
                b.copy(values[:, (0, front)], best[:])
                b.copy(positions[:, (0, front)], places[:])
            self._load(c, values[:, (front, c.size)])
            b.tensor_scalar(positions[:, (front, c.size)], self.numbers[:, (0, c.size)], "add", base[:])
            for j in b.tiles(self.k, 1, "j"):
                self._take(values, positions, best[:, (j.start, 1)], places[:, (j.start, 1)])
            b.tensor_scalar(base[:], base[:], "add", float(c.size))
        for port, found in zip(self.site.outputs, (best, places), strict=True):
            y = b.scratch(found.shape, port.type.dtype, slots=self.site.slots, name="y")
            b.copy(y[:], found[:])
            with b.stage(1):
                b.dma(port.tensor[(self.rows.start, self.rows.size), :], y[:], "output")

    def _tile(self, columns: int, name: str) -> Tensor:
        return self.b.scratch((self.rows.size, columns), "fp32", slots=self.site.slots, name=name)

    def _load(self, c: Range, target: Access) -> None:
        x = self.site.inputs[0]
        tile = self.b.scratch((self.rows.size, c.size), x.type.dtype, slots=self.site.slots, name="x")
        self.b.dma(tile[:], x.tensor[(self.rows.start, self.rows.size), (c.start, c.size)], "input")
        self.b.copy(target, tile[:])

    def _take(self, values: Tensor, positions: Tensor, best: Access, place: Access) -> None:
        """The largest value and its first position; the value there sinks to the floor."""
        b = self.b
        work = self._tile(values.shape[1], "work")
        b.reduce(best, values[:], "max")
        b.tensor_scalar(work[:], values[:], "not_equal", best, "multiply", float(BEHIND))
        b.tensor_tensor(work[:], work[:], positions[:], "add")
        b.reduce(place, work[:], "min")
        b.tensor_scalar(work[:], positions[:], "not_equal", place, "subtract", 0.5)
        b.tensor_tensor(values[:], work[:], values[:], "min", scale=2 * FLOOR)


# ---- running sums --------------------------------------------------------------------------------
def cumsum(b: Builder, site: Site) -> None:
    """Lower `CumSum`: piece by piece, each added to the sum of all before it."""
    op, x, out = site.op, site.inputs[0], site.outputs[0]
    assert isinstance(op, CumSum)
    sizes = around(x.type.shape, op.axis, op.axis + 1)
    for source, target in on_partitions(b, site, plain(x, sizes), plain(out, sizes)):
        _scan(b, site, source, target)


def _scan(b: Builder, site: Site, source: Tensor, target: Tensor) -> None:
    """[p, r, c] in DRAM, sums along r; `p` on partitions, blocks of c outside, pieces of r inside."""
    rows, count, columns = source.shape
    item = dtype_bytes(source.dtype) + dtype_bytes(target.dtype) + 2 * 4
    c_block = strip_block(site, columns, item + 4, 1024)
    r_block = max(1, min(count, strip_block(site, c_block * count, item, 1024) // c_block))
    for p in b.tiles(rows, min(rows, site.arch.partitions(site.arch.scratchpad)), "r"):
        for c in b.tiles(columns, c_block, "c"):
            total = b.scratch((p.size, 1, c.size), "fp32", slots=site.slots, name="total")
            if r_block < count:
                b.memset(total[:], 0.0)
            for r in b.tiles(count, r_block, "k"):
                where = (p.start, p.size), (r.start, r.size), (c.start, c.size)
                shape = tuple(size for _, size in where)
                x = b.scratch(shape, source.dtype, slots=site.slots, name="x")
                b.dma(x[:], source[where], "input")
                sums = _sums(b, site, x)
                if r_block < count:
                    carried = replace(total, shape=shape, strides=(0, 0, 1))
                    b.tensor_tensor(sums[:], sums[:], carried[:], "add")
                    b.copy(total[:], sums[:, (r.size - 1, 1), :])
                y = b.scratch(shape, target.dtype, slots=site.slots, name="y")
                b.copy(y[:], sums[:])
                with b.stage(1):
                    b.dma(target[where], y[:], "output")


def _sums(b: Builder, site: Site, x: Tensor) -> Tensor:
    """Sums along axis 1 of a tile: in each step over twice as many elements as in the one before."""
    now, then = (b.scratch(x.shape, "fp32", slots=site.slots, name=name) for name in ("sums", "before"))
    b.copy(now[:], x[:])
    count, distance = x.shape[1], 1
    while distance < count:
        now, then = then, now
        rest = count - distance
        b.copy(now[:, (0, distance)], then[:, (0, distance)])
        b.tensor_tensor(now[:, (distance, rest)], then[:, (distance, rest)], then[:, (0, rest)], "add")
        distance *= 2
    return now


GATHER = Kernel(plain_wants, gather)
TOP_K = Kernel(plain_wants, top_k)
CUMSUM = Kernel(plain_wants, cumsum)
