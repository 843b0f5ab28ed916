"""Contractions in parts, and the parts brought together: the kernels of one part, a part at a time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from arch_configs.spec import ArchSpec
from compiler.builder import Builder, Tensor
from compiler.ir.dtype import dtype_bytes
from compiler.ir.graph import Node, TensorType
from compiler.ir.layout import ROW_MAJOR, Layout, feature_blocked, weight_blocked
from compiler.isa import Access, Affine
from compiler.kernels.decode import Decode
from compiler.kernels.kv import value_cache_layout
from compiler.kernels.matmul import linear
from compiler.kernels.matmul_plan import weight_tiles
from compiler.kernels.site import Port, Site, base_block, head_block
from compiler.kernels.strips import tile_counts
from compiler.kernels.views import pointwise
from compiler.kernels.wants import Features, Fixed, Follows, Kernel, Want
from compiler.ops.attention import DecodeAttention
from compiler.ops.matmul import Linear
from compiler.ops.split import JoinParts, PartialDecode, PartialLinear


def parts_blocked(block: int) -> Layout:
    """[parts, tokens, features] stored as [feature in block, block, parts, tokens]."""
    return Layout(((2, block),), (3, 2, 0, 1))


def _of_part(port: Port, at: Affine) -> Port:
    """One part of a value that lies as `parts_blocked`: as a value with its features on partitions."""
    kind = replace(port.type, shape=port.type.shape[1:])
    return Port(port.tensor.pick(2, at), kind, feature_blocked(port.block))


# ---- linear layers -------------------------------------------------------------------------------


def _linear_wants(node: Node, types: Mapping[str, TensorType], arch: ArchSpec) -> tuple[Want, ...]:
    block = base_block(arch)

    def weight(layouts: Mapping[str, Layout], n: Node) -> Layout:
        k, columns = types[n.inputs[1]].shape
        return weight_blocked(*weight_tiles(arch, k, columns, layouts[n.inputs[0]].splits[0][1], block))

    return Features(), Follows(weight), Fixed(parts_blocked(block))


def partial_linear(b: Builder, site: Site) -> None:
    """Lower `PartialLinear`."""
    op, (x, w), out = site.op, site.inputs, site.outputs[0]
    assert isinstance(op, PartialLinear)
    wide = x.type.shape[1] // op.parts
    x_block, w_block = x.block, dict(w.layout.splits)[0]
    for part in b.tiles(op.parts, 1, "part"):
        mine = (
            Port(
                x.tensor.part(1, part.start * wide // x_block, -(-wide // x_block)),
                replace(x.type, shape=(x.type.shape[0], wide)),
                x.layout,
            ),
            Port(
                w.tensor.part(2, part.start * wide // w_block, -(-wide // w_block)),
                replace(w.type, shape=(wide, w.type.shape[1])),
                w.layout,
            ),
        )
        whole = Linear(out_dtype="fp32")
        linear(b, replace(site, op=whole, inputs=mine, outputs=(_of_part(out, part.start),)))


def _sum_wants(node: Node, types: Mapping[str, TensorType], arch: ArchSpec) -> tuple[Want, ...]:
    block = base_block(arch)
    return Fixed(parts_blocked(block)), Fixed(feature_blocked(block))


def sum_parts(b: Builder, site: Site) -> None:
    """Lower `SumParts`: all parts of a tile are loaded and added in fp32."""
    x, out = site.inputs[0], site.outputs[0]

    def add(y: Access, parts: Sequence[Access]) -> None:
        first, *rest = parts
        for i, part in enumerate(rest):
            b.tensor_tensor(y if i + 1 == len(rest) else first, first, part, "add")
        if not rest:
            b.copy(y, first)

    for first, count, rows in tile_counts(out.type.shape[1], out.block):
        mine = [x.tensor.pick(2, p).part(1, first, count).part(0, 0, rows) for p in range(x.type.shape[0])]
        pointwise(b, site, out.tensor.part(1, first, count).part(0, 0, rows), mine, add)


# ---- attention over a cache ----------------------------------------------------------------------


def _decode_wants(node: Node, types: Mapping[str, TensorType], arch: ArchSpec) -> tuple[Want, ...]:
    op = node.op
    assert isinstance(op, PartialDecode)
    heads, values = feature_blocked(head_block(arch, op.head_dim)), head_block(arch, op.values)
    caches = Fixed(ROW_MAJOR), Fixed(value_cache_layout(arch))
    return Fixed(heads), *caches, Fixed(parts_blocked(values)), Fixed(ROW_MAJOR)


def partial_decode(b: Builder, site: Site) -> None:
    """Lower `PartialDecode`: attention over one part of the caches after the other."""
    op, (q, k, v), (out, sums) = site.op, site.inputs, site.outputs
    assert isinstance(op, PartialDecode)
    block = dict(v.layout.splits)[2]
    whole = DecodeAttention(
        op.batch, op.heads, op.kv_heads, op.head_dim, op.scale, op.keys,
        causal=False, value_dim=op.value_dim, softcap=op.softcap,
    )  # fmt: skip
    for part in b.tiles(op.parts, 1, "part"):
        first = part.start * op.keys
        keys = Port(k.tensor.part(3, first, op.keys), _positions(k.type, 3, op.keys), k.layout)
        blocks = v.tensor.part(3, first // block, -(-op.keys // block))
        values = Port(blocks, _positions(v.type, 2, op.keys), v.layout)
        mine = replace(site, op=whole, inputs=(q, keys, values), outputs=(_of_part(out, part.start),))
        Decode(b, mine, whole, sums=sums.tensor.pick(1, part.start)).run()


def _positions(kind: TensorType, axis: int, count: int) -> TensorType:
    return replace(kind, shape=(*kind.shape[:axis], count, *kind.shape[axis + 1 :]))


def _join_wants(node: Node, types: Mapping[str, TensorType], arch: ArchSpec) -> tuple[Want, ...]:
    x, sums = (types[name].shape for name in node.inputs)
    block = head_block(arch, x[2] // sums[0])
    return Fixed(parts_blocked(block)), Fixed(ROW_MAJOR), Fixed(feature_blocked(block))


def join_parts(b: Builder, site: Site) -> None:
    """Lower `JoinParts`, some heads and tokens at a time: weights of the parts, then the weighted sum."""
    (x, sums), out = site.inputs, site.outputs[0]
    assert isinstance(site.op, JoinParts)
    (parts, tokens, _), heads = x.type.shape, sums.type.shape[0]
    blocks = x.type.shape[2] // heads // x.block  # of a head
    each = parts * (blocks * (dtype_bytes(x.type.dtype) + 4) + 12) + 16 * blocks  # bytes a partition
    room = max(1, site.room // (site.slots * each))
    few = min(tokens, room)
    some = max(1, min(heads, room // few))
    for h in b.tiles(heads, some, "h"):
        for t in b.tiles(tokens, few, "t"):
            head, token = (h.start, h.size), (t.start, t.size)
            own = (h.start * blocks, h.size * blocks)
            tile = b.scratch(
                (x.block, h.size * blocks, parts, t.size), x.type.dtype, slots=site.slots, name="x"
            )
            b.dma(tile[:], x.tensor[:, own, :, token], "input")
            weights, total = _weights(b, site, sums.tensor, head, token, x.block)
            y = _weighted(b, site, tile, weights, total, blocks)
            with b.stage(1):
                b.dma(out.tensor[:, own, token], y[:], "output")


Part = tuple[Affine, int]


def _weights(
    b: Builder, site: Site, sums: Tensor, heads: Part, tokens: Part, rows: int
) -> tuple[Tensor, Tensor]:
    """`exp(sums - maximum)` [rows, heads, parts, tokens], alike on all partitions, and its sum over parts."""
    parts = sums.shape[1]
    shape = (rows, heads[1], parts, tokens[1])
    logs = b.scratch(shape, "fp32", slots=site.slots, name="sums")
    b.dma(logs[:], sums.repeat(0, rows)[:, heads, :, tokens], "aux")
    top = b.scratch((rows, heads[1], tokens[1]), "fp32", slots=site.slots, name="top")
    by_part = logs.permute(0, 1, 3, 2)
    b.reduce(top[:], by_part[:], "max")
    weights = b.scratch(shape, "fp32", slots=site.slots, name="weights")
    b.tensor_tensor(weights[:], logs[:], top.repeat(2, parts)[:], "subtract")
    b.activate(weights[:], weights[:], "exp")
    total = b.scratch((rows, heads[1], tokens[1]), "fp32", slots=site.slots, name="total")
    b.reduce(total[:], weights.permute(0, 1, 3, 2)[:], "add")
    return weights, total


def _weighted(b: Builder, site: Site, x: Tensor, weights: Tensor, total: Tensor, blocks: int) -> Tensor:
    """The sum over parts of `x` times its weights, over their total: [rows, heads x blocks, tokens]."""
    rows, features, parts, tokens = x.shape
    heads = features // blocks
    product = b.scratch((rows, heads, blocks, parts, tokens), "fp32", slots=site.slots, name="product")
    b.tensor_tensor(product[:], x.split(1, blocks)[:], weights.repeat(2, blocks)[:], "multiply")
    summed = b.scratch((rows, heads, blocks, tokens), "fp32", slots=site.slots, name="summed")
    b.reduce(summed[:], product.permute(0, 1, 2, 4, 3)[:], "add")
    y = b.scratch((rows, heads, blocks, tokens), x.dtype, slots=site.slots, name="y")
    b.tensor_tensor(y[:], summed[:], total.repeat(2, blocks)[:], "divide")
    return y.merge(1)


PARTIAL_LINEAR = Kernel(_linear_wants, partial_linear)
SUM_PARTS = Kernel(_sum_wants, sum_parts)
PARTIAL_DECODE = Kernel(_decode_wants, partial_decode)
JOIN_PARTS = Kernel(_join_wants, join_parts)
