"""General ops: moves of any tensor, and functions of elements that are broadcast."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from arch_configs.spec import ArchSpec
from compiler.builder import Builder, Tensor
from compiler.ir.graph import Node, TensorType
from compiler.isa import Access
from compiler.kernels.pixels import join_channels
from compiler.kernels.site import Site
from compiler.kernels.views import copy_view, layout_pairs, plain, pointwise, spread_to
from compiler.kernels.wants import Anything, Kernel, Want, always, features_wants, plain_wants
from compiler.ops.positions import Update
from compiler.ops.tensor import Concat, Expand, Pad, Permute, Reshape, Slice


def move(b: Builder, site: Site) -> None:
    """Lower an op whose result is a strided view of its operand."""
    op, x, out = site.op, site.inputs[0], plain(site.outputs[0])
    view = plain(x)
    if isinstance(op, Reshape):
        view = plain(x, op.shape)
    elif isinstance(op, Permute):
        view = view.permute(*op.order)
    elif isinstance(op, Slice):
        for axis, part in enumerate(op.slices):
            view = view.part(axis, part.start, out.shape[axis])
        steps = op.steps or (1,) * len(op.starts)
        view = view.with_strides(tuple(s * step for s, step in zip(view.strides, steps, strict=True)))
    elif isinstance(op, Expand):
        view = spread_to(view, op.shape)
    copy_view(b, site, out, view)


def _concat_wants(node: Node, types: Mapping[str, TensorType], arch: ArchSpec) -> tuple[Want, ...]:
    """Channels of images are joined as they lie on partitions."""
    of_channels = isinstance(node.op, Concat) and node.op.axis == 1 and len(types[node.inputs[0]].shape) == 4
    return features_wants(node, types, arch) if of_channels else plain_wants(node, types, arch)


def concat(b: Builder, site: Site) -> None:
    """Lower `Concat`: each operand to its place."""
    if site.outputs[0].block:
        join_channels(b, site)
        return
    op, out, at = site.op, plain(site.outputs[0]), 0
    assert isinstance(op, Concat)
    for port in site.inputs:
        size = port.type.shape[op.axis]
        copy_view(b, site, out.part(op.axis, at, size), plain(port))
        at += size


def pad(b: Builder, site: Site) -> None:
    """Lower `Pad`: the operand to its place, and slabs of the value around it, axis by axis."""
    op, x, out = site.op, site.inputs[0], plain(site.outputs[0])
    assert isinstance(op, Pad)
    for (slab,) in _slabs((out,), op.low, x.type.shape):
        pointwise(b, site, slab, (), lambda y, _: b.memset(y, op.value))
    copy_view(b, site, _inside(out, op.low, x.type.shape), plain(x))


def update(b: Builder, site: Site) -> None:
    """Lower `Update`: the part to its place, and slabs of x around it."""
    op, (x, part), out = site.op, site.inputs, plain(site.outputs[0])
    assert isinstance(op, Update)
    for target, source in _slabs((out, plain(x)), op.starts, part.type.shape):
        copy_view(b, site, target, source)
    copy_view(b, site, _inside(out, op.starts, part.type.shape), plain(part))


def _inside(view: Tensor, starts: Sequence[int], sizes: Sequence[int]) -> Tensor:
    """The box of `sizes` from `starts` on."""
    for axis, (start, size) in enumerate(zip(starts, sizes, strict=True)):
        view = view.part(axis, start, size)
    return view


def _slabs(
    views: tuple[Tensor, ...], starts: Sequence[int], sizes: Sequence[int]
) -> Iterator[tuple[Tensor, ...]]:
    """What lies around a box in views of one shape: slabs on each axis, within the box on those before."""
    for axis, (start, size) in enumerate(zip(starts, sizes, strict=True)):
        for first, length in ((0, start), (start + size, views[0].shape[axis] - start - size)):
            if length:
                yield tuple(view.part(axis, first, length) for view in views)
        views = tuple(view.part(axis, start, size) for view in views)


def relayout(b: Builder, site: Site) -> None:
    """Lower `Relayout`: block by block of features."""
    for source, target in layout_pairs(site.inputs[0], site.outputs[0]):
        copy_view(b, site, target, source)


def select(b: Builder, site: Site) -> None:
    """Lower `Select`."""
    out = plain(site.outputs[0])
    ins = [spread_to(plain(port), out.shape) for port in site.inputs]
    pointwise(b, site, out, ins, lambda y, t: blend(b, site, y, t))


def blend(b: Builder, site: Site, y: Access, ins: Sequence[Access]) -> None:
    """`rhs + mask * (lhs - rhs)` with a mask of ones and zeros: operands must be finite."""
    cond, lhs, rhs = ins
    sizes = (y.partitions, *(size for _, size in y.dims))
    mask, rest = (b.scratch(sizes, "fp32", slots=site.slots, name=name) for name in ("mask", "rest"))
    b.tensor_scalar(mask[:], cond, "not_equal", 0.0)
    b.tensor_scalar(rest[:], mask[:], "multiply", -1.0, "add", 1.0)
    b.tensor_tensor(mask[:], mask[:], lhs, "multiply")
    b.tensor_tensor(rest[:], rest[:], rhs, "multiply")
    b.tensor_tensor(y, mask[:], rest[:], "add")


MOVE = Kernel(plain_wants, move)
CONCAT = Kernel(_concat_wants, concat)
PAD = Kernel(plain_wants, pad)
UPDATE = Kernel(plain_wants, update)
RELAYOUT = Kernel(always(Anything(), Anything()), relayout)
SELECT = Kernel(plain_wants, select)
