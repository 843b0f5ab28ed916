"""Attention over a whole sequence: flash attention with causal block skipping and grouped kv heads.

q, k and the result have the head dimension on partitions, v has tokens on partitions: then both
products contract over partitions and only p is transposed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from arch_configs.spec import ArchSpec
from compiler.builder import Builder, Range, Tensor
from compiler.ir.dtype import dtype_bytes
from compiler.ir.graph import Node, TensorType
from compiler.ir.layout import ROW_MAJOR, feature_blocked
from compiler.isa import Access, Affine
from compiler.kernels.flash import (
    MASKED,
    SKEW,
    Chunk,
    FlashTile,
    Lane,
    Sizes,
    Source,
    Start,
    Work,
    all_chunks,
    choose_chunk,
    copies,
    chunk_step,
)
from compiler.kernels.site import Site, base_block, head_block
from compiler.kernels.wants import Fixed, Kernel, Want
from compiler.ops.attention import Attention

UNROLLED_GROUPS = 8  # causal diagonals are cut to size while there are at most so many groups of chunks


def _wants(node: Node, types: Mapping[str, TensorType], arch: ArchSpec) -> tuple[Want, ...]:
    op = node.op
    assert isinstance(op, Attention)
    heads = Fixed(feature_blocked(head_block(arch, op.head_dim)))
    return heads, heads, Fixed(ROW_MAJOR), heads


def attention(b: Builder, site: Site) -> None:
    """Lower an `Attention` op."""
    op = site.op
    assert isinstance(op, Attention)
    _Prefill(b, site, op).run()


@dataclass(frozen=True, slots=True)
class _Resident:
    """All keys [head block, blocks, seq] and values [key tile, tiles, head_dim] of one head."""

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
class _Streamed:
    """Keys and values that are loaded chunk by chunk."""

    load: Callable[[Start, int], tuple[Tensor, Tensor]]

    def chunk(self, start: Start, width: int) -> Chunk:
        """Load it."""
        return _Resident(*self.load(start, width)).chunk(0, width)


class _Prefill:
    def __init__(self, b: Builder, site: Site, op: Attention) -> None:
        self.b, self.site, self.op = b, site, op
        self.seq = site.inputs[0].type.shape[0] // op.batch
        arch, dtype = site.arch, site.inputs[0].type.dtype
        self.group = op.heads // op.kv_heads
        self.shared = self.group % 2 == 0  # two query heads at once share a kv head, or bring one each
        self.ways = 2 if self.shared or op.kv_heads % 2 == 0 else 1
        self.rows = min(base_block(arch), self.seq)
        chunk = choose_chunk(site, self.rows, op.head_dim, self.seq, dtype, self.ways)
        self.sizes = Sizes(
            op.head_dim,
            head_block(arch, op.head_dim),
            base_block(arch),
            chunk,
            op.scale,
            dtype,
            copies(site, self.ways),
        )
        tiles = -(-self.seq // self.sizes.key_tile)
        held = (self.seq * self.sizes.head_blocks + tiles * op.head_dim) * dtype_bytes(dtype) * site.slots
        self.resident = 2 * held * (1 if self.shared else self.ways) <= site.room
        self.mask = self._make_mask() if op.causal else None

    def run(self) -> None:
        """Loop over sequences, kv heads and the query heads of each."""
        b, op = self.b, self.op
        step = 1 if self.shared else self.ways
        for batch in b.tiles(op.batch, 1, "b"):
            for kv in b.tiles(op.kv_heads, step, "kv"):
                held = [(kv.start + i, self._source(batch.start, kv.start + i)) for i in range(step)]
                for g in b.tiles(self.group, self.ways if self.shared else 1, "g"):
                    if self.shared:
                        first = kv.start * self.group + g.start
                        self._heads(batch.start, [(first + i, held[0][1]) for i in range(self.ways)])
                    else:
                        self._heads(batch.start, [(h * self.group + g.start, source) for h, source in held])

    # ---- operands --------------------------------------------------------------------------------
    def _make_mask(self) -> Tensor:
        """[rows, tile in chunk, chunk]: 0 where a query of that tile may see the key, else very negative."""
        b, rows, chunk = self.b, self.rows, min(self.sizes.chunk, self.seq)
        many = -(-self.seq // self.sizes.chunk) > UNROLLED_GROUPS
        shape = (rows, max(1, chunk // rows), chunk) if many else (rows, 1, rows)
        mask = b.scratch(shape, "fp32", name="mask")
        b.memset(mask[:], 0.0)
        for j in range(shape[1]):
            b.affine_select(mask[:, j], mask[:, j], Affine(j * rows), 1, -1, MASKED)
        return mask

    def _source(self, batch: Affine, head: Affine) -> Source:
        """All keys and values of a head if they fit, else load each chunk when it is used."""
        if self.resident:
            return _Resident(*self._load(batch, head, 0, self.seq))
        return _Streamed(lambda start, width: self._load(batch, head, start, width))

    def _load(self, batch: Affine, head: Affine, start: Start, length: int) -> tuple[Tensor, Tensor]:
        b, sizes, slots = self.b, self.sizes, self.site.slots
        k, v = self.site.inputs[1].tensor, self.site.inputs[2].tensor
        keys = b.scratch((sizes.head_block, sizes.head_blocks, length), sizes.dtype, slots=slots, name="k")
        tiles = -(-length // sizes.key_tile)
        values = b.scratch((sizes.key_tile, tiles, sizes.head_dim), sizes.dtype, slots=slots, name="v")
        b.dma(
            keys[:], k[:, (head * sizes.head_blocks, sizes.head_blocks), (batch * self.seq + start, length)]
        )
        rows = v.split(0, self.seq).split(1, sizes.key_tile).permute(2, 0, 1, 3)
        columns = (head * sizes.head_dim, sizes.head_dim)
        whole, rest = divmod(length, sizes.key_tile)
        first = start // sizes.key_tile
        if whole:
            b.dma(values[:, (0, whole)], rows[:, batch, (first, whole), columns], "weight")
        if rest:
            b.dma(values[(0, rest), whole], rows[(0, rest), batch, first + whole, columns], "weight")
        return keys, values

    # ---- query tiles -----------------------------------------------------------------------------
    def _heads(self, batch: Affine, heads: list[tuple[Affine, Source]]) -> None:
        """All query rows of a few heads, in groups of one chunk of rows that is loaded and stored at once."""
        b, chunk = self.b, self.sizes.chunk
        if not self.op.causal:
            for rows in b.tiles(self.seq, chunk, "qg"):
                group = self._open(batch, heads, rows)
                for q in b.tiles(rows.size, self.rows, "q"):
                    work = group.work(q)
                    stage = all_chunks(b, work, self.sizes, self.seq)
                    group.finish(work, q, stage)
                group.store()
            return
        groups = -(-self.seq // chunk)
        for g in range(groups):
            rows = Range(Affine(g * chunk), min(chunk, self.seq - g * chunk), Affine(g))
            group = self._open(batch, heads, rows)
            if groups > UNROLLED_GROUPS and rows.size == chunk:
                self._diagonal_in_a_loop(group, g)
            else:
                self._diagonal_cut_to_size(group, g)
            group.store()

    def _open(self, batch: Affine, heads: list[tuple[Affine, Source]], rows: Range) -> _Group:
        return _Group(self.b, self.site, self.sizes, batch * self.seq + rows.start, rows.size, heads)

    def _causal(self, group: _Group, q: Range, g: int, width: int, mask: Access) -> None:
        """The `g` whole chunks in front of the diagonal, all visible, then `width` keys of it, masked."""
        work, chunk = group.work(q), self.sizes.chunk
        if g == 0:
            chunk_step(self.b, work, 0, width, mask=mask, first=True, pipelined=True)
            group.finish(work, q, SKEW)
            return
        chunk_step(self.b, work, 0, chunk, first=True)
        if g > 1:
            with self.b.loop(g - 1, "c") as c:
                chunk_step(self.b, work, (c + 1) * chunk, chunk, pipelined=g > 2)
        chunk_step(self.b, work, g * chunk, width, mask=mask)
        group.finish(work, q, 0)

    def _diagonal_cut_to_size(self, group: _Group, g: int) -> None:
        """Each query tile sees just the keys it may, so only its own square needs a mask."""
        assert self.mask is not None
        for at in range(0, group.size, self.rows):
            q = Range(Affine(at), min(self.rows, group.size - at), Affine())
            self._causal(group, q, g, at + q.size, self.mask[(0, q.size), 0, (0, q.size)])

    def _diagonal_in_a_loop(self, group: _Group, g: int) -> None:
        """One body for all query tiles of the group; keys behind the diagonal are computed and masked."""
        assert self.mask is not None
        for q in self.b.tiles(group.size, self.rows, "q"):
            self._causal(group, q, g, self.sizes.chunk, self.mask[:, q.index])


class _Group:
    """Query rows `start .. start + size` of a few heads: loaded once, results stored once."""

    def __init__(
        self,
        b: Builder,
        site: Site,
        sizes: Sizes,
        start: Affine,
        size: int,
        heads: list[tuple[Affine, Source]],
    ) -> None:
        self.b, self.site, self.sizes, self.start, self.size, self.heads = b, site, sizes, start, size, heads
        self.stage = 0
        shape = (sizes.head_block, sizes.head_blocks, size)
        self.queries = [b.scratch(shape, sizes.dtype, slots=site.slots, name="q") for _ in heads]
        self.results = [b.scratch(shape, sizes.dtype, slots=site.slots, name="ot") for _ in heads]
        for tile, (head, _) in zip(self.queries, heads, strict=True):
            b.dma(tile[:], self._window(site.inputs[0].tensor, head))

    def _window(self, tensor: Tensor, head: Affine) -> Access:
        blocks = self.sizes.head_blocks
        return tensor[:, (head * blocks, blocks), (self.start, self.size)]

    def work(self, q: Range) -> list[Work]:
        """Fresh running state for the query rows `q` of each head."""

        def lane(tile: Tensor) -> Lane:
            return Lane(0, q.size, lambda h: tile[:, h, (q.start, q.size)])

        return [
            Work(FlashTile(self.b, self.site, self.sizes, q.size), (lane(tile),), source)
            for tile, (_, source) in zip(self.queries, self.heads, strict=True)
        ]

    def finish(self, work: list[Work], q: Range, stage: int) -> None:
        """Normalise, transpose and keep the results of `q`."""
        self.stage = max(self.stage, stage)
        for item, result in zip(work, self.results, strict=True):
            turned = item.tile.finish(stage)
            with self.b.stage(stage):
                self.b.copy(result[:, :, (q.start, q.size)], turned[:])

    def store(self) -> None:
        """Write the whole group back."""
        with self.b.stage(self.stage + 1):
            for tile, (head, _) in zip(self.results, self.heads, strict=True):
                self.b.dma(self._window(self.site.outputs[0].tensor, head), tile[:], "output")


KERNEL = Kernel(_wants, attention)
