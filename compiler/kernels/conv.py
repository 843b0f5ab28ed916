"""Convolution as matrix products: channels on partitions, one pass of the array a tap of the window.

The moving operand of a tap is a shifted, strided view of a padded image tile; the sums over taps and
channels stay in the accumulators. Where there are few channels, the rows of the window lie on
partitions too. Depthwise filters leave nothing to contract and run on the vector engines.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from arch_configs.spec import ArchSpec
from compiler.builder import Builder, Range, Tensor
from compiler.ir.graph import Node, TensorType
from compiler.ir.layout import Layout
from compiler.isa import Access, Affine
from compiler.kernels.conv_plan import Moving, Plan, Shape, choose, conv_shape, moving_part, weight_layout
from compiler.kernels.depthwise import depthwise, depthwise_layout, evict
from compiler.kernels.image import (
    Block,
    Channels,
    blocks,
    load_block,
    load_channels,
    load_folded,
    store_channels,
)
from compiler.kernels.move import load_vector, whole
from compiler.kernels.site import Port, Site
from compiler.kernels.strips import tile_counts
from compiler.kernels.wants import PLAIN, Features, Follows, Kernel, Same, Want
from compiler.ops.conv import Conv2d


def _wants(node: Node, types: Mapping[str, TensorType], arch: ArchSpec) -> tuple[Want, ...]:
    """Images have channels on partitions; the filters follow from both blocks."""

    def filters(layouts: Mapping[str, Layout], n: Node) -> Layout:
        assert isinstance(n.op, Conv2d)
        x, w, y = n.inputs[0], n.inputs[1], n.outputs[0]
        sides = (layouts[x].splits[0][1], layouts[y].splits[0][1])
        shape = conv_shape(arch, n.op, types[x], types[w], types[y], sides)
        return depthwise_layout(sides[0]) if shape.is_depthwise else weight_layout(shape)

    out = len(node.inputs)
    assert isinstance(node.op, Conv2d)
    is_depthwise = node.op.is_depthwise(tuple(types[name] for name in node.inputs))
    by_role: dict[str, Want] = {"x": Features(), "w": Follows(filters), "b": PLAIN, "r": Same(out)}
    return (*(by_role[role] for role in node.op.roles), Same(0) if is_depthwise else Features())


def conv2d(b: Builder, site: Site) -> None:
    """Lower `Conv2d`, with its fused bias, residual and activation."""
    op, out = site.op, site.outputs[0]
    assert isinstance(op, Conv2d)
    named = dict(zip(op.roles, site.inputs, strict=True))
    x, w = named["x"], named["w"]
    shape = conv_shape(site.arch, op, x.type, w.type, out.type, (x.block, out.block))
    if shape.is_depthwise:
        depthwise(b, site, op, shape.window)
        return
    plan = choose(b, site, shape)
    bias = named.get("b")
    for group in range(shape.groups):
        _Lowering(b, site, op, x, w, bias, named.get("r"), shape, plan, group).run()


@dataclass(slots=True)
class _Lowering:
    """Writes the loops of one plan, for one group of channels."""

    b: Builder
    site: Site
    op: Conv2d
    x: Port
    w: Port
    bias_port: Port | None
    residual_port: Port | None
    shape: Shape
    plan: Plan
    group: int
    bias: Tensor | None = None
    engine: str = ""  # that takes out the sums

    def run(self) -> None:
        """Loop over blocks, the held operand outside."""
        b, shape, plan = self.b, self.shape, self.plan
        if self.bias_port is not None:
            self.bias = self._load_bias(self.bias_port)
        k_block = plan.k_tiles * shape.k_tile
        if plan.hold == "w":
            for k in b.tiles(shape.k, k_block, "k"):
                filters = self._load_filters(k, whole(shape.c))
                for block in self._blocks():
                    self._compute(block, k, self._load_image(block, whole(shape.c)), filters)
            return
        for block in self._blocks():
            if plan.hold in ("sums", "taps"):
                for k in b.tiles(shape.k, k_block, "k"):
                    self._stream_channels(block, k)
                continue
            image = self._load_image(block, whole(shape.c))
            for k in b.tiles(shape.k, k_block, "k"):
                self._compute(block, k, image, self._load_filters(k, whole(shape.c)))

    def _blocks(self) -> Iterator[Block]:
        return blocks(self.b, self.shape.window, self.shape.images, self.plan.images, self.plan.rows)

    # ---- operands --------------------------------------------------------------------------------
    def _load_bias(self, port: Port) -> Tensor:
        """One value a partition: [k in tile, k tiles], of this group."""
        shape, tensor = self.shape, port.tensor
        if shape.groups == 1:
            return load_vector(self.b, port, shape.k, shape.k_tile, "bias")
        tile = self.b.scratch((shape.k_tile, shape.k // shape.k_tile), port.type.dtype, name="bias")
        view = tensor.split(0, shape.k_tile).permute(1, 0)
        self.b.dma(tile[:], view[:, (self.group * tile.shape[1], tile.shape[1])], "aux")
        return tile

    def _load_image(self, block: Block, c: Range) -> Tensor:
        b, shape = self.b, self.shape
        if shape.folded:
            return load_folded(b, self.site, self.x, shape.window, block, channels=shape.c, taps=shape.folded)
        start = self.group * shape.c
        channels = Channels(start, c.size, shape.c_tile, c.start // self.x.block)
        return load_block(b, self.site, self.x, shape.window, block, channels, 0.0)

    def _load_filters(self, k: Range, c: Range) -> Tensor:
        """[c in tile, k tiles, c tiles, r, s, k in tile]."""
        b, shape, (r, s) = self.b, self.shape, self.shape.taps
        k_tiles, c_tiles = -(-k.size // shape.k_tile), -(-c.size // shape.c_tile)
        contracted = c.size
        if shape.folded:
            contracted, c_tiles = shape.contracted, shape.c_tiles
        tile = b.scratch(
            (shape.c_tile, k_tiles, c_tiles, r, s, shape.k_tile),
            self.w.type.dtype,
            slots=self.site.slots,
            name="filters",
        )
        stored = self._stored_filters()
        first = k.start // shape.k_tile + self.group * (shape.k // shape.k_tile)
        for c0, count, rows in tile_counts(contracted, shape.c_tile):
            at = (c.start // shape.c_tile + c0, count)
            b.dma(tile[(0, rows), :, (c0, count)], stored[(0, rows), (first, k_tiles), at], "weight")
        return tile

    def _load_tap(self, k: Range, c: Range, size: int, tap: tuple[Affine, Affine, Affine]) -> Tensor:
        """The filters of one k tile, channel tile (`tap[0]`, counted in `c`) and tap."""
        b, shape = self.b, self.shape
        dims = (size, shape.k_tile)
        tile = b.scratch(dims, self.w.type.dtype, slots=self.site.slots, name="filters")
        first = k.start // shape.k_tile + self.group * (shape.k // shape.k_tile)
        at = c.start // shape.c_tile + tap[0]
        b.dma(tile[:], self._stored_filters()[(0, size), first, at, tap[1], tap[2]], "weight")
        return tile

    def _stored_filters(self) -> Tensor:
        """The filters in DRAM as [c in tile, k tiles, c tiles, r, s, k in tile]."""
        tensor, shape = self.w.tensor, self.shape
        if not shape.folded:
            return tensor
        _, _, k_tiles, s, k_tile = tensor.shape
        pitch = tensor.strides[1]
        return replace(
            tensor,
            shape=(shape.c_tile, k_tiles, shape.c_tiles, 1, s, k_tile),
            strides=(pitch, tensor.strides[2], pitch * shape.c_tile, 0, *tensor.strides[3:]),
        )

    # ---- compute ---------------------------------------------------------------------------------
    def _compute(self, block: Block, k: Range, image: Tensor, filters: Tensor) -> None:
        """All of a block for some output channels."""
        b, shape = self.b, self.shape
        out, residual = self._out_tiles(block, k)
        part = moving_part(shape, block.images.size, block.rows)
        for ki in b.tiles(k.size, shape.k_tile, "ki"):
            for where in self._parts(block, part):
                total = b.accumulator((ki.size, *(p.size for p in where)), slots=self.site.slots, name="sum")
                self._contract(total[:], image, filters, ki, where, whole(shape.c), k)
                self._finish(total, out, residual, k, ki, where)
        self._store(out, block, k)

    def _stream_channels(self, block: Block, k: Range) -> None:
        """One sum, to which channel tile after channel tile is added."""
        b, shape = self.b, self.shape
        out, residual = self._out_tiles(block, k)
        where = (whole(block.images.size), whole(block.rows), whole(shape.window.wo))
        ki = whole(k.size)
        total = b.accumulator((ki.size, *(p.size for p in where)), slots=self.site.slots, name="sum")
        for c in b.tiles(shape.c, shape.c if shape.folded else shape.c_tile, "c"):
            image = self._load_image(block, c)
            filters = None if self.plan.hold == "taps" else self._load_filters(k, c)
            self._contract(total[:], image, filters, ki, where, c, k)
        self._finish(total, out, residual, k, ki, where)
        self._store(out, block, k)

    def _parts(self, block: Block, part: Moving) -> Iterator[tuple[Range, Range, Range]]:
        """Images, rows and columns of each matmul."""
        b = self.b
        for i in b.tiles(block.images.size, part.images, "i"):
            for r in b.tiles(block.rows, part.rows, "r"):
                for c in b.tiles(self.shape.window.wo, part.cols, "c"):
                    yield i, r, c

    def _contract(
        self,
        total: Access,
        image: Tensor,
        filters: Tensor | None,
        ki: Range,
        where: tuple[Range, Range, Range],
        c: Range,
        k: Range,
    ) -> None:
        """Add up over channel tiles and taps; `c` are the channels that the tiles hold.

        Without `filters`, those of each tap are loaded on the way.
        """
        b, shape = self.b, self.shape
        stride = shape.window.stride
        step = 1 if shape.folded else stride
        images, rows, cols = where
        contracted = shape.contracted if shape.folded else c.size
        started = False
        for first, count, size in tile_counts(contracted, shape.c_tile):
            for t in b.tiles(count, 1, "t"):
                for r in b.tiles(shape.taps[0], 1, "tr"):
                    for s in b.tiles(shape.taps[1], 1, "ts"):
                        tile = t.start + first
                        moving = image[
                            (0, size),
                            tile,
                            (images.start, images.size),
                            (rows.start * step + r.start, rows.size, step),
                            (cols.start * stride + s.start, cols.size, stride),
                        ]
                        tap = (tile, r.start, s.start)
                        if filters is None:
                            stationary = self._load_tap(k, c, size, tap)[:, (0, ki.size)]
                        else:
                            stationary = filters[((0, size), ki.index, *tap, (0, ki.size))]
                        reset = (t.start + c.start, r.start, s.start)
                        b.matmul(total, stationary, moving, reset=None if started else reset)
            started = True

    # ---- results ---------------------------------------------------------------------------------
    def _channels(self, k: Range, port: Port) -> Channels:
        if self.shape.groups > 1:
            return Channels(self.group * self.shape.k, k.size, self.shape.k_tile)
        return Channels(0, k.size, self.shape.k_tile, k.start // port.block)

    def _out_tiles(self, block: Block, k: Range) -> tuple[Tensor, Tensor | None]:
        """The result tile of a block, and the residual loaded beside it."""
        b, shape, port = self.b, self.shape, self.residual_port
        dims = (shape.k_tile, -(-k.size // shape.k_tile), block.images.size, block.rows, shape.window.wo)
        out = b.scratch(dims, self.site.outputs[0].type.dtype, slots=self.site.slots, name="out")
        if port is None:
            return out, None
        residual = b.scratch(dims, port.type.dtype, slots=self.site.slots, name="residual")
        rows = (block.first, block.rows)
        load_channels(b, residual, port, self._channels(k, port), block.images, rows, (), "aux")
        return out, residual

    def _finish(
        self,
        total: Tensor,
        out: Tensor,
        residual: Tensor | None,
        k: Range,
        ki: Range,
        where: tuple[Range, Range, Range],
    ) -> None:
        """Take a sum out of the accumulators: `activation(sum + bias + residual)`."""
        bias = None
        if self.bias is not None:
            bias = self.bias[(0, ki.size), k.start // self.shape.k_tile + ki.index]
        images, rows, cols = ((p.start, p.size) for p in where)
        view = ((0, ki.size), ki.index, images, rows, cols)
        beside = residual[view] if residual else None
        self.engine = evict(self.b, self.site, self.op, total[:], out[view], beside, bias, self.engine)

    def _store(self, out: Tensor, block: Block, k: Range) -> None:
        port = self.site.outputs[0]
        with self.b.stage(1):
            rows = (block.first, block.rows)
            store_channels(self.b, out, port, self._channels(k, port), block.images, rows)


KERNEL = Kernel(_wants, conv2d)
