"""A value for each row beside a matrix: `[t, f] func [t, 1]`, as in the last step of a norm or a gate."""

from __future__ import annotations

from dataclasses import replace

from compiler.builder import Builder, Tensor
from compiler.ir.dtype import dtype_bytes
from compiler.kernels.site import Site
from compiler.kernels.strips import LONG_RUN, blocked, strip_block, tile_counts


def is_column(lhs: tuple[int, ...], rhs: tuple[int, ...]) -> bool:
    """Whether `rhs` has one value for each row of the matrix `lhs`."""
    return len(lhs) == 2 and rhs == (lhs[0], 1) and lhs[1] > 1


def with_column(b: Builder, site: Site, func: str) -> None:
    """`lhs func rhs` in the layout of lhs; rhs is row-major."""
    if site.inputs[0].block:
        _by_features(b, site, func)
    else:
        _by_rows(b, site, func)


def _by_features(b: Builder, site: Site, func: str) -> None:
    """Features on partitions: the column is one row, the same on every partition."""
    (lhs, rhs), out = site.inputs, site.outputs[0]
    tokens, features = lhs.type.shape
    size = dtype_bytes(lhs.type.dtype)
    room = site.room // (4 * size * site.slots) - 64
    t_block = max(1, min(tokens, LONG_RUN // size, room))
    for t in b.tiles(tokens, t_block, "t"):
        rows = min(lhs.block, features)
        row = b.scratch((rows, t.size), rhs.type.dtype, slots=site.slots, name="rhs")
        b.dma(row[:], rhs.tensor.pick(1, 0).repeat(0, rows)[:, (t.start, t.size)], "aux")
        for first, count, height in tile_counts(features, lhs.block):
            at_once = max(1, min(count, room // t.size, LONG_RUN // (size * t.size)))
            for n in b.tiles(count, at_once, "f"):
                x, z = _tiles(b, site, (height, n.size, t.size))
                where = (0, height), (n.start + first, n.size), (t.start, t.size)
                b.dma(x[:], blocked(lhs)[where], "input")
                b.tensor_tensor(z[:], x[:], row.repeat(1, n.size)[(0, height),], func)
                with b.stage(1):
                    b.dma(blocked(out)[where], z[:], "output")


def _by_rows(b: Builder, site: Site, func: str) -> None:
    """Rows on partitions: the column is a value a partition, repeated along the row."""
    (lhs, rhs), out = site.inputs, site.outputs[0]
    tokens, features = lhs.type.shape
    columns = strip_block(site, features, 2 * dtype_bytes(lhs.type.dtype))
    for t in b.tiles(tokens, min(tokens, site.arch.partitions(site.arch.scratchpad)), "t"):
        column = b.scratch((t.size, 1), rhs.type.dtype, slots=site.slots, name="rhs")
        b.dma(column[:], rhs.tensor[(t.start, t.size), :], "aux")
        for f in b.tiles(features, columns, "f"):
            x, z = _tiles(b, site, (t.size, f.size))
            where = (t.start, t.size), (f.start, f.size)
            b.dma(x[:], lhs.tensor[where], "input")
            wide = replace(column, shape=(t.size, f.size), strides=(0, 0))
            b.tensor_tensor(z[:], x[:], wide[:], func)
            with b.stage(1):
                b.dma(out.tensor[where], z[:], "output")


def _tiles(b: Builder, site: Site, shape: tuple[int, ...]) -> tuple[Tensor, Tensor]:
    """A tile of the matrix and one of the result."""
    dtypes = site.inputs[0].type.dtype, site.outputs[0].type.dtype
    x, z = (b.scratch(shape, d, slots=site.slots, name=n) for d, n in zip(dtypes, "xz", strict=True))
    return x, z
