"""The selective scan of Mamba-2 in chunks: products with masked decays inside a chunk, a state between them.

With `a` the running sum of `delta * A` inside a chunk, position t of a chunk gets from position s <= t
`exp(a_t - a_s) delta_s (B_s . C_t) x_s`, and from the state before the chunk `exp(a_t) (C_t . S)`. Source:
Dao and Gu, arXiv:2405.21060, section 6. A first pass makes `a` and `delta`: sums over time are products with
a triangular matrix. The scan then has positions s and states n on partitions; rows of `a` are repeated over
partitions by the transfer that loads them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from arch_configs.spec import ArchSpec
from compiler.builder import Builder, Tensor
from compiler.errors import Infeasible, Shortfall
from compiler.ir.dtype import dtype_bytes
from compiler.ir.graph import Node, TensorType
from compiler.ir.layout import feature_blocked
from compiler.isa import Affine
from compiler.kernels.site import Site, base_block, turned_block
from compiler.kernels.strips import blocked
from compiler.kernels.wants import PLAIN, Fixed, Kernel, Want
from compiler.ops.ssm import SsdScan

FAR = -1.0e30  # in front of exp: no weight
SHARE = 3  # of the scratchpad for one chunk, as chunks at four stages keep some of their tiles; assumed


def _wants(node: Node, types: Mapping[str, TensorType], arch: ArchSpec) -> tuple[Want, ...]:
    op = node.op
    assert isinstance(op, SsdScan)
    dtype = types[node.inputs[0]].dtype
    x = Fixed(feature_blocked(turned_block(arch, op.head_dim, dtype)))
    mixed = Fixed(feature_blocked(turned_block(arch, op.state, dtype)))
    return (x, PLAIN, mixed, PLAIN, PLAIN, PLAIN, x)


@dataclass(frozen=True, slots=True)
class _Sizes:
    """Positions a chunk, heads at once, and how heads and states are cut in blocks."""

    chunk: int
    heads: int
    block: int  # features a block; a divisor of head_dim
    blocks: int  # blocks a head
    state_block: int
    state_blocks: int
    dtype: str

    @classmethod
    def of(cls, site: Site, op: SsdScan) -> _Sizes:
        """The sizes that fit. Raises Infeasible if none do."""
        arch, dtype = site.arch, site.inputs[0].type.dtype
        bank = arch.bank_bytes(arch.accumulator) // 4
        chunk = min(base_block(arch), op.seq, op.chunk, bank, arch.array.moving_max)
        block, state_block = site.inputs[0].block, site.inputs[2].block
        each = op.heads // op.groups
        sizes = [
            cls(chunk, heads, block, op.head_dim // block, state_block, op.state // state_block, dtype)
            for heads in range(each, 0, -1)
            if each % heads == 0
        ]
        need = [made.scratch_bytes(site, op) for made in sizes]
        for limit in (site.room // SHARE, site.room):  # chunks at several stages, where there is room
            for made, size in zip(sizes, need, strict=True):
                if size <= limit:
                    return made
        raise site.too_small("one head", need[-1])

    def scratch_bytes(self, site: Site, op: SsdScan) -> int:
        """Bytes a partition of the scan's tiles; see `_Scan`."""
        size, columns = dtype_bytes(self.dtype), self.heads * self.chunk
        decays = columns * (4 * 4 + size + size * self.state_blocks)
        x = 2 * columns * self.blocks * size + 2 * self.heads * op.head_dim * size
        mixed = 2 * self.state_blocks * (self.chunk + self.state_block) * size + 4 * self.chunk
        held = self.state_blocks * self.heads * op.head_dim * (4 + size) + 12 * self.chunk
        return (decays + x + mixed + 32 * self.heads) * site.slots + held + 24 * op.heads + 2048


def ssd_scan(b: Builder, site: Site) -> None:
    """Lower an `SsdScan` op."""
    op = site.op
    assert isinstance(op, SsdScan)
    if "fp32" not in site.arch.array.passes:
        terms = ((site.name, 1),)
        fix = f"engines.{site.arch.tensor}.passes.fp32"
        raise Infeasible(Shortfall("array-dtype", site.arch.tensor, 1, 0, "fp32 on the array", terms, fix))
    sizes = _Sizes.of(site, op)
    sums = _Sums.make(b, site, op, sizes)
    scan = _Scan(b, site, op, sizes, sums, *_constants(b, site, op, sizes))
    for s in b.tiles(site.inputs[0].type.shape[0] // op.seq, 1, "s"):
        for g in b.tiles(op.groups, 1, "g"):
            for h in b.tiles(op.heads // op.groups, sizes.heads, "h"):
                scan.run(s.start, g.start, g.start * (op.heads // op.groups) + h.start)


def _constants(b: Builder, site: Site, op: SsdScan, sizes: _Sizes) -> tuple[Tensor, Tensor]:
    """The mask [s, t], zero where s <= t and far below elsewhere, and d of all heads on every partition."""
    mask = b.scratch((sizes.chunk, sizes.chunk), "fp32", name="mask")
    b.memset(mask[:], 0.0)
    b.affine_select(mask[:], mask[:], Affine(), -1, 1, FAR)
    skip = b.scratch((sizes.block, op.heads), sizes.dtype, name="d")
    b.dma(skip[:], site.inputs[5].tensor.repeat(0, sizes.block)[:], "aux")
    return mask, skip


@dataclass(frozen=True, slots=True)
class _Sums:
    """In DRAM, fp32: running sums `a` [heads, t] and once more [t, heads], and delta [t, heads]."""

    rows: Tensor
    columns: Tensor
    delta: Tensor

    @classmethod
    def make(cls, b: Builder, site: Site, op: SsdScan, sizes: _Sizes) -> _Sums:
        """The first pass, over all positions."""
        dt, (_, _, _, a_log, dt_bias, _) = site.inputs[1], site.inputs
        tokens = dt.type.shape[0]
        made = cls(
            b.dram(f"{site.name}.sums", (op.heads, tokens), "fp32"),
            b.dram(f"{site.name}.columns", (tokens, op.heads), "fp32"),
            b.dram(f"{site.name}.delta", (tokens, op.heads), "fp32"),
        )
        chunk = sizes.chunk
        triangle = b.scratch((chunk, chunk), "fp32", name="triangle")
        b.memset(triangle[:], 1.0)
        b.affine_select(triangle[:], triangle[:], Affine(), -1, 1, 0.0)
        shape = (chunk, op.heads)
        rate, shift = (b.scratch(shape, sizes.dtype, name=name) for name in ("a", "bias"))
        b.dma(rate[:], a_log.tensor.repeat(0, chunk)[:], "aux")
        b.dma(shift[:], dt_bias.tensor.repeat(0, chunk)[:], "aux")
        falling = b.scratch(shape, "fp32", name="rate")
        b.activate(falling[:], rate[:], "exp")
        b.tensor_scalar(falling[:], falling[:], "multiply", -1.0)
        for s in b.tiles(tokens // op.seq, 1, "s"):
            for c in b.tiles(op.seq, chunk, "c"):
                made._chunk(b, site, (falling, shift, triangle), s.start * op.seq + c.start, c.size)
        return made

    def _chunk(
        self, b: Builder, site: Site, fixed: tuple[Tensor, Tensor, Tensor], start: Affine, size: int
    ) -> None:
        falling, shift, triangle = fixed
        dt, heads, at = site.inputs[1], falling.shape[1], (start, size)
        raw = b.scratch((size, heads), dt.type.dtype, slots=site.slots, name="dt")
        b.dma(raw[:], dt.tensor[at, :], "input")
        delta, step = (b.scratch((size, heads), "fp32", slots=site.slots, name=n) for n in ("delta", "step"))
        b.tensor_tensor(delta[:], raw[:], shift[(0, size),], "add")
        b.activate(delta[:], delta[:], "softplus")
        b.tensor_tensor(step[:], delta[:], falling[(0, size),], "multiply")
        b.dma(self.delta[at, :], delta[:], "output")
        upper = triangle[(0, size), (0, size)]
        bank = site.arch.bank_bytes(site.arch.accumulator) // 4
        for low, high in _spans(heads, min(bank, site.arch.array.moving_max)):
            total = b.accumulator((size, high), slots=site.slots, name="columns")
            b.matmul(total[:], upper, step[:, (low, high)], model=False)
            kept = b.scratch((size, high), "fp32", slots=site.slots, name="columns")
            b.copy(kept[:], total[:])
            b.dma(self.columns[at, (low, high)], kept[:], "output")
        for low, high in _spans(heads, base_block(site.arch)):
            total = b.accumulator((high, size), slots=site.slots, name="rows")
            b.matmul(total[:], step[:, (low, high)], upper, model=False)
            kept = b.scratch((high, size), "fp32", slots=site.slots, name="rows")
            b.copy(kept[:], total[:])
            b.dma(self.rows[(low, high), at], kept[:], "output")


def _spans(extent: int, size: int) -> list[tuple[int, int]]:
    """(start, size) of pieces of at most `size`."""
    return [(low, min(size, extent - low)) for low in range(0, extent, size)]


@dataclass(frozen=True, slots=True)
class _Chunk:
    """What a chunk brings, and what is made of it; s, t: positions, n: states."""

    size: int
    x: Tensor  # [features of a block, heads * blocks, t]
    repeated: Tensor  # [any, heads, t] a_t, the same on all partitions
    column: Tensor  # [s, heads] -a_s
    delta: Tensor  # [s, heads]
    b_side: Tensor  # [n, state blocks, s]
    c_side: Tensor  # [n, state blocks, t]
    decay: Tensor  # [s, heads, t] a_t where s <= t, then exp(a_t - a_s)
    products: Tensor  # [s, t] B_s . C_t
    mixed: Tensor  # [s, state blocks, n] B_s
    grown: Tensor  # [n, heads, t] exp(a_t)
    left: Tensor  # [s, heads] delta_s exp(a_last - a_s)


@dataclass(frozen=True, slots=True)
class _Scan:
    """The second pass."""

    b: Builder
    site: Site
    op: SsdScan
    sizes: _Sizes
    sums: _Sums
    mask: Tensor
    skip: Tensor

    def _tile(self, name: str, *shape: int, dtype: str = "fp32") -> Tensor:
        return self.b.scratch(shape, dtype, slots=self.site.slots, name=name)

    def run(self, sequence: Affine, group: Affine, first: Affine) -> None:
        """Some heads of one sequence, from `first` on, chunk by chunk.

        Each engine is at another chunk: products of positions and states, exponentials, weights, the state.
        """
        b, z = self.b, self.sizes
        shape = (z.state_block, z.state_blocks, z.heads, self.op.head_dim)
        state = b.scratch(shape, "fp32", name="state")
        rounded = b.scratch(shape, z.dtype, name="state.rounded")
        b.memset(state[:], 0.0)
        for c in b.tiles(self.op.seq, z.chunk, "c"):
            start = sequence * self.op.seq + c.start
            chunk = self._load(start, c.size, group, first)
            self._products(chunk)
            with b.stage(1):
                self._exponentials(chunk)
            with b.stage(2):
                within, out_of = self._weights(chunk)
                now, later = self._rows(chunk)
            with b.stage(3):
                b.copy(rounded[:], state[:])
                y = self._outputs(chunk, now, rounded, (within, out_of), first)
                self._update(state, later, chunk)
            with b.stage(4):
                at = (first * z.blocks, z.heads * z.blocks)
                b.dma(blocked(self.site.outputs[0])[:, at, (start, c.size)], y[:], "output")

    def _load(self, start: Affine, size: int, group: Affine, first: Affine) -> _Chunk:
        """The operands of a chunk, and room for what is made of them."""
        b, z, heads = self.b, self.sizes, (first, self.sizes.heads)
        at, parts = (start, size), max(size, z.state_block)
        x = self._tile("x", z.block, z.heads * z.blocks, size, dtype=z.dtype)
        b.dma(x[:], blocked(self.site.inputs[0])[:, (first * z.blocks, z.heads * z.blocks), at], "input")
        repeated = self._tile("repeated", parts, z.heads, size)
        b.dma(repeated[:], self.sums.rows.repeat(0, parts)[:, heads, at], "aux")
        column, delta = (self._tile(name, size, z.heads) for name in ("column", "delta"))
        b.dma(column[:], self.sums.columns[at, heads], "aux")
        b.dma(delta[:], self.sums.delta[at, heads], "aux")
        return _Chunk(
            size,
            x,
            repeated,
            column,
            delta,
            self._mixed(group, 0, at),
            self._mixed(group, self.op.groups, at),
            self._tile("decay", size, z.heads, size),
            self._tile("products", size, size),
            self._tile("mixed.t", size, z.state_blocks, z.state_block, dtype=z.dtype),
            self._tile("grown", z.state_block, z.heads, size),
            self._tile("left", size, z.heads),
        )

    def _mixed(self, group: Affine, which: int, at: tuple[Affine, int]) -> Tensor:
        """B or C of a group: [n, state blocks, t]."""
        z = self.sizes
        tile = self._tile("mixed", z.state_block, z.state_blocks, at[1], dtype=z.dtype)
        source = blocked(self.site.inputs[2])
        self.b.dma(tile[:], source[:, ((group + which) * z.state_blocks, z.state_blocks), at], "input")
        return tile

    def _products(self, chunk: _Chunk) -> None:
        """Products of B and C, B turned, and the exponents."""
        b, z, size = self.b, self.sizes, chunk.size
        total = b.accumulator((size, size), slots=self.site.slots, name="products")
        for i in range(z.state_blocks):
            b.matmul(total[:], chunk.b_side[:, i], chunk.c_side[:, i], reset=None if i else ())
        b.copy(chunk.products[:], total[:])
        for i in range(z.state_blocks):
            turned = b.accumulator((size, z.state_block), dtype=z.dtype, slots=self.site.slots, name="turned")
            b.transpose(turned[:], chunk.b_side[:, i])
            b.copy(chunk.mixed[:, i], turned[:])
        b.tensor_scalar(chunk.column[:], chunk.column[:], "multiply", -1.0)
        mask = self.mask.part(1, 0, size).repeat(1, z.heads)
        b.tensor_tensor(chunk.decay[:], chunk.repeated[(0, size),], mask[(0, size),], "add")
        last = chunk.repeated[(0, size), :, size - 1]
        b.tensor_tensor(chunk.left[:], last, chunk.column[:], "add")

    def _exponentials(self, chunk: _Chunk) -> None:
        b, z = self.b, self.sizes
        for h in b.tiles(z.heads, 1, "wh"):
            one = chunk.decay[:, h.start]
            b.activate(one, one, "exp", bias=chunk.column[:, h.start])
        b.activate(chunk.grown[:], chunk.repeated[(0, z.state_block),], "exp")
        b.activate(chunk.left[:], chunk.left[:], "exp")

    def _weights(self, chunk: _Chunk) -> tuple[Tensor, Tensor]:
        """Of position s for t, [s, heads, t], without delta; of state n for t, [n, blocks, heads, t]."""
        b, z, size = self.b, self.sizes, chunk.size
        within = self._tile("within", size, z.heads, size, dtype=z.dtype)
        b.tensor_tensor(within[:], chunk.decay[:], chunk.products.repeat(1, z.heads)[:], "multiply")
        out_of = self._tile("out_of", z.state_block, z.state_blocks, z.heads, size, dtype=z.dtype)
        for i in range(z.state_blocks):
            wide = chunk.c_side.repeat(2, z.heads)[:, i]
            b.tensor_tensor(out_of[:, i], chunk.grown[:], wide, "multiply")
        b.tensor_tensor(chunk.left[:], chunk.left[:], chunk.delta[:], "multiply")
        return within, out_of

    def _rows(self, chunk: _Chunk) -> tuple[Tensor, Tensor]:
        """x with positions on partitions, [s, heads, head_dim]: times delta, and times what is left."""
        b, z, width = self.b, self.sizes, self.op.head_dim
        shape = (chunk.size, z.heads, width)
        now, later = (self._tile(name, *shape, dtype=z.dtype) for name in ("now", "later"))
        bank = self.site.arch.bank_bytes(self.site.arch.accumulator) // dtype_bytes(z.dtype)
        for g in b.tiles(z.heads, max(1, min(z.heads, bank // width)), "xg"):
            heads = (g.start, g.size)
            for part in _spans(width, max(1, bank // z.block) * z.block):
                shape = (chunk.size, g.size, part[1])
                turned = b.accumulator(shape, dtype=z.dtype, slots=self.site.slots, name="x.t")
                for h in b.tiles(g.size, 1, "xh"):
                    for at in range(0, part[1], z.block):
                        index = (g.start + h.start) * z.blocks + (part[0] + at) // z.block
                        b.transpose(turned[:, h.start, (at, z.block)], chunk.x[:, index])
                for rows, scale in ((now, chunk.delta), (later, chunk.left)):
                    factor = scale.stretch(part[1])[:, heads]
                    b.tensor_tensor(rows[:, heads, part], turned[:], factor, "multiply")
        return now, later

    def _outputs(
        self, chunk: _Chunk, now: Tensor, state: Tensor, weights: tuple[Tensor, Tensor], first: Affine
    ) -> Tensor:
        """y [features of a block, heads * blocks, t]."""
        b, z, x, (within, out_of) = self.b, self.sizes, chunk.x, weights
        y = self._tile("y", *x.shape, dtype=z.dtype)
        for h in b.tiles(z.heads, 1, "yh"):
            for j in range(z.blocks):
                total = b.accumulator((z.block, chunk.size), slots=self.site.slots, name="y")
                columns = (j * z.block, z.block)
                b.matmul(total[:], now[:, h.start, columns], within[:, h.start])
                for i in range(z.state_blocks):
                    b.matmul(total[:], state[:, i, h.start, columns], out_of[:, i, h.start], reset=None)
                index = h.start * z.blocks + j
                skip = self.skip[:, first + h.start]
                b.tensor_tensor(y[:, index], x[:, index], total[:], "add", scale=skip)
        return y

    def _update(self, state: Tensor, later: Tensor, chunk: _Chunk) -> None:
        """The state behind the chunk: what was there, decayed, and what the chunk adds."""
        b, z, width = self.b, self.sizes, self.op.head_dim
        arch, last = self.site.arch, chunk.grown.stretch(width)
        most = min(arch.bank_bytes(arch.accumulator) // 4, arch.array.moving_max)
        for i in range(z.state_blocks):
            for g in b.tiles(z.heads, max(1, min(z.heads, most // width)), "ug"):
                heads = (g.start, g.size)
                for part in _spans(width, most):
                    shape = (z.state_block, g.size, part[1])
                    added = b.accumulator(shape, slots=self.site.slots, name="added")
                    b.matmul(added[:], chunk.mixed[:, i], later[:, heads, part])
                    kept = state[:, i, heads, part]
                    b.tensor_tensor(kept, kept, last[:, heads, chunk.size - 1, part], "multiply")
                    b.tensor_tensor(kept, kept, added[:], "add")


SSD_SCAN = Kernel(_wants, ssd_scan)
