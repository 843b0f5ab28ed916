"""Depthwise convolution on the vector engines, and the end that all convolutions share."""

from __future__ import annotations

from compiler.builder import Builder, Tensor
from compiler.ir.layout import Layout
from compiler.isa import Access, Activate, Affine, Copy, Instr, TensorScalar, TensorTensor
from compiler.kernels.image import (
    Channels,
    Window,
    block_sizes,
    blocks,
    load_block,
    load_channels,
    store_channels,
)
from compiler.kernels.move import load_vector
from compiler.kernels.site import Port, Site
from compiler.kernels.strips import tile_counts
from compiler.ops.conv import Conv2d


def evict(
    b: Builder,
    site: Site,
    op: Conv2d,
    total: Access,
    out: Access,
    residual: Access | None,
    bias: Access | None,
    engine: str = "",
) -> str:
    """`out = activation(total + bias + residual)`, on `engine` if it can; return what the next should use.

    Sums of one block go into one tile: engines that take turns in it would wait for each other.
    """
    value, func = total, op.activation
    last: tuple[Instr, ...]
    if residual is not None:
        if func is None and bias is None:
            with b.on((engine,) if engine else ()):
                return b.either(TensorTensor(dst=out, lhs=value, rhs=residual, operation="add", op=b.op))
        sizes = (total.partitions, *(size for _, size in total.dims))
        summed = b.scratch(sizes, "fp32", slots=site.slots, name="summed")
        b.tensor_tensor(summed[:], value, residual, "add")
        value = summed[:]
    shift = 0.0 if bias is None else bias
    if func == "relu":  # two classes of operation, so twice the engines to choose from
        last = (
            Activate(dst=out, src=value, func=func, bias=shift, op=b.op),
            TensorScalar(dst=out, src=value, op0="add", a=shift, op1="max", b=0.0, op=b.op),
        )
    elif func is not None:
        last = (Activate(dst=out, src=value, func=func, bias=shift, op=b.op),)
    elif bias is not None:
        last = (
            TensorScalar(dst=out, src=value, op0="add", a=bias, op=b.op),
            Activate(dst=out, src=value, func="identity", bias=bias, op=b.op),
        )
    else:
        last = (Copy(dst=out, src=value, op=b.op),)
    with b.on((engine,) if engine else ()):
        return b.either(*last)


def depthwise_layout(block: int) -> Layout:
    """[k, 1, r, s] as [k in block, block, 1, r, s]: one scalar a partition and tap."""
    return Layout(((0, block),), (1, 0, 2, 3, 4))


def depthwise(b: Builder, site: Site, op: Conv2d, window: Window) -> None:
    """Tap by tap: multiply a shifted view by its filter value and add."""
    named = dict(zip(op.roles, site.inputs, strict=True))
    x, out = named["x"], site.outputs[0]
    n, c = x.type.shape[:2]
    filters = _load_filters(b, named["w"], x.block)
    bias = load_vector(b, named["b"], c, x.block, "bias") if op.bias else None
    sizes = block_sizes(site, window, n, c // x.block)
    for first, count, size in tile_counts(c, x.block):
        for f in b.tiles(count, min(sizes.tiles, count), "c"):
            at = f.start + first
            channels = Channels(0, (f.size - 1) * x.block + size, size, at)
            for block in blocks(b, window, n, sizes.images, sizes.rows):
                image = load_block(b, site, x, window, block, channels, 0.0)
                dims = (size, f.size, block.images.size, block.rows, window.wo)
                y = b.scratch(dims, out.type.dtype, slots=site.slots, name="out")
                rows = (block.first, block.rows)
                residual = None
                if op.residual:
                    residual = b.scratch(dims, out.type.dtype, slots=site.slots, name="residual")
                    load_channels(b, residual, named["r"], channels, block.images, rows, (), "aux")
                for t in b.tiles(f.size, 1, "t"):
                    total = _sum_taps(b, site, window, image, filters, t.start, at)
                    evict(
                        b, site, op, total[:], y[:, t.start],
                        residual[:, t.start] if residual else None,
                        bias[(0, size), at + t.start] if bias else None,
                    )  # fmt: skip
                with b.stage(1):
                    store_channels(b, y, out, channels, block.images, rows)


def _load_filters(b: Builder, port: Port, block: int) -> Tensor:
    """[block, blocks, r, s], once for the whole op."""
    _, blocks_n, _, r, s = port.tensor.shape
    tile = b.scratch((block, blocks_n, r, s), port.type.dtype, name="filters")
    b.dma(tile[:], port.tensor[:, :, 0], "weight")
    return tile


def _sum_taps(
    b: Builder, site: Site, window: Window, image: Tensor, filters: Tensor, tile: Affine, at: Affine
) -> Tensor:
    """The sum over taps for one channel tile, [channels, images, rows, columns]."""
    size, n = image.shape[0], image.shape[2]
    rows = (image.shape[3] - window.r) // window.stride + 1
    total = b.scratch((size, n, rows, window.wo), "fp32", slots=site.slots, name="total")
    for r in range(window.r):
        for s in range(window.s):
            view = image[:, tile, :, (r, rows, window.stride), (s, window.wo, window.stride)]
            scalar = filters[(0, size), at + tile, r, s]
            if not r and not s:
                b.tensor_scalar(total[:], view, "multiply", scalar)
                continue
            product = b.scratch(total.shape, "fp32", slots=site.slots, name="product")
            b.tensor_scalar(product[:], view, "multiply", scalar)
            b.tensor_tensor(total[:], total[:], product[:], "add")
    return total
