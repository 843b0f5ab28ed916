"""Bias by distance: rows of the table to a strip of all distances, then a transfer from it for each query."""

from __future__ import annotations

from compiler.builder import ROLES, Builder
from compiler.ir.graph import TensorType
from compiler.ir.layout import feature_blocked
from compiler.kernels.site import Port, Site, base_block
from compiler.kernels.transpose import check_rows, gather_features
from compiler.kernels.wants import Kernel, plain_wants
from compiler.ops.relative import RelativeBias


def relative_bias(b: Builder, site: Site) -> None:
    """Lower a `RelativeBias` op. Raises Infeasible where rows cannot be gathered or turned."""
    op = site.op
    assert isinstance(op, RelativeBias)
    index, table = site.inputs
    check_rows(site, table.type.dtype)
    heads = table.type.shape[1]
    kind = TensorType((op.queries + op.keys - 1, heads), table.type.dtype)
    layout = feature_blocked(min(base_block(site.arch), heads))
    strip = b.dram(f"{site.name}.strip", layout.stored_shape(kind.shape), kind.dtype)
    port = Port(strip, kind, layout)
    gather_features(b, site, index.tensor, table.tensor, port)
    out = site.outputs[0].tensor
    for q in b.tiles(op.queries, min(len(ROLES), op.queries), "q"):
        for i in range(q.size):
            for first in range(0, heads, port.block):
                mine = min(port.block, heads - first)
                columns = (q.start * -1 + (op.queries - 1 - i), op.keys)
                source = strip[(0, mine), first // port.block, columns]
                b.dma(out[0, (first, mine), q.start + i], source, ROLES[i], lanes=1)


KERNEL = Kernel(plain_wants, relative_bias)
