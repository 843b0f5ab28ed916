"""Element by element: `Unary` and `Binary`, in whatever layout their operands share."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from arch_configs.spec import ArchSpec
from compiler.builder import Builder, Tensor
from compiler.ir.dtype import dtype_bytes
from compiler.ir.graph import Node, TensorType
from compiler.isa import Access
from compiler.kernels.columns import is_column, with_column
from compiler.kernels.group_plan import scalar_function
from compiler.kernels.site import Port, Site
from compiler.kernels.strips import LONG_RUN, Strip, blocked, regular, strip_block, strips, tile_counts
from compiler.kernels.views import plain, pointwise, spread_to
from compiler.kernels.wants import PLAIN, Anything, Kernel, Same, Want, always, plain_wants
from compiler.ops.base import Op
from compiler.ops.elementwise import Binary, Opaque, Scalar, Unary, repeats_rows

SHORT = 64  # columns up to which one instruction over many blocks beats one a block; assumed


def _binary_wants(node: Node, types: Mapping[str, TensorType], arch: ArchSpec) -> tuple[Want, ...]:
    """A vector lies as it is; anything else as the left operand, or row-major where it is broadcast."""
    lhs, rhs = (types[name].shape for name in node.inputs)
    if is_column(lhs, rhs):
        return (Anything(), PLAIN, Same(0))
    if _is_general(lhs, rhs):
        return plain_wants(node, types, arch)
    is_vector = len(rhs) == 1 and len(lhs) > 1
    return (Anything(), PLAIN if is_vector else Same(0), Same(0))


def _is_general(lhs: tuple[int, ...], rhs: tuple[int, ...]) -> bool:
    """Whether anything but a vector or a block of rows is broadcast."""
    return not (lhs == rhs or repeats_rows(lhs, rhs) or (len(lhs) == 2 and rhs == lhs[1:]))


def unary(b: Builder, site: Site) -> None:
    """Lower `Unary`, `Scalar`, `Cast` and `Opaque`."""
    x, out = site.inputs[0], site.outputs[0]
    if not (x.tensor.is_dense and out.tensor.is_dense):
        for to, view in zip(regular(out), regular(x), strict=True):
            pointwise(b, site, to, [view], lambda y, t: apply(b, site.op, y, t[0]))
        return
    for source, target in strip_pairs(site, (x, out)):
        size = dtype_bytes(x.type.dtype) + dtype_bytes(out.type.dtype)
        for t in b.tiles(source.length, strip_block(site, source.length, size), "e"):
            tile = b.scratch((source.partitions, t.size), x.type.dtype, slots=site.slots, name="x")
            y = b.scratch(
                (source.partitions, t.size),
                out.type.dtype,
                slots=site.slots,
                name="y",
            )
            b.dma(tile[:], source(t.start, t.size), "input")
            apply(b, site.op, y[:], tile[:])
            with b.stage(1):
                b.dma(target(t.start, t.size), y[:], "output")


def apply(b: Builder, op: Op, y: Access, x: Access) -> None:
    """The instructions of one tile."""
    if isinstance(op, Unary):
        b.activate(y, x, op.func)
    elif isinstance(op, Scalar):
        _apply_scalar(b, op, y, x)
    elif isinstance(op, Opaque):
        for _ in range(op.flops_per_element):
            b.activate(y, x, "identity")
    else:
        b.copy(y, x)


def _apply_scalar(b: Builder, op: Scalar, y: Access, x: Access) -> None:
    func = scalar_function(op)
    if func:
        b.tensor_scalar(y, x, func, op.value)
    else:  # no instruction takes its operands the other way round
        left = b.scratch((x.partitions, *(size for _, size in x.dims)), x.dtype, name="value")
        b.memset(left[:], op.value)
        b.tensor_tensor(y, left[:], x, op.func)


def binary(b: Builder, site: Site) -> None:
    """Lower `Binary`."""
    lhs, rhs = site.inputs
    if is_column(lhs.type.shape, rhs.type.shape):
        with_column(b, site, _func(site))
    elif _is_general(lhs.type.shape, rhs.type.shape):
        out = plain(site.outputs[0])
        ins = [spread_to(plain(port), out.shape) for port in site.inputs]
        pointwise(b, site, out, ins, lambda y, t: b.tensor_tensor(y, t[0], t[1], _func(site)))
    elif lhs.type.shape == rhs.type.shape:
        if all(port.tensor.is_dense for port in (lhs, rhs, site.outputs[0])):
            _alike(b, site)
            return
        for out, *ins in zip(*(regular(port) for port in (site.outputs[0], lhs, rhs)), strict=True):
            pointwise(b, site, out, ins, lambda y, t: b.tensor_tensor(y, t[0], t[1], _func(site)))
    elif lhs.block:
        _by_features(b, site)
    else:
        _by_rows(b, site)


def strip_pairs(site: Site, ports: tuple[Port, ...]) -> Iterator[tuple[Strip, ...]]:
    """The strips of several values, one with another."""
    partitions = site.arch.partitions(site.arch.scratchpad)
    return zip(*(strips(port, partitions) for port in ports), strict=True)


def _func(site: Site) -> str:
    assert isinstance(site.op, Binary)
    return site.op.func


def _alike(b: Builder, site: Site) -> None:
    """Both operands have the same shape: which element is which does not matter."""
    lhs, rhs, out = *site.inputs, site.outputs[0]
    size = sum(dtype_bytes(port.type.dtype) for port in (lhs, rhs, out))
    for left, right, target in strip_pairs(site, (lhs, rhs, out)):
        for t in b.tiles(left.length, strip_block(site, left.length, size), "e"):
            dims = (left.partitions, t.size)
            x = b.scratch(dims, lhs.type.dtype, slots=site.slots, name="lhs")
            y = b.scratch(dims, rhs.type.dtype, slots=site.slots, name="rhs")
            z = b.scratch(dims, out.type.dtype, slots=site.slots, name="out")
            b.dma(x[:], left(t.start, t.size), "input")
            b.dma(y[:], right(t.start, t.size), "aux")
            b.tensor_tensor(z[:], x[:], y[:], _func(site))
            with b.stage(1):
                b.dma(target(t.start, t.size), z[:], "output")


def _by_features(b: Builder, site: Site) -> None:
    """Features on partitions; rhs is [features], or [r, features] repeated down the rows."""
    lhs, rhs, out = *site.inputs, site.outputs[0]
    tokens, features = lhs.type.shape
    is_vector = len(rhs.type.shape) == 1
    period = 1 if is_vector else rhs.type.shape[0]
    size, block = dtype_bytes(lhs.type.dtype), lhs.block
    room = site.room // (2 * size * site.slots) - 64
    r_block = max(1, min(period, room // 2))
    q_block = max(1, min(tokens // period, room // r_block - 1, max(1, LONG_RUN // (size * r_block))))
    n_block = max(1, min(LONG_RUN // (size * q_block * r_block), room // (q_block * r_block) - 1))
    # as [block, blocks, repeats, period]
    source, target = (blocked(port).split(2, period) for port in (lhs, out))
    for first, count, rows in tile_counts(features, block):
        for n in b.tiles(count, min(n_block, count), "f"):
            at = (n.start + first, n.size)
            for r in b.tiles(period, r_block, "r"):
                y = b.scratch((rows, n.size, r.size), rhs.type.dtype, slots=site.slots, name="rhs")
                if is_vector:
                    view = rhs.tensor.split(0, block).permute(1, 0)
                    b.dma(y[:], view[(0, rows), at], "aux")
                else:
                    b.dma(y[:], blocked(rhs)[(0, rows), at, (r.start, r.size)], "aux")
                for q in b.tiles(tokens // period, q_block, "q"):
                    dims = (rows, n.size, q.size, r.size)
                    x = b.scratch(dims, lhs.type.dtype, slots=site.slots, name="lhs")
                    z = b.scratch(dims, out.type.dtype, slots=site.slots, name="out")
                    where = ((0, rows), at, (q.start, q.size), (r.start, r.size))
                    b.dma(x[:], source[where], "input")
                    _combine(b, _func(site), z, x, y, is_vector and q.size > SHORT)
                    with b.stage(1):
                        b.dma(target[where], z[:], "output")


def _combine(b: Builder, func: str, z: Tensor, x: Tensor, y: Tensor, scalar: bool) -> None:
    """z = x func y, with y [rows, blocks, period] repeated; `scalar`: one value a partition and block."""
    if scalar:
        for n in b.tiles(x.shape[1], 1, "n"):
            b.tensor_scalar(z[:, n.start], x[:, n.start], func, y[:, n.start])
        return
    shape, strides = y.shape, y.strides
    spread = replace(y, shape=(*shape[:2], x.shape[2], shape[2]), strides=(*strides[:2], 0, strides[2]))
    b.tensor_tensor(z[:], x[:], spread[:], func)


def _by_rows(b: Builder, site: Site) -> None:
    """Rows on partitions; rhs is a row for all of them, or [r, features] repeated down the rows."""
    lhs, rhs, out = *site.inputs, site.outputs[0]
    tokens, features = lhs.type.shape
    is_vector = len(rhs.type.shape) == 1
    period = tokens if is_vector else rhs.type.shape[0]
    right = rhs.tensor.repeat(0, tokens) if is_vector else rhs.tensor
    source, target = (
        port.tensor.split(0, period).permute(1, 0, 2) for port in (lhs, out)
    )  # [period, repeats, f]
    size = 3 * dtype_bytes(lhs.type.dtype)
    columns = strip_block(site, features, size)
    repeats = max(1, min(tokens // period, strip_block(site, tokens // period * features, size) // columns))
    for r in b.tiles(period, min(period, site.arch.partitions(site.arch.scratchpad)), "r"):
        rows = (r.start, r.size)
        for f in b.tiles(features, columns, "f"):
            y = b.scratch((r.size, f.size), rhs.type.dtype, slots=site.slots, name="rhs")
            b.dma(y[:], right[rows, (f.start, f.size)], "aux")
            for q in b.tiles(tokens // period, repeats, "q"):
                dims = (r.size, q.size, f.size)
                x = b.scratch(dims, lhs.type.dtype, slots=site.slots, name="lhs")
                z = b.scratch(dims, out.type.dtype, slots=site.slots, name="out")
                where = (rows, (q.start, q.size), (f.start, f.size))
                b.dma(x[:], source[where], "input")
                spread = replace(y, shape=dims, strides=(0, 0, 1))
                b.tensor_tensor(z[:], x[:], spread[:], _func(site))
                with b.stage(1):
                    b.dma(target[where], z[:], "output")


UNARY = Kernel(always(Anything(), Same(0)), unary)
BINARY = Kernel(_binary_wants, binary)
