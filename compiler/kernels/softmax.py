"""Row statistics with rows on partitions: `Softmax` and `Reduce`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from math import prod

from compiler.builder import Builder, Range, Tensor
from compiler.ir.dtype import dtype_bytes
from compiler.ir.graph import TensorType
from compiler.isa import Affine
from compiler.kernels.rowwise import softmax_rows, spread_of
from compiler.kernels.site import Port, Site
from compiler.kernels.strips import strip_block
from compiler.kernels.views import plain
from compiler.kernels.wants import Kernel, plain_wants
from compiler.ops.norm import Reduce

LOWEST = -3.0e38  # below all finite fp32 but a few, and still a number: where a running maximum starts


def softmax(b: Builder, site: Site) -> None:
    """Lower `Softmax`: rows that fit are read once, longer ones twice."""
    site = as_rows(site)
    x = site.inputs[0]
    rows, columns = x.type.shape
    size = 2 * dtype_bytes(x.type.dtype) + 4
    room = site.room - 1024
    parts = spread_of(site.arch, columns)
    few = rows < site.arch.partitions(site.arch.scratchpad)
    if parts and (few or columns * size > room // 2):
        softmax_rows(b, site, parts)
        return
    for r in b.tiles(rows, min(rows, site.arch.partitions(site.arch.scratchpad)), "r"):
        if columns * size * site.slots <= room or columns * size <= room // 2:
            _whole_rows(b, site, r)
        else:
            _long_rows(b, site, r, strip_block(site, columns, size, 1024))


def as_rows(site: Site) -> Site:
    """The same op on [rows, last axis]."""

    def flat(port: Port) -> Port:
        shape = (port.type.elements // port.type.shape[-1], port.type.shape[-1])
        return Port(plain(port, shape), TensorType(shape, port.type.dtype), port.layout)

    return replace(site, inputs=tuple(map(flat, site.inputs)), outputs=tuple(map(flat, site.outputs)))


def _load(b: Builder, site: Site, r: Range, c: Range) -> Tensor:
    x = site.inputs[0]
    tile = b.scratch((r.size, c.size), x.type.dtype, slots=site.slots, name="x")
    b.dma(tile[:], x.tensor[(r.start, r.size), (c.start, c.size)], "input")
    return tile


def _column(b: Builder, site: Site, r: Range, name: str) -> Tensor:
    return b.scratch((r.size, 1), "fp32", slots=site.slots, name=name)


def _whole_rows(b: Builder, site: Site, r: Range) -> None:
    """Subtract the maximum, exponentiate with the sum on the way, scale."""
    out = site.outputs[0]
    columns = Range(r.start * 0, out.type.shape[1], r.start * 0)
    x = _load(b, site, r, columns)
    top, total = _column(b, site, r, "top"), _column(b, site, r, "total")
    e = b.scratch(x.shape, "fp32", slots=site.slots, name="exp")
    b.reduce(top[:], x[:], "max")
    b.tensor_scalar(top[:], top[:], "multiply", -1.0)
    b.activate(e[:], x[:], "exp", bias=top[:], accumulate=total[:])
    b.activate(total[:], total[:], "reciprocal")
    _scale_and_store(b, site, e, total, r, columns)


def _scale_and_store(b: Builder, site: Site, e: Tensor, factor: Tensor, r: Range, c: Range) -> None:
    out = site.outputs[0]
    y = b.scratch(e.shape, out.type.dtype, slots=site.slots, name="y")
    b.tensor_scalar(y[:], e[:], "multiply", factor[:])
    with b.stage(1):
        b.dma(out.tensor[(r.start, r.size), (c.start, c.size)], y[:], "output")


def _long_rows(b: Builder, site: Site, r: Range, block: int) -> None:
    """First maximum and sum over pieces, kept up to date together; then the pieces again."""
    columns = site.inputs[0].type.shape[1]
    low, total = _column(b, site, r, "low"), _column(b, site, r, "total")  # low: minus the maximum
    b.memset(low[:], -LOWEST)
    b.memset(total[:], 0.0)
    for c in b.tiles(columns, block, "c"):
        x = _load(b, site, r, c)
        top, part, old = (_column(b, site, r, name) for name in ("top", "part", "old"))
        b.reduce(top[:], x[:], "max")
        b.copy(old[:], low[:])
        b.tensor_scalar(top[:], top[:], "multiply", -1.0)
        b.tensor_tensor(low[:], low[:], top[:], "min")
        e = b.scratch(x.shape, "fp32", slots=site.slots, name="exp")
        b.activate(e[:], x[:], "exp", bias=low[:], accumulate=part[:])
        b.tensor_tensor(old[:], low[:], old[:], "subtract")  # maximum before minus maximum now
        b.activate(old[:], old[:], "exp")
        b.tensor_tensor(total[:], total[:], old[:], "multiply")
        b.tensor_tensor(total[:], total[:], part[:], "add")
    b.activate(total[:], total[:], "reciprocal")
    for c in b.tiles(columns, block, "d"):
        x = _load(b, site, r, c)
        e = b.scratch(x.shape, "fp32", slots=site.slots, name="exp")
        b.activate(e[:], x[:], "exp", bias=low[:])
        _scale_and_store(b, site, e, total, r, c)


def reduce(b: Builder, site: Site) -> None:
    """Lower `Reduce`: piece by piece, into a running result.

    x is seen as [a, r, c] with `r` reduced; `a` is on partitions, or a part of `c` if that is longer.
    """
    op, x, out = site.op, site.inputs[0], site.outputs[0]
    assert isinstance(op, Reduce)
    sizes = around(x.type.shape, op.axes[0], op.axes[-1] + 1)
    source, target = plain(x, sizes), plain(out, (sizes[0], 1, sizes[2]))
    for part in on_partitions(b, site, source, target):
        _Reduction(b, site, op.func, sizes[1], *part).run()


def around(shape: Sequence[int], first: int, last: int) -> tuple[int, int, int]:
    """Elements in front of, in and behind the axes `first` to `last - 1`."""
    return prod(shape[:first]), prod(shape[first:last]), prod(shape[last:])


def on_partitions(b: Builder, site: Site, source: Tensor, target: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """[a, r, c] views with partitions in front: `a`, or, for each `a`, a part of `c` if that is longer."""
    limit = site.arch.partitions(site.arch.scratchpad)
    lead, _, columns = source.shape
    cut = max(d for d in range(1, limit + 1) if columns % d == 0)
    if cut <= min(lead, limit):
        yield source, target
        return
    for a in b.tiles(lead, 1, "a"):
        yield _rows_of_columns(source, a.start, cut), _rows_of_columns(target, a.start, cut)


def _rows_of_columns(tensor: Tensor, a: Affine, cut: int) -> Tensor:
    """[a, r, c] at one `a` as [part of c, r, rest of c]."""
    return tensor.pick(0, a).split(1, tensor.shape[2] // cut).permute(1, 0, 2)


@dataclass(frozen=True, slots=True)
class _Reduction:
    """[p, r, c] to [p, 1, c] in DRAM, `p` on partitions."""

    b: Builder
    site: Site
    func: str
    count: int
    source: Tensor
    target: Tensor

    def run(self) -> None:
        """Blocks of c outside, pieces of r inside."""
        b, site = self.b, self.site
        rows, count, columns = self.source.shape
        item = dtype_bytes(self.source.dtype)
        c_block = strip_block(site, columns, item + 8, 1024)
        r_block = max(1, min(count, strip_block(site, c_block * count, item, 1024) // c_block))
        for p in b.tiles(rows, min(rows, site.arch.partitions(site.arch.scratchpad)), "r"):
            for c in b.tiles(columns, c_block, "c"):
                self._block(p, c, r_block)

    def _block(self, p: Range, c: Range, r_block: int) -> None:
        b, slots = self.b, self.site.slots
        operation, start = {"max": ("max", LOWEST), "min": ("min", -LOWEST)}.get(self.func, ("add", 0.0))
        total = b.scratch((p.size, c.size), "fp32", slots=slots, name="total")
        several = r_block < self.count
        if several:
            b.memset(total[:], start)
        for r in b.tiles(self.count, r_block, "k"):
            tile = b.scratch((p.size, r.size, c.size), self.source.dtype, slots=slots, name="x")
            b.dma(tile[:], self.source[(p.start, p.size), (r.start, r.size), (c.start, c.size)], "input")
            part = b.scratch((p.size, c.size), "fp32", slots=slots, name="part") if several else total
            b.reduce(part[:], tile.permute(0, 2, 1)[:], operation)
            if several:
                b.tensor_tensor(total[:], total[:], part[:], operation)
        y = b.scratch((p.size, 1, c.size), self.target.dtype, slots=slots, name="y")
        b.tensor_scalar(y[:, 0], total[:], "multiply", 1.0 / self.count if self.func == "mean" else 1.0)
        with b.stage(1):
            b.dma(self.target[(p.start, p.size), :, (c.start, c.size)], y[:], "output")


SOFTMAX = Kernel(plain_wants, softmax)
REDUCE = Kernel(plain_wants, reduce)
