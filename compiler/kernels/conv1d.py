"""Causal convolution over time with features on partitions.

Of a sequence: a product with a diagonal matrix for each tap, on shifted columns, summed in the accumulators.
On the vector engines where the array takes several passes for the type, and for a single step.
"""

from __future__ import annotations

from collections.abc import Iterator

from compiler.builder import Builder, Range, Tensor
from compiler.ir.dtype import dtype_bytes
from compiler.isa import Affine
from compiler.kernels.site import Port, Site, base_block
from compiler.kernels.strips import blocked, tile_counts
from compiler.kernels.wants import PLAIN, Features, Kernel, Same, always
from compiler.ops.ssm import CausalConv1d, ConvStep

LONG = 1024  # positions a tile: the shifted rest is then small; assumed


def _load_taps(b: Builder, site: Site, w: Port, bias: Port, block: int, rows: int, f: Range) -> Tensor:
    """[rows, blocks, taps + 1]: filters of some feature blocks, the bias behind them."""
    taps = w.type.shape[1]
    tile = b.scratch((rows, f.size, taps + 1), w.type.dtype, slots=site.slots, name="taps")
    filters = w.tensor.split(0, block).permute(1, 0, 2)
    b.dma(tile[:, :, (0, taps)], filters[(0, rows), (f.start, f.size)], "aux")
    shifts = bias.tensor.split(0, block).permute(1, 0)
    b.dma(tile[:, :, taps], shifts[(0, rows), (f.start, f.size)], "aux")
    return tile


def causal_conv1d(b: Builder, site: Site) -> None:
    """Lower `CausalConv1d`."""
    op, (x, w, bias), out = site.op, site.inputs, site.outputs[0]
    assert isinstance(op, CausalConv1d)
    before = w.type.shape[1] - 1
    size = dtype_bytes(x.type.dtype)
    length = max(1, min(op.seq, LONG, site.room // (site.slots * (2 * size + 4)) - before - 64))
    bank = site.arch.bank_bytes(site.arch.accumulator) // 4
    passes = site.arch.array.passes
    on_array = any(name == x.type.dtype and count <= 1 for name, count in passes.items())
    on_array = on_array and x.block <= base_block(site.arch)
    if on_array:
        length = min(length, bank, site.arch.array.moving_max)
    source, target = blocked(x).split(2, op.seq), blocked(out).split(2, op.seq)
    for first, count, rows in tile_counts(x.type.shape[1], x.block):
        for f in b.tiles(count, 1, "f"):
            block = f.start + first
            taps = _load_taps(b, site, w, bias, x.block, rows, Range(block, 1, block))
            filters = _diagonals(b, site, taps) if on_array else None
            for s in b.tiles(x.type.shape[0] // op.seq, 1, "s"):
                for t, history in _chunks(b, op.seq, length, before):
                    shape = (rows, before + t.size)
                    tile = b.scratch(shape, x.type.dtype, slots=site.slots, name="x")
                    if history < before:
                        b.memset(tile[:, (0, before - history)], 0.0)
                    span = t.size + history
                    place = (t.start - history, span)
                    inside = tile[:, (before - history, span)]
                    b.dma(inside, source[(0, rows), block, s.start, place], "input")
                    if filters is not None:
                        total = _on_array(b, site, tile, filters, t.size)
                    else:
                        total = _sum(b, site, tile, taps, t.size)
                    y = _finish(b, site, op.activation, total, taps)
                    with b.stage(1):
                        b.dma(target[(0, rows), block, s.start, (t.start, t.size)], y[:], "output")


def _chunks(b: Builder, seq: int, length: int, before: int) -> Iterator[tuple[Range, int]]:
    """Positions in pieces, and how many positions in front of each are there: fewer for the first ones."""
    first = min(seq, max(length, before))
    yield Range(Affine(), first, Affine()), 0
    for t in b.tiles(seq - first, length, "t"):
        yield Range(t.start + first, t.size, t.index), before


def _diagonals(b: Builder, site: Site, taps: Tensor) -> Tensor:
    """[rows, taps, rows]: each tap's filter on a diagonal."""
    rows, _, count = taps.shape
    wide = b.scratch((rows, count - 1, rows), taps.dtype, slots=site.slots, name="diagonals")
    b.copy(wide[:], taps.stretch(rows)[:, 0, (0, count - 1)])
    for j in range(count - 1):  # zero but where row and column are equal
        b.affine_select(wide[:, j], wide[:, j], Affine(), 1, -1, 0.0)
        b.affine_select(wide[:, j], wide[:, j], Affine(), -1, 1, 0.0)
    return wide


def _on_array(b: Builder, site: Site, x: Tensor, filters: Tensor, size: int) -> Tensor:
    """The sums of one tile of positions, in the accumulators."""
    total = b.accumulator((x.shape[0], size), slots=site.slots, name="total")
    for j in range(filters.shape[1]):
        b.matmul(total[:], filters[:, j], x[:, (j, size)], reset=None if j else (), model=False)
    return total


def _sum(b: Builder, site: Site, x: Tensor, taps: Tensor, size: int) -> Tensor:
    """The same on the vector engines."""
    rows, count = x.shape[0], taps.shape[2] - 1
    total = b.scratch((rows, size), "fp32", slots=site.slots, name="total")
    b.tensor_scalar(total[:], x[:, (0, size)], "multiply", taps[:, 0, 0])
    for j in range(1, count):
        b.tensor_tensor(total[:], x[:, (j, size)], total[:], "add", scale=taps[:, 0, j])
    return total


def _finish(b: Builder, site: Site, func: str | None, total: Tensor, taps: Tensor) -> Tensor:
    """Bias and activation."""
    count = taps.shape[2] - 1
    y = b.scratch(total.shape, site.outputs[0].type.dtype, slots=site.slots, name="y")
    if func is None:
        b.tensor_scalar(y[:], total[:], "add", taps[:, 0, count])
    else:
        b.activate(y[:], total[:], func, bias=taps[:, 0, count])
    return y


def conv_step(b: Builder, site: Site) -> None:
    """Lower `ConvStep`: all feature blocks of a size at once, as many as fit."""
    op, (state, x, w, bias), out = site.op, site.inputs, site.outputs[0]
    assert isinstance(op, ConvStep)
    batch, taps = x.type.shape[0], w.type.shape[1]
    size = dtype_bytes(x.type.dtype)
    each = site.slots * ((taps + 1) * (batch + 1) * size + 2 * batch * 4 + 16)
    for first, count, rows in tile_counts(x.type.shape[1], x.block):
        for f in b.tiles(count, max(1, min(count, site.room // each)), "f"):
            blocks = Range(f.start + first, f.size, f.start)
            at = (blocks.start, f.size)
            filters = _load_taps(b, site, w, bias, x.block, rows, blocks)
            window = b.scratch((rows, f.size, taps, batch), x.type.dtype, slots=site.slots, name="window")
            kept = blocked(state).split(2, batch)
            b.dma(window[:, :, (0, taps - 1)], kept[(0, rows), at], "input")
            b.dma(window[:, :, taps - 1], blocked(x)[(0, rows), at], "input")
            y = _step(b, site, op.activation, window, filters)
            b.dma(kept[(0, rows), at], window[:, :, (1, taps - 1)], "output")
            with b.stage(1):
                b.dma(blocked(out)[(0, rows), at], y[:], "output")


def _step(b: Builder, site: Site, func: str | None, window: Tensor, filters: Tensor) -> Tensor:
    """The products of a window with its filters: [rows, blocks, batch]."""
    rows, blocks, taps, batch = window.shape
    shape = (rows, blocks, batch)
    total, part = (b.scratch(shape, "fp32", slots=site.slots, name=name) for name in ("total", "part"))
    wide = filters.stretch(batch)
    b.tensor_tensor(total[:], window[:, :, 0], wide[:, :, 0], "multiply")
    for j in range(1, taps):
        b.tensor_tensor(part[:], window[:, :, j], wide[:, :, j], "multiply")
        b.tensor_tensor(total[:], total[:], part[:], "add")
    y = b.scratch(shape, site.outputs[0].type.dtype, slots=site.slots, name="y")
    b.tensor_tensor(total[:] if func else y[:], total[:], wide[:, :, taps], "add")
    if func:
        b.activate(y[:], total[:], func)
    return y


CAUSAL_CONV1D = Kernel(always(Features(), PLAIN, PLAIN, Same(0)), causal_conv1d)
CONV_STEP = Kernel(always(Features(), Same(0), PLAIN, PLAIN, Same(0), Same(0)), conv_step)
