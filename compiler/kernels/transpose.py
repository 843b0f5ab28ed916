"""Turning rows into features through the array: `Transpose2d` and `Embedding`."""

from __future__ import annotations

from compiler.builder import Builder, Tensor
from compiler.errors import Infeasible, Shortfall
from compiler.ir.dtype import dtype_bytes
from compiler.kernels.site import Port, Site
from compiler.kernels.strips import blocked, tile_counts
from compiler.kernels.turn import rows_at_once, turn_plane
from compiler.kernels.wants import PLAIN, Features, Kernel, always, plain_wants


def transpose2d(b: Builder, site: Site) -> None:
    """Lower `Transpose2d`."""
    turn_plane(b, site, site.outputs[0].tensor, site.inputs[0].tensor)


def embedding(b: Builder, site: Site) -> None:
    """Lower `Embedding`: gather rows onto partitions, turn them, store features.

    Raises Infeasible where the DMA cannot gather or the array cannot take the type.
    """
    ids, table = site.inputs
    out = site.outputs[0]
    check_rows(site, table.type.dtype)
    gather_features(b, site, ids.tensor, table.tensor, out)


def check_rows(site: Site, dtype: str) -> None:
    """Raise Infeasible where the DMA cannot gather rows or the array cannot turn the type."""
    check_gather(site)
    if not rows_at_once(site, dtype):
        need = f"engines.{site.arch.tensor}.passes.{dtype}"
        raise _unable(site, "array-dtype", site.arch.tensor, f"{dtype} on the array", need)


def check_gather(site: Site) -> None:
    """Raise Infeasible where the DMA cannot gather rows."""
    if not site.arch.dma.gather:
        raise _unable(site, "dma-gather", "dma", "transfers that gather rows", "dma.gather: true")


def gather_features(b: Builder, site: Site, ids: Tensor, table: Tensor, out: Port) -> None:
    """Rows `ids` of a row-major DRAM `table` to `out`, features on partitions."""
    step, dtype = rows_at_once(site, table.dtype), table.dtype
    tokens, features = out.type.shape
    target = blocked(out)
    for t in b.tiles(tokens, min(tokens, step), "t"):
        index = b.scratch((t.size, 1), "int32", slots=site.slots, name="ids")
        b.dma(index[:], ids[((t.start, t.size),)], "aux")
        for first, count, wide in tile_counts(features, out.block):
            at_once = _blocks_at_once(site, t.size, wide, count)
            for f in b.tiles(count, at_once, "f"):
                start = (f.start + first) * out.block
                rows = b.scratch((t.size, f.size * wide), dtype, slots=site.slots, name="rows")
                b.gather(rows[:], table[0, (start, f.size * wide)], index[:], features)
                y = b.scratch((wide, f.size, t.size), out.type.dtype, slots=site.slots, name="y")
                for j in b.tiles(f.size, 1, "j"):
                    turned = b.accumulator((wide, t.size), dtype=dtype, slots=site.slots, name="turned")
                    b.transpose(turned[:], rows[:, (j.start * wide, wide)])
                    b.copy(y[:, j.start], turned[:])
                with b.stage(1):
                    b.dma(target[(0, wide), (f.start + first, f.size), (t.start, t.size)], y[:], "output")


def _blocks_at_once(site: Site, tokens: int, wide: int, blocks: int) -> int:
    """Feature blocks whose rows and turned rows fit the scratchpad."""
    size = dtype_bytes(site.outputs[0].type.dtype)
    room = site.room // site.slots - 256
    return max(1, min(blocks, room // ((wide + tokens) * size)))


def _unable(site: Site, code: str, resource: str, what: str, fix: str) -> Infeasible:
    return Infeasible(Shortfall(code, resource, 1, 0, what, ((site.name, 1),), fix))


TRANSPOSE = Kernel(plain_wants, transpose2d)
EMBEDDING = Kernel(always(PLAIN, PLAIN, Features()), embedding)
