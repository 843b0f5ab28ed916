"""Norms and softmax of row-major rows that are each spread over all partitions, as a core of a grid does it.

A row [features] lies as [partitions, features / partitions], so that its transfer has long runs and a row
alone keeps all lanes busy. Sums over partitions are products with ones on the array; maxima turn there and
come back.
"""

from __future__ import annotations

from dataclasses import dataclass

from arch_configs.spec import ArchSpec
from compiler.builder import Builder, Tensor
from compiler.ir.dtype import dtype_bytes
from compiler.isa import Access, Affine
from compiler.kernels.site import Port, Site, base_block
from compiler.ops.norm import LayerNorm, RmsNorm, Softmax

SHORTEST = 4  # elements of a row on each partition, below which rows go on partitions of their own; assumed


def spread_of(arch: ArchSpec, features: int) -> int:
    """Partitions that a row of `features` is spread over on a grid; 0 if they do not share it evenly."""
    if arch.grid is None or "fp32" not in arch.array.passes:
        return 0
    most = base_block(arch)
    parts = max(d for d in range(1, most + 1) if features % d == 0)
    return parts if 2 * parts >= most and features >= SHORTEST * parts else 0


@dataclass(frozen=True, slots=True)
class _Rows:
    """Some rows on chip: [partitions, rows, elements of a row on each]."""

    b: Builder
    site: Site
    ones: Tensor  # [partitions, partitions], fp32

    def scratch(self, shape: tuple[int, ...], name: str, dtype: str = "fp32") -> Tensor:
        """A tile."""
        return self.b.scratch(shape, dtype, slots=self.site.slots, name=name)

    def total(self, x: Access, rows: int) -> Tensor:
        """The sum of each row on every partition, in the accumulators: [partitions, rows]."""
        parts = self.ones.shape[0]
        own = self.scratch((parts, rows), "own")
        self.b.reduce(own[:], x, "add")
        total = self.b.accumulator((parts, rows), slots=self.site.slots, name="total")
        self.b.matmul(total[:], self.ones[:], own[:], model=False)
        return total

    def top(self, x: Access, rows: int, eye: Tensor) -> Tensor:
        """The maximum of each row on every partition: its own of each turned, reduced, and spread again."""
        b, parts, slots = self.b, self.ones.shape[0], self.site.slots
        own = self.scratch((parts, rows), "own")
        b.reduce(own[:], x, "max")
        turned = b.accumulator((rows, parts), slots=slots, name="turned")
        b.transpose(turned[:], own[:])
        peak = self.scratch((rows, 1), "peak")
        b.reduce(peak[:], turned[:], "max")
        diagonal = self.scratch((rows, rows), "diagonal")
        b.tensor_scalar(diagonal[:], eye[(0, rows), (0, rows)], "multiply", peak[:])
        spread = b.accumulator((parts, rows), slots=slots, name="spread")
        b.matmul(spread[:], self.ones[(0, rows),], diagonal[:], model=False)
        return spread


def _ones(b: Builder, parts: int) -> Tensor:
    ones = b.scratch((parts, parts), "fp32", name="ones")
    b.memset(ones[:], 1.0)
    return ones


def _eye(b: Builder, size: int) -> Tensor:
    """The identity."""
    eye = b.scratch((size, size), "fp32", name="eye")
    b.memset(eye[:], 1.0)
    for sign in (1, -1):
        b.affine_select(eye[:], eye[:], Affine(), sign, -sign, 0.0)
    return eye


def _at_once(site: Site, rows: int, each: int, tiles: int, itemsize: int) -> int:
    """Rows of a block: as many as `tiles` tiles of them fit, and as one matmul takes as columns."""
    room = site.room - 4 * 4 * base_block(site.arch)
    fits = room // (site.slots * (each * (2 * itemsize + 4 * tiles) + 64))
    bank = site.arch.bank_bytes(site.arch.accumulator) // 4
    return max(1, min(rows, fits, base_block(site.arch), bank, site.arch.array.moving_max))


def _spread(tensor: Tensor, parts: int) -> Tensor:
    """[rows, features] as [partitions, rows, features of a partition]."""
    return tensor.split(1, tensor.shape[1] // parts).permute(1, 0, 2)


def _vector(b: Builder, port: Port, parts: int, name: str) -> Tensor:
    """A vector of the features, spread as the rows are: [partitions, features of a partition]."""
    tile = b.scratch((parts, port.type.shape[0] // parts), port.type.dtype, name=name)
    b.dma(tile[:], port.tensor.split(0, tile.shape[1])[:], "aux")
    return tile


def norm_rows(b: Builder, site: Site, parts: int) -> None:
    """Lower `RmsNorm` and `LayerNorm` of row-major rows."""
    op, named, out = site.op, dict(zip(site.op.roles, site.inputs, strict=True)), site.outputs[0]
    assert isinstance(op, (RmsNorm, LayerNorm))
    x = named["x"]
    count, features = x.type.shape
    each = features // parts
    rows = _Rows(b, site, _ones(b, parts))
    gain = _vector(b, named["gain"], parts, "gain")
    beta = _vector(b, named["beta"], parts, "beta") if "beta" in named else None
    source, target = _spread(x.tensor, parts), _spread(out.tensor, parts)
    for r in b.tiles(count, _at_once(site, count, each, 2, dtype_bytes(x.type.dtype)), "r"):
        at, shape = (r.start, r.size), (parts, r.size, each)
        tile = rows.scratch(shape, "x", x.type.dtype)
        b.dma(tile[:], source[:, at, :], "input")
        wide = rows.scratch(shape, "wide")
        if beta is None:
            b.copy(wide[:], tile[:])
        else:
            mean = rows.total(tile[:], r.size)
            b.tensor_scalar(mean[:], mean[:], "multiply", 1.0 / features)
            b.tensor_tensor(wide[:], tile[:], mean.repeat(2, each)[:], "subtract")
        square = rows.scratch(shape, "square")
        b.tensor_tensor(square[:], wide[:], wide[:], "multiply")
        rstd = rows.total(square[:], r.size)
        b.tensor_scalar(rstd[:], rstd[:], "multiply", 1.0 / features, "add", op.eps)
        b.activate(rstd[:], rstd[:], "rsqrt")
        b.tensor_tensor(wide[:], wide[:], rstd.repeat(2, each)[:], "multiply")
        y = rows.scratch(shape, "y", out.type.dtype)
        b.tensor_tensor(y[:] if beta is None else wide[:], wide[:], gain.repeat(1, r.size)[:], "multiply")
        if beta is not None:
            b.tensor_tensor(y[:], wide[:], beta.repeat(1, r.size)[:], "add")
        with b.stage(1):
            b.dma(target[:, at, :], y[:], "output")


def softmax_rows(b: Builder, site: Site, parts: int) -> None:
    """Lower `Softmax` of rows [rows, columns]."""
    assert isinstance(site.op, Softmax)
    x, out = site.inputs[0], site.outputs[0]
    count, features = x.type.shape
    each = features // parts
    rows = _Rows(b, site, _ones(b, parts))
    most = _at_once(site, count, each, 1, dtype_bytes(x.type.dtype))
    eye = _eye(b, most)
    source, target = _spread(x.tensor, parts), _spread(out.tensor, parts)
    for r in b.tiles(count, most, "r"):
        at, shape = (r.start, r.size), (parts, r.size, each)
        tile = rows.scratch(shape, "x", x.type.dtype)
        b.dma(tile[:], source[:, at, :], "input")
        top = rows.top(tile[:], r.size, eye)
        weights = rows.scratch(shape, "weights")
        b.tensor_tensor(weights[:], tile[:], top.repeat(2, each)[:], "subtract")
        b.activate(weights[:], weights[:], "exp")
        total = rows.total(weights[:], r.size)
        b.activate(total[:], total[:], "reciprocal")
        y = rows.scratch(shape, "y", out.type.dtype)
        b.tensor_tensor(y[:], weights[:], total.repeat(2, each)[:], "multiply")
        with b.stage(1):
            b.dma(target[:, at, :], y[:], "output")
