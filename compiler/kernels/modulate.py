"""Sums gated by a value a sample, and rows of two streams joined and parted, whatever is on partitions."""

from __future__ import annotations

from collections.abc import Mapping

from arch_configs.spec import ArchSpec
from compiler.builder import Builder, Range
from compiler.ir.dtype import dtype_bytes
from compiler.ir.graph import Node, TensorType
from compiler.kernels.move import load_features, store_features, whole
from compiler.kernels.site import Port, Site
from compiler.kernels.strips import AT_ONCE, blocked, tile_counts
from compiler.kernels.wants import Anything, Features, Kernel, Same, Want, always
from compiler.ops.modulate import JoinRows, PartRows


def _alike_wants(node: Node, types: Mapping[str, TensorType], arch: ArchSpec) -> tuple[Want, ...]:
    return (Anything(), *(Same(0),) * len(node.inputs))


def gated_add(b: Builder, site: Site) -> None:
    """Lower `GatedAdd`: features on partitions, so that a gate is one value a partition."""
    x, residual, gate = site.inputs
    tokens, features = x.type.shape
    samples = gate.type.shape[0]
    each, item = tokens // samples, dtype_bytes(x.type.dtype)
    room = max(1, (site.room // site.slots - 1024) // (3 * item))
    columns = max(1, min(each, room, AT_ONCE // item))
    blocks = max(1, min(room, AT_ONCE // item) // columns)
    for first, count, rows in tile_counts(features, x.block):
        for k in b.tiles(count, min(blocks, count), "k"):
            at = Range((k.start + first) * x.block, k.size * rows, k.start)
            gates = b.scratch((x.block, k.size, samples), x.type.dtype, slots=site.slots, name="gate")
            load_features(b, gates, gate, at, whole(samples), "aux")
            for n in b.tiles(samples, 1, "n"):
                for t in b.tiles(each, columns, "t"):
                    where = Range(n.start * each + t.start, t.size, t.start)
                    shape = (x.block, k.size, t.size)
                    own, other, out = (
                        b.scratch(shape, x.type.dtype, slots=site.slots, name=name)
                        for name in ("x", "residual", "out")
                    )
                    load_features(b, own, x, at, where)
                    load_features(b, other, residual, at, where, "aux")
                    for j in b.tiles(k.size, 1, "j"):
                        part, scale = ((0, rows), j.start), gates[(0, rows), j.start, (n.start, 1)]
                        b.tensor_tensor(out[part], own[part], other[part], "add", scale=scale)
                    with b.stage(1):
                        store_features(b, out, site.outputs[0], at, where)


def _move_rows(b: Builder, source: Port, target: Port, batch: int, ranges: tuple[int, int, int]) -> None:
    """For each sample, `size` rows from row `start` of the source on to row `at` of the target, in DRAM."""
    start, at, size = ranges
    if not source.block:
        rows, place = (port.tensor.split(0, port.type.shape[0] // batch) for port in (source, target))
        b.dma(place[:, (at, size)], rows[:, (start, size)], "input")
        return
    rows, place = (blocked(port).split(2, port.type.shape[0] // batch) for port in (source, target))
    for first, count, size_p in tile_counts(source.type.shape[1], source.block):
        for n in b.tiles(batch, 1, "n"):
            head = ((0, size_p), (first, count), n.start)
            b.dma(place[(*head, (at, size))], rows[(*head, (start, size))], "input")


def join_rows(b: Builder, site: Site) -> None:
    """Lower `JoinRows`: both streams to their places in DRAM."""
    op, out = site.op, site.outputs[0]
    assert isinstance(op, JoinRows)
    at = 0
    for stream in site.inputs:
        size = stream.type.shape[0] // op.batch
        _move_rows(b, stream, out, op.batch, (0, at, size))
        at += size


def part_rows(b: Builder, site: Site) -> None:
    """Lower `PartRows`: the rows out of the others in DRAM."""
    op = site.op
    assert isinstance(op, PartRows)
    _move_rows(b, site.inputs[0], site.outputs[0], op.batch, (op.start, 0, op.stop - op.start))


GATED_ADD = Kernel(always(Features(), Same(0), Same(0), Same(0)), gated_add)
JOIN_ROWS = Kernel(_alike_wants, join_rows)
PART_ROWS = Kernel(_alike_wants, part_rows)
