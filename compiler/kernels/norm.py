"""Normalisation over features that lie on partitions.

The sum over partitions is a matmul by a matrix of ones: the array adds up all features of a token and
leaves the sum on every partition, where the elementwise engines need it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from arch_configs.spec import ArchSpec
from compiler.builder import Builder, Range, Tensor
from compiler.ir.dtype import dtype_bytes
from compiler.ir.graph import Node, TensorType
from compiler.ir.layout import ROW_MAJOR
from compiler.kernels.move import load_features, load_vector, store_features, whole
from compiler.kernels.site import Port, Site, grouped
from compiler.kernels.wants import Features, Fixed, Kernel, Same, Want
from compiler.ops.matmul import Linear
from compiler.ops.norm import LayerNorm, RmsNorm


@dataclass(frozen=True, slots=True)
class _Norm:
    """What the statistics need."""

    layer: bool  # subtract the mean and add beta
    eps: float
    features: int


def _describe(op: object, features: int) -> _Norm:
    if isinstance(op, Linear):
        return _Norm(op.norm == "layer", op.eps, features)
    assert isinstance(op, (LayerNorm, RmsNorm))
    return _Norm(isinstance(op, LayerNorm), op.eps, features)


def chunk(site: Site, tokens: int) -> int:
    """Tokens whose sums fit one accumulator bank."""
    bank = site.arch.bank_bytes(site.arch.accumulator) // 4
    return min(tokens, site.arch.array.moving_max, bank)


def normalise_bytes(tokens: int, k_tiles: int) -> int:
    """Scratchpad bytes a partition that `normalise` needs beside x."""
    return 4 * 4 * 2 * min(tokens, 512) + 16 * k_tiles + 256


def normalise(b: Builder, site: Site, x: Tensor, features: int, gain: Port | None, beta: Port | None) -> None:
    """Normalise `x` [rows, feature tiles, tokens] in place, in pieces of tokens.

    Rows are at most the array's columns, since the sums come out on as many partitions.
    """
    norm = _describe(site.op, features)
    rows = x.shape[0]
    dtype = x.dtype
    parts = max(rows, 1)
    ones = b.scratch((rows, parts), dtype, name="ones")
    b.memset(ones[:], 1.0)
    g = load_vector(b, gain, features, rows, "gain") if gain else None
    h = load_vector(b, beta, features, rows, "beta") if beta else None
    for t in b.tiles(x.shape[2], chunk(site, x.shape[2]), "nt"):
        cols = (t.start, t.size)
        mean, rstd = _statistics(b, site, norm, x, ones, t)
        for first, tiles, size in _feature_tiles(features, rows):
            for f in b.tiles(tiles, 1, "nf"):
                k = f.start + first
                part = x[(0, size), k, cols]
                if mean is not None:
                    b.tensor_tensor(part, part, mean[(0, size), (0, t.size)], "subtract")
                scale = g[(0, size), k] if g is not None else 1.0
                b.tensor_tensor(part, part, rstd[(0, size), (0, t.size)], "multiply", scale=scale)
                if h is not None:
                    b.tensor_scalar(part, part, "add", h[(0, size), k])


def _feature_tiles(features: int, rows: int) -> list[tuple[int, int, int]]:
    """(first tile, tiles, rows) of the whole and of the short last tile."""
    tiles, rest = divmod(features, rows)
    return [p for p in ((0, tiles, rows), (tiles, 1, rest)) if p[1] and p[2]]


def _statistics(
    b: Builder, site: Site, norm: _Norm, x: Tensor, ones: Tensor, t: Range
) -> tuple[Tensor | None, Tensor]:
    """(mean or None, 1 / standard deviation), each [rows, tokens] with equal rows."""
    rows, cols = x.shape[0], (t.start, t.size)
    slots = site.slots
    squares = b.accumulator((rows, t.size), slots=slots, name="squares")
    sums = b.accumulator((rows, t.size), slots=slots, name="sums") if norm.layer else None
    for first, tiles, size in _feature_tiles(norm.features, rows):
        for f in b.tiles(tiles, 1, "ns"):
            k = f.start + first
            reset = None if first else (f.start,)
            square = b.scratch((rows, t.size), x.dtype, slots=slots, name="square")
            b.activate(square[(0, size),], x[(0, size), k, cols], "square")
            b.matmul(squares[:], ones[(0, size),], square[(0, size),], reset=reset, model=False)
            if sums is not None:
                b.matmul(sums[:], ones[(0, size),], x[(0, size), k, cols], reset=reset, model=False)
    rstd = b.scratch((rows, t.size), "fp32", slots=slots, name="rstd")
    if sums is None:
        b.tensor_scalar(rstd[:], squares[:], "multiply", 1.0 / norm.features, "add", norm.eps)
        b.activate(rstd[:], rstd[:], "rsqrt")
        return None, rstd
    mean = b.scratch((rows, t.size), "fp32", slots=slots, name="mean")
    b.tensor_scalar(mean[:], sums[:], "multiply", 1.0 / norm.features)
    spread = b.scratch((rows, t.size), "fp32", slots=slots, name="spread")
    b.tensor_tensor(spread[:], mean[:], mean[:], "multiply")
    b.tensor_scalar(rstd[:], squares[:], "multiply", 1.0 / norm.features, "add", norm.eps)
    b.tensor_tensor(rstd[:], rstd[:], spread[:], "subtract")
    b.activate(rstd[:], rstd[:], "rsqrt")
    return mean, rstd


def normalised_copy(b: Builder, site: Site, x: Port, gain: Port | None, beta: Port | None) -> Port:
    """x, normalised into a new DRAM tensor, for consumers that cannot hold whole columns of it."""
    out = Port(b.dram(f"{site.name}.normalised", x.tensor.shape, x.type.dtype), x.type, x.layout)
    _stream(b, site, x, out, gain, beta)
    return out


def norm_op(b: Builder, site: Site) -> None:
    """Lower `RmsNorm` and `LayerNorm`."""
    x, gain = site.inputs[0], site.inputs[1]
    beta = site.inputs[2] if len(site.inputs) > 2 else None
    _stream(b, site, x, site.outputs[0], gain, beta)


def _stream(b: Builder, site: Site, x: Port, out: Port, gain: Port | None, beta: Port | None) -> None:
    """Token block by token block: load, normalise, store."""
    tokens, features = x.type.shape
    rows = grouped(min(site.arch.array.rows, site.arch.array.cols), x.block)
    tiles = -(-features // rows)
    size = dtype_bytes(x.type.dtype)
    room = site.room
    block = chunk(site, tokens)
    while block > 1 and tiles * block * size * site.slots + normalise_bytes(block, tiles) > room:
        block //= 2
    for t in b.tiles(tokens, block, "t"):
        tile = b.scratch((rows, tiles, t.size), x.type.dtype, slots=site.slots, name="x")
        load_features(b, tile, x, whole(features), t)
        normalise(b, site, tile, features, gain, beta)
        with b.stage(1):
            store_features(b, tile, out, whole(features), t)


def _wants(node: Node, types: Mapping[str, TensorType], arch: ArchSpec) -> tuple[Want, ...]:
    return (Features(), *(Fixed(ROW_MAJOR) for _ in node.inputs[1:]), Same(0))


KERNEL = Kernel(_wants, norm_op)
