"""Strided views of DRAM values, and the two things done with them: copies, and work element by element.

A view is a Tensor in DRAM whose strides may be anything, 0 included. Axes along which all views of a
job are regular become one, so a job has as few axes as it really has.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from math import prod

from compiler.builder import Builder, Range, Tensor
from compiler.errors import CompileError
from compiler.ir.dtype import dtype_bytes
from compiler.isa import Access, Affine
from compiler.kernels.site import Port, Site
from compiler.kernels.strips import LONG_RUN, common_pieces
from compiler.kernels.turn import turn_plane
from compiler.tensor import reshaped

FEW = 16  # partitions below which another axis is worth cutting; assumed
Compute = Callable[[Access, Sequence[Access]], None]  # writes the first operand from the others
ComputeMany = Callable[[Sequence[Access], Sequence[Access]], None]  # the same with several results


def plain(port: Port, shape: Sequence[int] | None = None) -> Tensor:
    """A row-major value, under its own or another shape of as many elements."""
    if shape is None and port.tensor.shape == port.type.shape:
        return port.tensor  # NOTE: a piece of a grid may have gaps between its rows
    return reshaped(port.tensor, port.type.shape if shape is None else shape)


def spread_to(view: Tensor, shape: Sequence[int]) -> Tensor:
    """`view` broadcast to `shape` as numpy does: axes of size 1 get stride 0."""
    missing = len(shape) - len(view.shape)
    strides = tuple(0 if size == 1 else stride for size, stride in zip(view.shape, view.strides, strict=True))
    return replace(view, shape=tuple(shape), strides=(0,) * missing + strides)


def coalesce(views: Sequence[Tensor]) -> list[Tensor]:
    """The same views, all of one shape, with as few axes as possible (at least one)."""
    axes: list[tuple[int, tuple[int, ...]]] = []
    for axis, size in enumerate(views[0].shape):
        strides = tuple(view.strides[axis] for view in views)
        if size == 1:
            continue
        if axes and all(a == b * size for a, b in zip(axes[-1][1], strides, strict=True)):
            axes[-1] = (axes[-1][0] * size, strides)
        else:
            axes.append((size, strides))
    axes = axes or [(1, (1,) * len(views))]
    shape = tuple(size for size, _ in axes)
    return [
        replace(view, shape=shape, strides=tuple(strides[i] for _, strides in axes))
        for i, view in enumerate(views)
    ]


# ---- copies --------------------------------------------------------------------------------------


def copy_view(b: Builder, site: Site, dst: Tensor, src: Tensor) -> None:
    """`dst = src`, equal shapes: by DMA where both have runs, else through transposes on the array."""
    order = sorted(range(len(dst.shape)), key=lambda axis: -dst.strides[axis])
    dst, src = coalesce((dst.permute(*order), src.permute(*order)))
    own = _unit_axis(src)
    last = len(dst.shape) - 1
    is_plane = own is not None and own != last and dst.strides[last] == 1
    if not is_plane:
        b.dma(dst[:], src[:], "aux")
        return
    assert own is not None
    others = [i for i in range(last) if i != own]
    for at in _points(b, [dst.shape[i] for i in others]):
        turn_plane(b, site, _pick(dst, others, at, (own, last)), _pick(src, others, at, (last, own)))


def _unit_axis(view: Tensor) -> int | None:
    """The axis along which elements lie side by side."""
    return next((i for i, stride in enumerate(view.strides) if stride == 1 and view.shape[i] > 1), None)


def _points(b: Builder, sizes: Sequence[int]) -> Iterator[tuple[Affine, ...]]:
    """All index tuples, as nested loops."""
    if not sizes:
        yield ()
        return
    for i in b.tiles(sizes[0], 1, "i"):
        for rest in _points(b, sizes[1:]):
            yield (i.start, *rest)


def _pick(view: Tensor, axes: Sequence[int], at: Sequence[Affine], keep: Sequence[int]) -> Tensor:
    """The axes `keep` at the given point of the other axes."""
    offset = view.offset
    for axis, position in zip(axes, at, strict=True):
        offset = offset + position * view.strides[axis]
    shape, strides = (tuple(t[i] for i in keep) for t in (view.shape, view.strides))
    return replace(view, shape=shape, strides=strides, offset=offset)


def layout_pairs(one: Port, other: Port) -> Iterator[tuple[Tensor, Tensor]]:
    """A value in two layouts as pairs of views [features, blocks, leading, trailing] that cover it."""
    for port in (one, other):
        if any(axis != 1 for axis, _ in port.layout.splits):
            raise CompileError(f"{port.tensor.name}: lies as {port.layout}, which cannot be changed")
    features = one.type.shape[1]
    blocks = one.block or other.block or features, other.block or one.block or features
    for p in common_pieces(features, *blocks):
        yield (
            _part(one, blocks[0], p.block, p.source, p.count, p.size),
            _part(other, blocks[1], p.target_block, p.target, p.count, p.size),
        )


def _strides(port: Port) -> list[int]:
    """Distance of neighbours along each axis of a value that is not cut in blocks."""
    order = port.layout.order or tuple(range(len(port.type.shape)))
    return [port.tensor.strides[order.index(axis)] for axis in range(len(order))]


def _part(port: Port, block: int, first: int, partition: int, count: int, size: int) -> Tensor:
    lead, _, *tail = port.type.shape
    rest = prod(tail)
    shape = (size, count, lead, rest)
    if port.block:
        pitch, columns, by_lead, *by_rest = port.tensor.strides
        strides = (pitch, columns, by_lead, by_rest[-1] if by_rest else 1)
        offset = partition * pitch + first * columns
    else:
        by_lead, by_feature, *by_rest = _strides(port)
        last = by_rest[-1] if by_rest else 1
        strides = (by_feature, block * by_feature, by_lead, last)
        offset = (first * block + partition) * by_feature
    return replace(port.tensor, shape=shape, strides=strides, offset=port.tensor.offset + offset)


# ---- element by element --------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Job:
    """What is done with the tiles of the views, of which results come first."""

    outs: int
    compute: ComputeMany
    spare: int  # bytes an element of tiles that it makes


@dataclass(frozen=True, slots=True)
class _Axes:
    """Which axes of the views are on partitions, which are free, and which are looped over."""

    partition: int
    middle: int | None
    run: int
    outer: tuple[int, ...]


def pointwise(b: Builder, site: Site, out: Tensor, ins: Sequence[Tensor], compute: Compute) -> None:
    """`compute` for all elements; views of one shape, inputs may have strides of 0."""
    pointwise_many(b, site, (out,), ins, lambda ys, xs: compute(ys[0], xs))


def pointwise_many(
    b: Builder,
    site: Site,
    outs: Sequence[Tensor],
    ins: Sequence[Tensor],
    compute: ComputeMany,
    spare: int = 0,
) -> None:
    """The same with several results; `compute` makes tiles of `spare` bytes an element of its own."""
    views, job = coalesce((*outs, *ins)), _Job(len(outs), compute, spare)
    if len(views[0].shape) == 1:
        for part in _lines(views, site.arch.partitions(site.arch.scratchpad)):
            _pointwise(b, site, part, job)
        return
    _pointwise(b, site, views, job)


def _lines(views: Sequence[Tensor], partitions: int) -> Iterator[list[Tensor]]:
    """One axis as [partitions, elements], and what is left as [elements, 1]."""
    each, rest = divmod(views[0].shape[0], partitions)
    if each:
        yield [view.part(0, 0, partitions * each).split(0, each) for view in views]
    if rest:
        yield [view.part(0, partitions * each, rest).split(0, 1) for view in views]


def _pointwise(b: Builder, site: Site, views: list[Tensor], job: _Job) -> None:
    limit = site.arch.partitions(site.arch.scratchpad)
    views = _with_partitions(views, limit)
    axes, shape = _choose(views[0].shape, limit), views[0].shape
    size = sum(dtype_bytes(view.dtype) for view in views) + job.spare
    room = max(1, (site.room // site.slots - 64 * (len(views) + job.spare)) // size)
    run = min(shape[axes.run], room, max(1, LONG_RUN // dtype_bytes(views[0].dtype)))
    middle = 1 if axes.middle is None else max(1, min(shape[axes.middle], room // run, LONG_RUN // run))
    for at in _points(b, [shape[i] for i in axes.outer]):
        for p in b.tiles(shape[axes.partition], min(limit, shape[axes.partition]), "p"):
            for q in b.tiles(1 if axes.middle is None else shape[axes.middle], middle, "q"):
                for r in b.tiles(shape[axes.run], run, "r"):
                    _tile(b, site, [_cube(view, axes, at) for view in views], (p, q, r), job)


def _with_partitions(views: list[Tensor], limit: int) -> list[Tensor]:
    """Cut the last axis if all others are too short to fill the partitions."""
    shape = views[0].shape
    best, last = max(shape[:-1]), shape[-1]
    if best >= FEW:
        return views
    parts = max(d for d in range(1, limit + 1) if last % d == 0)
    return [view.split(len(shape) - 1, last // parts) for view in views] if parts > best else views


def _choose(shape: tuple[int, ...], limit: int) -> _Axes:
    """The longest axis but the last on partitions, the longest of the others beside the last."""
    run = len(shape) - 1
    order = sorted(range(run), key=lambda i: (-min(shape[i], limit), i))
    middle = max(order[1:], key=lambda i: (shape[i], -i), default=None)
    return _Axes(order[0], middle, run, tuple(i for i in sorted(order[1:]) if i != middle))


def _cube(view: Tensor, axes: _Axes, at: Sequence[Affine]) -> Tensor:
    """The view as [partition, middle, run] at a point of the outer axes."""
    if axes.middle is None:
        return _pick(view, axes.outer, at, (axes.partition, axes.run)).repeat(1, 1)
    return _pick(view, axes.outer, at, (axes.partition, axes.middle, axes.run))


def _tile(b: Builder, site: Site, cubes: list[Tensor], where: tuple[Range, Range, Range], job: _Job) -> None:
    outs, ins = cubes[: job.outs], cubes[job.outs :]
    shape = tuple(r.size for r in where)
    operands = []
    for view in ins:
        sizes = [1 if view.strides[i] == 0 and i else where[i].size for i in range(3)]
        tile = b.scratch(sizes, view.dtype, slots=site.slots, name="in")
        b.dma(tile[:], view[tuple((r.start, n) for r, n in zip(where, sizes, strict=True))], "input")
        strides = tuple(0 if n == 1 else s for n, s in zip(sizes, tile.strides, strict=True))
        operands.append(replace(tile, shape=shape, strides=strides)[:])
    ys = [b.scratch(shape, out.dtype, slots=site.slots, name="out")[:] for out in outs]
    job.compute(ys, operands)
    with b.stage(1):
        for out, y in zip(outs, ys, strict=True):
            b.dma(out[tuple((r.start, r.size) for r in where)], y, "output")
