"""Row statistics with rows on partitions: `Softmax` and `Reduce`."""

from __future__ import annotations

from collections.abc import Mapping

from arch_configs.spec import ArchSpec
from compiler.builder import Builder, Range, Tensor
from compiler.ir.dtype import dtype_bytes
from compiler.ir.graph import Node, TensorType
from compiler.ir.layout import ROW_MAJOR
from compiler.kernels.site import Site
from compiler.kernels.strips import strip_block
from compiler.kernels.wants import Fixed, Kernel, Want
from compiler.ops.norm import Reduce

LOWEST = -3.0e38  # below all finite fp32 but a few, and still a number: where a running maximum starts


def _wants(node: Node, types: Mapping[str, TensorType], arch: ArchSpec) -> tuple[Want, ...]:
    return (Fixed(ROW_MAJOR), Fixed(ROW_MAJOR))


def softmax(b: Builder, site: Site) -> None:
    """Lower `Softmax`: rows that fit are read once, longer ones twice."""
    x = site.inputs[0]
    rows, columns = x.type.shape
    size = 2 * dtype_bytes(x.type.dtype) + 4
    room = site.room - 1024
    for r in b.tiles(rows, min(rows, site.arch.partitions(site.arch.scratchpad)), "r"):
        if columns * size * site.slots <= room or columns * size <= room // 2:
            _whole_rows(b, site, r)
        else:
            _long_rows(b, site, r, strip_block(site, columns, size, 1024))


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


def reduce_rows(b: Builder, site: Site) -> None:
    """Lower `Reduce`: piece by piece, into a running result."""
    op, x, out = site.op, site.inputs[0], site.outputs[0]
    assert isinstance(op, Reduce)
    rows, columns = x.type.shape
    operation, start = ("max", LOWEST) if op.func == "max" else ("add", 0.0)
    block = strip_block(site, columns, dtype_bytes(x.type.dtype), 1024)
    for r in b.tiles(rows, min(rows, site.arch.partitions(site.arch.scratchpad)), "r"):
        total = _column(b, site, r, "total")
        if block < columns:
            b.memset(total[:], start)
        for c in b.tiles(columns, block, "c"):
            tile = _load(b, site, r, c)
            if block >= columns:
                b.reduce(total[:], tile[:], operation)
                continue
            part = _column(b, site, r, "part")
            b.reduce(part[:], tile[:], operation)
            b.tensor_tensor(total[:], total[:], part[:], operation)
        y = b.scratch((r.size, 1), out.type.dtype, slots=site.slots, name="y")
        b.tensor_scalar(y[:], total[:], "multiply", 1.0 / columns if op.func == "mean" else 1.0)
        with b.stage(1):
            b.dma(out.tensor[(r.start, r.size), :], y[:], "output")


SOFTMAX = Kernel(_wants, softmax)
REDUCE = Kernel(_wants, reduce_rows)
