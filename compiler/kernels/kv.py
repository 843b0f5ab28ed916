"""Where attention finds keys and values: activations or a cache, held on chip or loaded chunk by chunk."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from arch_configs.spec import ArchSpec
from compiler.builder import Builder, Tensor
from compiler.ir.layout import Layout
from compiler.isa import Access, Affine
from compiler.kernels.flash import Chunk, Sizes, Source, Start
from compiler.kernels.site import Site, base_block

Load = Callable[[Affine, Affine, Start, int], Source]  # sequence, kv head, start, length


def value_cache_layout(arch: ArchSpec) -> Layout:
    """[batch, kv_heads, position, head_dim] with consecutive positions on partitions, blocks in a row."""
    return Layout(((2, base_block(arch)),), (0, 1, 3, 2, 4))


@dataclass(frozen=True, slots=True)
class Resident:
    """All keys [head block, blocks, keys] and values [key tile, tiles, value_dim] of one head."""

    keys: Tensor
    values: Tensor

    def chunk(self, start: Start, width: int) -> Chunk:
        """A window of the tiles."""
        tile = start // self.values.shape[0]
        return Chunk(
            lambda _, h, at, size: self.keys[:, h, (start + at, size)],
            lambda _, j, rows, columns: self.values[(0, rows), tile + j, columns],
        )


@dataclass(frozen=True, slots=True)
class Streamed:
    """Keys and values that are loaded chunk by chunk."""

    load: Callable[[Start, int], Source]

    def chunk(self, start: Start, width: int) -> Chunk:
        """Load it."""
        return self.load(start, width).chunk(0, width)


def source(load: Load, batch: Affine, head: Affine, keys: int, *, resident: bool) -> Source:
    """All keys and values of a head if they fit, else load each chunk when it is used."""
    if resident:
        return load(batch, head, 0, keys)
    return Streamed(lambda start, width: load(batch, head, start, width))


def behind(chunk: Chunk, keys: int, key_tile: int) -> Chunk:
    """What follows the first `keys`, whole key tiles, of a chunk."""
    if not keys:
        return chunk
    tiles = keys // key_tile
    return Chunk(
        lambda head, h, at, size: chunk.keys(head, h, keys + at, size),
        lambda head, j, rows, columns: chunk.values(head, tiles + j, rows, columns),
    )


def _tiles(b: Builder, sizes: Sizes, length: int, slots: int) -> tuple[Tensor, Tensor]:
    keys = b.scratch((sizes.head_block, sizes.head_blocks, length), sizes.dtype, slots=slots, name="k")
    tiles = -(-length // sizes.key_tile)
    values = b.scratch((sizes.key_tile, tiles, sizes.value_dim), sizes.dtype, slots=slots, name="v")
    return keys, values


def from_activations(b: Builder, site: Site, sizes: Sizes, length: int) -> Load:
    """Keys with features on partitions, values in row-major order, `length` a sequence."""
    k, v = site.inputs[1].tensor, site.inputs[2].tensor
    rows = v.split(0, length).split(1, sizes.key_tile).permute(2, 0, 1, 3)

    def load(batch: Affine, head: Affine, start: Start, width: int) -> Source:
        keys, values = _tiles(b, sizes, width, site.slots)
        blocks = (head * sizes.head_blocks, sizes.head_blocks)
        b.dma(keys[:], k[:, blocks, (batch * length + start, width)])
        columns = (head * sizes.value_dim, sizes.value_dim)
        whole, rest = divmod(width, sizes.key_tile)
        first = start // sizes.key_tile
        if whole:
            b.dma(values[:, (0, whole)], rows[:, batch, (first, whole), columns], "weight")
        if rest:
            b.dma(values[(0, rest), whole], rows[(0, rest), batch, first + whole, columns], "weight")
        return Resident(keys, values)

    return load


def from_caches(b: Builder, site: Site, sizes: Sizes) -> Load:
    """Keys [batch, kv head, head_dim, position] in row-major order, values as in `value_cache_layout`."""
    k = site.inputs[1].tensor.split(2, sizes.head_block).permute(3, 0, 1, 2, 4)
    v = site.inputs[2].tensor.permute(2, 0, 1, 3, 4)

    def load(batch: Affine, head: Affine, start: Start, width: int) -> Source:
        keys, values = _tiles(b, sizes, width, site.slots)
        b.dma(keys[:], k[:, batch, head, :, (start, width)])
        whole, rest = divmod(width, sizes.key_tile)
        tile = start // sizes.key_tile
        if whole:
            b.dma(values[:, (0, whole)], v[:, batch, head, (tile, whole)], "weight")
        if rest:
            b.dma(values[(0, rest), whole], v[(0, rest), batch, head, tile + whole], "weight")
        return Resident(keys, values)

    return load


def broadcast(tensor: Tensor, axis: int, size: int) -> Tensor:
    """An axis of size 1 repeated `size` times; others stay as they are."""
    if tensor.shape[axis] != 1:
        return tensor
    shape, strides = list(tensor.shape), list(tensor.strides)
    shape[axis], strides[axis] = size, 0
    return replace(tensor, shape=tuple(shape), strides=tuple(strides))


@dataclass(frozen=True, slots=True)
class Extras:
    """The optional operands: bias [batch, heads, queries, keys] in DRAM, and minus the sinks on chip."""

    bias: Tensor | None
    sinks: Tensor | None  # [rows, heads]

    @classmethod
    def of(cls, b: Builder, site: Site, rows: int, batch: int, heads: int) -> Extras:
        """Those of `site`; sinks are repeated for `rows` queries."""
        named = dict(zip(site.op.roles, site.inputs, strict=True))
        bias, sinks = named.get("bias"), None
        if "sinks" in named:
            port = named["sinks"]
            raw = b.scratch((rows, heads), port.type.dtype, name="sinks")
            b.dma(raw[:], port.tensor.repeat(0, rows)[:], "aux")
            sinks = b.scratch((rows, heads), "fp32", name="sinks")
            b.tensor_scalar(sinks[:], raw[:], "multiply", -1.0)
        whole = broadcast(broadcast(bias.tensor, 0, batch), 1, heads) if bias else None
        return cls(whole, sinks)

    def sink(self, rows: int, head: Affine) -> Access | None:
        """[rows, 1] of a head."""
        return None if self.sinks is None else self.sinks[(0, rows), head]

    def rows(
        self, batch: Affine, head: Affine, first: Affine, rows: int
    ) -> Callable[[Start, int], Access] | None:
        """What is added to the scores of queries `first .. first + rows` of a head."""
        bias = self.bias
        if bias is None:
            return None
        return lambda start, width: bias[batch, head, (first, rows), (start, width)]
