"""Normalisation over features that lie on partitions.

The sum over partitions is a matmul by a matrix of ones: the array adds up all features of a token and
leaves the sum on every partition, where the elementwise engines need it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from arch_configs.spec import ArchSpec
from compiler.builder import Builder, Range, Tensor
from compiler.ir.dtype import dtype_bytes
from compiler.ir.graph import Node, TensorType
from compiler.ir.layout import feature_blocked
from compiler.isa import Access, Affine
from compiler.kernels.move import load_features, load_vector, store_features, whole
from compiler.kernels.rowwise import norm_rows, spread_of
from compiler.kernels.site import Port, Site, grouped, head_block
from compiler.kernels.wants import PLAIN, Anything, Features, Fixed, Kernel, Same, Want, always
from compiler.ops.matmul import Linear
from compiler.ops.modulate import AdaptiveNorm
from compiler.ops.norm import LayerNorm, RmsNorm


@dataclass(frozen=True, slots=True)
class Norm:
    """What normalising needs beside x, loaded once: a matrix of ones; gain and shift."""

    features: int
    eps: float
    ones: Tensor
    gain: Tensor | None
    beta: Tensor | None
    centre: bool  # subtract the mean
    sample: Affine | None = None  # of several gains and shifts, the one to use

    def vector(self, values: Tensor, size: int, k: Affine) -> Access:
        """Gain or shift of the first `size` features of tile `k`."""
        if self.sample is None:
            return values[(0, size), k]
        return values[(0, size), k, (self.sample, 1)]

    @classmethod
    def load(
        cls, b: Builder, site: Site, features: int, rows: int, gain: Port | None, beta: Port | None
    ) -> Norm:
        """For x tiles of `rows` partitions; `gain` and `beta` have `features` elements."""
        op = site.op
        assert isinstance(op, (Linear, LayerNorm, RmsNorm))
        ones = _ones(b, site, rows)
        g = load_vector(b, gain, features, rows, "gain") if gain else None
        h = load_vector(b, beta, features, rows, "beta") if beta else None
        centre = isinstance(op, LayerNorm) or (isinstance(op, Linear) and op.norm == "layer")
        return cls(features, op.eps, ones, g, h, centre)

    @classmethod
    def load_samples(cls, b: Builder, site: Site, rows: int) -> Norm:
        """For `AdaptiveNorm`: the gains and shifts of all samples, [rows, tiles, samples]."""
        op, (_, scale, shift) = site.op, site.inputs
        assert isinstance(op, AdaptiveNorm)
        samples, features = scale.type.shape
        shape = (min(rows, features), -(-features // rows), samples)
        loaded = []
        for port, name in ((scale, "scale"), (shift, "shift")):
            tile = b.scratch(shape, port.type.dtype, name=name)
            load_features(b, tile, port, whole(features), whole(samples), "aux")
            loaded.append(tile)
        gain = b.scratch(shape, "fp32", name="gain")
        for first, tiles, size in _feature_tiles(features, rows):
            part = ((0, size), (first, tiles))
            b.tensor_scalar(gain[part], loaded[0][part], "add", 1.0)
        return cls(features, op.eps, _ones(b, site, rows), gain, loaded[1], True, Affine())


def _ones(b: Builder, site: Site, rows: int) -> Tensor:
    """What sums over partitions on the array."""
    ones = b.scratch((rows, rows), site.inputs[0].type.dtype, name="ones")
    b.memset(ones[:], 1.0)
    return ones


def chunk(site: Site, tokens: int) -> int:
    """Tokens whose sums fit one accumulator bank."""
    bank = site.arch.bank_bytes(site.arch.accumulator) // 4
    return min(tokens, site.arch.array.moving_max, bank)


def normalise_bytes(tokens: int, k_tiles: int) -> int:
    """Scratchpad bytes a partition that `normalise` needs beside x."""
    return 4 * 4 * 2 * min(tokens, 512) + 16 * k_tiles + 256


def normalise(b: Builder, site: Site, norm: Norm, x: Tensor) -> None:
    """Normalise `x` [rows, feature tiles, tokens] in place, in pieces of tokens.

    Rows are at most the array's columns, since the sums come out on as many partitions. The mean is taken
    off before squares are summed: the difference of two large sums would lose the variance. Statistics stay
    in the accumulators: a vector engine reads one operand from there beside x at full rate.
    """
    share = 1.0 / norm.features
    for t in b.tiles(x.shape[2], chunk(site, x.shape[2]), "nt"):
        pieces = _Pieces(norm, x, t)
        if norm.centre:
            mean = _sum_features(b, site, pieces, square=False)
            b.tensor_scalar(mean[:], mean[:], "multiply", share)
            for _, size, part in pieces.walk(b):
                b.tensor_tensor(part, part, mean[(0, size), (0, t.size)], "subtract")
        rstd = _sum_features(b, site, pieces, square=True)
        b.tensor_scalar(rstd[:], rstd[:], "multiply", share, "add", norm.eps)
        b.activate(rstd[:], rstd[:], "rsqrt")
        for k, size, part in pieces.walk(b):
            scale = norm.vector(norm.gain, size, k) if norm.gain is not None else 1.0
            b.tensor_tensor(part, part, rstd[(0, size), (0, t.size)], "multiply", scale=scale)
            if norm.beta is not None:
                b.tensor_scalar(part, part, "add", norm.vector(norm.beta, size, k))


@dataclass(frozen=True, slots=True)
class _Pieces:
    """The feature tiles of some tokens of x."""

    norm: Norm
    x: Tensor
    tokens: Range

    def walk(self, b: Builder) -> Iterator[tuple[Affine, int, Access]]:
        """(tile number, rows, part) of each, the whole ones in a loop."""
        for first, tiles, size in _feature_tiles(self.norm.features, self.x.shape[0]):
            for f in b.tiles(tiles, 1, "nf"):
                k = f.start + first
                yield k, size, self.x[(0, size), k, (self.tokens.start, self.tokens.size)]


def _sum_features(b: Builder, site: Site, pieces: _Pieces, *, square: bool) -> Tensor:
    """The sum of x, or of its squares, over all features, on every partition: [rows, tokens]."""
    x, ones = pieces.x, pieces.norm.ones
    rows, columns = x.shape[0], pieces.tokens.size
    total = b.accumulator((rows, columns), slots=site.slots, name="squares" if square else "sums")
    started = False
    for k, size, part in pieces.walk(b):
        addend = part
        if square:
            squares = b.scratch((rows, columns), x.dtype, slots=site.slots, name="square")
            addend = squares[(0, size),]
            if len(site.arch.vectors) > 1:
                b.tensor_tensor(addend, part, part, "multiply")
            else:
                b.activate(addend, part, "square")
        b.matmul(total[:], ones[(0, size),], addend, reset=None if started else (k,), model=False)
        started = True
    return total


def _feature_tiles(features: int, rows: int) -> list[tuple[int, int, int]]:
    """(first tile, tiles, rows) of the whole and of the short last tile."""
    tiles, rest = divmod(features, rows)
    return [p for p in ((0, tiles, rows), (tiles, 1, rest)) if p[1] and p[2]]


def normalised_copy(b: Builder, site: Site, x: Port, gain: Port | None, beta: Port | None) -> Port:
    """x, normalised into a new DRAM tensor, for consumers that cannot hold whole columns of it."""
    out = Port(b.dram(f"{site.name}.normalised", x.tensor.shape, x.type.dtype), x.type, x.layout)
    _stream(b, site, x, out, gain, beta, 1)
    return out


def norm_op(b: Builder, site: Site) -> None:
    """Lower `RmsNorm` and `LayerNorm`."""
    named = dict(zip(site.op.roles, site.inputs, strict=True))
    if not named["x"].block:
        norm_rows(b, site, spread_of(site.arch, named["x"].type.shape[1]))
        return
    heads = site.op.heads if isinstance(site.op, RmsNorm) else 1
    _stream(b, site, named["x"], site.outputs[0], named["gain"], named.get("beta"), heads)


def _stream(
    b: Builder, site: Site, x: Port, out: Port, gain: Port | None, beta: Port | None, heads: int
) -> None:
    """Token block by token block: load, normalise, store; each of `heads` parts of the features by itself."""
    tokens, width = x.type.shape[0], x.type.shape[1] // heads
    rows, block = _sizes(site, x, width, tokens, 0)
    norm = Norm.load(b, site, width, rows, gain, beta)
    for h in b.tiles(heads, 1, "h"):
        features = Range(h.start * width, width, h.start)
        for t in b.tiles(tokens, block, "t"):
            _one_block(b, site, norm, (x, out), features, t)


def adaptive_norm(b: Builder, site: Site) -> None:
    """Lower `AdaptiveNorm`: sample by sample, whose gains and shifts are loaded once for all."""
    x, scale = site.inputs[:2]
    tokens, width = x.type.shape
    samples = scale.type.shape[0]
    each = tokens // samples
    rows, block = _sizes(site, x, width, each, samples)
    norm = Norm.load_samples(b, site, rows)
    for n in b.tiles(samples, 1, "n"):
        for t in b.tiles(each, block, "t"):
            where = Range(n.start * each + t.start, t.size, t.start)
            _one_block(b, site, replace(norm, sample=n.start), (x, site.outputs[0]), whole(width), where)


def _sizes(site: Site, x: Port, width: int, tokens: int, samples: int) -> tuple[int, int]:
    """(partitions a tile of features has, tokens a block has)."""
    rows = min(
        grouped(min(site.arch.array.rows, site.arch.array.cols), x.block), -(-width // x.block) * x.block
    )
    tiles, size = -(-width // rows), dtype_bytes(x.type.dtype)
    block, room = chunk(site, tokens), site.room - tiles * samples * (4 + 2 * size)
    while block > 1 and tiles * block * size * site.slots + normalise_bytes(block, tiles) > room:
        block //= 2
    return rows, block


def _one_block(
    b: Builder, site: Site, norm: Norm, ports: tuple[Port, Port], features: Range, tokens: Range
) -> None:
    x, out = ports
    shape = (norm.ones.shape[0], -(-norm.features // norm.ones.shape[0]), tokens.size)
    tile = b.scratch(shape, x.type.dtype, slots=site.slots, name="x")
    load_features(b, tile, x, features, tokens)
    normalise(b, site, norm, tile)
    with b.stage(1):
        store_features(b, tile, out, features, tokens)


def _wants(node: Node, types: Mapping[str, TensorType], arch: ArchSpec) -> tuple[Want, ...]:
    """Features on partitions; if heads are normalised apart, each begins at partition 0.

    On a grid rows will do where all partitions can share one.
    """
    x: Want = Features()
    if isinstance(node.op, RmsNorm) and node.op.heads > 1:
        x = Fixed(feature_blocked(head_block(arch, types[node.inputs[0]].shape[1] // node.op.heads)))
    elif spread_of(arch, types[node.inputs[0]].shape[1]):
        x = Anything()
    return (x, *(PLAIN for _ in node.inputs[1:]), Same(0))


KERNEL = Kernel(_wants, norm_op)
ADAPTIVE = Kernel(always(Features(), Same(0), Same(0), Same(0)), adaptive_norm)
