"""`ElementwiseGroup`: every operand loaded once, all steps on tiles, results stored."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from arch_configs.spec import ArchSpec
from compiler.builder import Builder, Tensor
from compiler.ir.dtype import dtype_bytes
from compiler.ir.graph import Node, TensorType
from compiler.isa import Access
from compiler.kernels.elementwise import apply, strip_pairs
from compiler.kernels.general import blend
from compiler.kernels.group_plan import Action, Places, actions, places
from compiler.kernels.site import Port, Site
from compiler.kernels.strips import regular, strip_block
from compiler.kernels.views import plain, pointwise_many, spread_to
from compiler.kernels.wants import PLAIN, Anything, Kernel, Same, Want
from compiler.ops.elementwise import Binary, Select, Unary
from compiler.ops.group import ElementwiseGroup


def _wants(node: Node, types: Mapping[str, TensorType], arch: ArchSpec) -> tuple[Want, ...]:
    """Operands of the full shape lie alike, whatever way; what is broadcast is row-major."""
    shape = types[node.outputs[0]].shape
    names = (*node.inputs, *node.outputs)
    first = next(i for i, name in enumerate(names) if types[name].shape == shape)
    return tuple(
        Anything() if i == first else Same(first) if types[name].shape == shape else PLAIN
        for i, name in enumerate(names)
    )


def group(b: Builder, site: Site) -> None:
    """Lower `ElementwiseGroup`."""
    op, out = site.op, site.outputs[0]
    assert isinstance(op, ElementwiseGroup)
    types = op.types(tuple(port.type for port in site.inputs))
    alike = [_is_alike(port, out) for port in site.inputs]
    plan = actions(op)
    where = places(op, plan, types, alike)

    def compute(ys: Sequence[Access], xs: Sequence[Access]) -> None:
        _compute(b, site, plan, where, ys, xs)

    if all(alike) and all(port.tensor.is_dense for port in (*site.inputs, *site.outputs)):
        _alike(b, site, where, plan)
        return
    outs = [regular(port) for port in site.outputs]
    ins = [regular(p) if same else _spread(p, out) for p, same in zip(site.inputs, alike, strict=True)]
    for i in range(len(outs[0])):
        targets, sources = ([views[i] for views in side] for side in (outs, ins))
        pointwise_many(b, site, targets, sources, compute, where.bytes)


def _is_alike(port: Port, out: Port) -> bool:
    return port.type.shape == out.type.shape and port.layout == out.layout


def _spread(port: Port, out: Port) -> list[Tensor]:
    """An operand that is broadcast as views like those of `out`."""
    view = spread_to(plain(port), out.type.shape)
    if not out.block:
        return [view.permute(*out.layout.order) if out.layout.order else view]
    (tokens, features), (by_token, by_feature), block = out.type.shape, view.strides, out.block
    whole, rest = divmod(features, block)
    strides = (by_feature, block * by_feature, by_token)
    found = [replace(view, shape=(block, whole, tokens), strides=strides)] if whole else []
    if rest:
        offset = view.offset + whole * block * by_feature
        found.append(replace(view, shape=(rest, 1, tokens), strides=strides, offset=offset))
    return found


def _alike(b: Builder, site: Site, where: Places, plan: list[Action]) -> None:
    """All values lie alike: which element is which does not matter."""
    ports = (*site.outputs, *site.inputs)
    tiles = len(ports) + len(where.spare) + 2 * where.extra // 8
    size = sum(dtype_bytes(port.type.dtype) for port in ports) + where.bytes
    for parts in strip_pairs(site, ports):
        outs, ins = parts[: len(site.outputs)], parts[len(site.outputs) :]
        length, partitions = parts[0].length, parts[0].partitions
        for t in b.tiles(length, strip_block(site, length, size, 64 * tiles * site.slots), "e"):
            ys, xs = (
                [
                    b.scratch((partitions, t.size), port.type.dtype, slots=site.slots, name=name)[:]
                    for port in side
                ]
                for side, name in ((site.outputs, "y"), (site.inputs, "x"))
            )
            for x, source in zip(xs, ins, strict=True):
                b.dma(x, source(t.start, t.size), "input")
            _compute(b, site, plan, where, ys, xs)
            with b.stage(1):
                for y, target in zip(ys, outs, strict=True):
                    b.dma(target(t.start, t.size), y, "output")


def _compute(
    b: Builder,
    site: Site,
    plan: list[Action],
    where: Places,
    ys: Sequence[Access],
    xs: Sequence[Access],
) -> None:
    """The instructions of one tile."""
    sizes = (ys[0].partitions, *(size for _, size in ys[0].dims))
    spare = [b.scratch(sizes, dtype, slots=site.slots, name="t")[:] for dtype in where.spare]
    tiles = {"x": xs, "y": ys, "t": spare}

    def at(number: int) -> Access:
        side, index = where.of[number]
        return tiles[side][index]

    for action in plan:
        _act(b, site, action, at(action.out), [at(number) for number in action.args])


def _act(b: Builder, site: Site, action: Action, y: Access, ins: list[Access]) -> None:
    op, chain = action.op, action.chain
    if op is None:
        (func, value), *rest = chain
        b.tensor_scalar(y, ins[0], func, value, *(rest[0] if rest else ()))
    elif isinstance(op, Unary) and chain:
        factors = dict(chain)
        b.activate(y, ins[0], op.func, scale=factors.get("mul", 1.0), bias=factors.get("add", 0.0))
    elif isinstance(op, Binary):
        b.tensor_tensor(y, ins[0], ins[1], op.func, scale=chain[0][1] if chain else 1.0)
    elif isinstance(op, Select):
        blend(b, site, y, ins)
    else:
        apply(b, op, y, ins[0])


KERNEL = Kernel(_wants, group)
