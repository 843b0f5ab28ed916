"""How to tile a convolution: what lies on the array's sides, what stays on chip, how large blocks are."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import prod
from operator import itemgetter

from arch_configs.spec import ArchSpec
from compiler.builder import Builder
from compiler.decisions import decide
from compiler.ir.dtype import dtype_bytes
from compiler.ir.graph import TensorType
from compiler.ir.layout import Layout
from compiler.kernels.image import Window, image_bytes, is_staged
from compiler.kernels.site import Site, grouped
from compiler.kernels.strips import tile_counts
from compiler.ops.conv import Conv2d


@dataclass(frozen=True, slots=True)
class Shape:
    """The problem in array terms, per group of channels."""

    window: Window
    images: int
    groups: int
    c: int  # input channels of a group
    k: int  # output channels of a group
    c_tile: int  # partitions a channel tile takes; with folding, rows of the window times channels
    k_tile: int
    folded: int  # rows of the window that lie on partitions beside the channels; 0: none
    columns: int  # moving columns of one matmul, at most
    itemsize: int

    @property
    def is_depthwise(self) -> bool:
        """Whether every channel is a group of its own."""
        return self.groups > 1 and self.c == 1 and self.k == 1

    @property
    def c_tiles(self) -> int:
        """Channel tiles, the last may be short."""
        return -(-self.contracted // self.c_tile)

    @property
    def contracted(self) -> int:
        """What lies on partitions, over all channel tiles."""
        return self.c * self.window.r if self.folded else self.c

    @property
    def taps(self) -> tuple[int, int]:
        """Rows and columns of the window that are passes of the array."""
        return (1 if self.folded else self.window.r), self.window.s


def conv_shape(
    arch: ArchSpec, op: Conv2d, x: TensorType, w: TensorType, y: TensorType, blocks: tuple[int, int]
) -> Shape:
    """Array terms of the op; `blocks` are the channel blocks of x and y in DRAM."""
    n, c, height, width = x.shape
    k, c_group, r, s = w.shape
    k_group = k // op.groups
    rows = min(arch.array.rows, arch.partitions(arch.scratchpad))
    cols = min(arch.array.cols, arch.partitions(arch.scratchpad), arch.partitions(arch.accumulator))
    folded = 0
    if op.groups == 1 and r > 1 and c <= blocks[0] and 2 * c <= rows:
        passes = -(-r // min(r, rows // c))
        folded = -(-r // passes)
    if op.groups == 1:
        c_tile = c * folded if folded else min(grouped(rows, blocks[0]), _up(c, blocks[0]))
        k_tile = min(grouped(cols, blocks[1]), _up(k, blocks[1]))
    else:
        c_tile = min(rows, c_group)
        k_tile = next(size for size in range(min(cols, k_group), 0, -1) if k_group % size == 0)
    bank = arch.bank_bytes(arch.accumulator) // 4
    return Shape(
        window=Window(r, s, op.stride, op.padding, height, width, y.shape[2], y.shape[3]),
        images=n,
        groups=op.groups,
        c=c_group,
        k=k_group,
        c_tile=c_tile,
        k_tile=k_tile,
        folded=folded,
        columns=max(1, min(arch.array.moving_max, bank)),
        itemsize=dtype_bytes(x.dtype),
    )


def _up(value: int, to: int) -> int:
    return -(-value // to) * to


def weight_layout(shape: Shape) -> Layout:
    """[k, c, r, s] as [c in tile, k tile, c tile, r, s, k in tile]: filters of a k tile lie in one run.

    Folded: [r, c, k tile, s, k in tile]. Depthwise filters are scalars of their channel's partition.
    """
    if shape.folded:
        return Layout(((0, shape.k_tile),), (3, 2, 0, 4, 1))
    return Layout(((0, shape.k_tile), (1, shape.c_tile)), (3, 0, 2, 4, 5, 1))


@dataclass(frozen=True, slots=True)
class Plan:
    """`hold`: the operand that stays while the other streams; or 'sums', while channels stream.

    With 'taps', sums stay and filters stream tap by tap: the least memory, and many short transfers.
    """

    hold: str  # x | w | sums | taps
    k_tiles: int
    images: int
    rows: int  # output rows


@dataclass(frozen=True, slots=True)
class Moving:
    """The part of a block that one matmul covers: images, rows and columns of the result."""

    images: int
    rows: int
    cols: int


def moving_part(shape: Shape, images: int, rows: int) -> Moving:
    """Whole rows, and whole images where they are small, as many as the array takes at once."""
    width, limit = shape.window.wo, shape.columns
    if width > limit:
        return Moving(1, 1, -(-width // -(-width // limit)))
    if rows * width > limit:
        pieces = -(-rows // (limit // width))
        return Moving(1, -(-rows // pieces), width)
    return Moving(min(images, limit // (rows * width)), rows, width)


def choose(b: Builder, site: Site, shape: Shape) -> Plan:
    """The plan with the least estimated time that fits; if none does, the smallest.

    Sizes here are estimates: the allocator has the last word.
    """
    tried = [
        (scratch_bytes(site, shape, plan, slots), plan, slots)
        for plan in candidates(shape)
        for slots in sorted({1, site.slots})
    ]
    timed = [
        (estimate(b, site, shape, plan, slots), need, plan)
        for need, plan, slots in tried
        if need <= site.room
    ]
    if not timed:
        return min(tried, key=itemgetter(0))[1]
    time, _, plan = min(timed, key=itemgetter(0, 1))
    fitting = [(t, p) for t, _, p in timed]
    b.graph.decisions.append(decide(site.name, "tiles", fitting, (time, plan), len(tried), say))
    return plan


def say(plan: Plan) -> str:
    """A plan in words."""
    held = {"x": "image held", "w": "filters held", "sums": "sums held", "taps": "sums held, tap by tap"}
    block = f"{plan.images} images x {plan.rows} rows"
    return f"{held[plan.hold]}, blocks of {plan.k_tiles} channel tiles, {block}"


def candidates(shape: Shape) -> Iterator[Plan]:
    """Blocks of whole images, of rows of an image, and of one matmul."""
    window = shape.window
    at_once = max(1, shape.columns // window.wo)
    sizes = [(images, window.ho) for images in _doubling(1, shape.images)]
    sizes += [(1, rows) for rows in _doubling(min(at_once, window.ho), window.ho) if rows < window.ho]
    rows = at_once // 2
    while rows and rows < window.ho:
        sizes.append((1, rows))
        rows //= 2
    whole = -(-shape.k // shape.k_tile)
    for images, rows in sizes:
        for k_tiles in _doubling(1, whole) if shape.groups == 1 else (whole,):
            yield Plan("x", k_tiles, images, rows)
            yield Plan("w", k_tiles, images, rows)
        part = moving_part(shape, images, rows)
        is_one = part == Moving(images, rows, window.wo)
        if is_one and (shape.groups == 1 or whole == shape.c_tiles == 1):
            yield Plan("sums", 1, images, rows)
            yield Plan("taps", 1, images, rows)


def _doubling(first: int, last: int) -> list[int]:
    sizes = []
    while first < last:
        sizes.append(first)
        first *= 2
    return [*sizes, last]


def input_bytes(site: Site, shape: Shape, plan: Plan) -> int:
    """Scratchpad bytes a partition of one channel tile under a block."""
    window, dtype = shape.window, site.inputs[0].type.dtype
    if not shape.folded:
        return image_bytes(site, window, dtype, plan.images, plan.rows)
    rows = plan.images * plan.rows * shape.itemsize
    return rows * window.padded_width + (rows * window.w if is_staged(site, window, dtype) else 0)


def scratch_bytes(site: Site, shape: Shape, plan: Plan, slots: int) -> int:
    """Scratchpad bytes a partition that the plan's tiles need."""
    op = site.op
    assert isinstance(op, Conv2d)
    tiles = 1 if plan.hold in ("sums", "taps") else shape.c_tiles
    out = plan.k_tiles * plan.images * plan.rows * shape.window.wo * shape.itemsize
    out *= 2 if op.residual else 1
    kinds = min(3, _blocks(shape, plan)) if plan.rows < shape.window.ho else 1
    x_slots = 1 if plan.hold == "x" and _blocks(shape, plan) == 1 else slots
    w_slots = 1 if plan.hold == "w" and plan.k_tiles * shape.k_tile >= shape.k else slots
    x = input_bytes(site, shape, plan) * tiles * x_slots
    taps = 1 if plan.hold == "taps" else prod(shape.taps)
    w = plan.k_tiles * tiles * taps * shape.k_tile * shape.itemsize * w_slots
    temporary = 4 * shape.columns * slots if op.residual and (op.bias or op.activation) else 0
    # blocks at the edges of an image have buffers of their own, and all of them live in the same loop
    shared = (plan.hold == "w" and w_slots > 1) or shape.images > plan.images
    if not shared and slots > 1:
        kinds = min(2, kinds)
    bias = 4 * -(-shape.k // shape.k_tile)
    return (x + out * slots + temporary) * (kinds if slots > 1 else 1) + w + bias + 8 * 64


def _blocks(shape: Shape, plan: Plan) -> int:
    return -(-shape.images // plan.images) * -(-shape.window.ho // plan.rows)


def estimate(b: Builder, site: Site, shape: Shape, plan: Plan, slots: int) -> int:
    """Picoseconds: the slowest of array, vector engines, transfers and their latency, and what shows.

    The first and the last block always show; without a second slot nothing overlaps.
    """
    window, dtype = shape.window, site.inputs[0].type.dtype
    blocks, k_blocks = _blocks(shape, plan), -(-shape.k // (plan.k_tiles * shape.k_tile))
    passes = shape.c_tiles * prod(shape.taps) * -(-shape.k // shape.k_tile)
    array = 0
    for _, images_n, images in tile_counts(shape.images, plan.images):
        for _, rows_n, rows in tile_counts(window.ho, plan.rows):
            array += images_n * rows_n * _matmul_ps(b, shape, dtype, passes, images, rows)
    per_row = window.w * shape.itemsize * shape.c * (window.r if shape.folded else 1)
    in_rows = plan.rows if shape.folded else min(window.in_rows(plan.rows), window.h)
    x_block = plan.images * in_rows * per_row
    w_all = shape.c * shape.k * window.r * window.s * shape.itemsize
    out = shape.images * shape.k * window.ho * window.wo * shape.itemsize
    is_held = plan.hold == "x"
    x_times, w_times = 1 if is_held else k_blocks, 1 if plan.hold == "w" else blocks
    transfer = b.cost.transfer_ps(x_block * blocks * x_times + w_all * w_times + out)
    loads = blocks * x_times
    dma = site.arch.dma
    streamed = {"sums": shape.c_tiles, "taps": shape.c_tiles * prod(shape.taps)}.get(plan.hold, 1)
    issues = max(loads * (window.r if shape.folded else 1), blocks * k_blocks) * streamed * dma.issue
    latency = loads * streamed * (dma.latency + dma.completion + b.cost.transfer_ps(x_block)) // slots
    copied = input_bytes(site, shape, plan) // shape.itemsize * shape.c_tiles if window.padding else 0
    moved = loads * copied + -(-shape.k // shape.k_tile) * shape.images * window.ho * window.wo
    vectors = site.arch.vectors.values()
    vector = moved * 10**12 // sum(spec.clock for spec in vectors)
    shown = b.cost.transfer_ps(x_block + w_all // k_blocks + out // (blocks * k_blocks))
    shown += dma.latency + dma.completion
    bounds = (array, transfer, issues, latency, vector)
    return shape.groups * ((max(bounds) if slots > 1 else sum(bounds)) + shown)


def _matmul_ps(b: Builder, shape: Shape, dtype: str, passes: int, images: int, rows: int) -> int:
    """Array time of one block of `images` and `rows`."""
    part, time = moving_part(shape, images, rows), 0
    for _, i_n, i in tile_counts(images, part.images):
        for _, r_n, r in tile_counts(rows, part.rows):
            for _, c_n, c in tile_counts(shape.window.wo, part.cols):
                time += b.cost.matmul_ps(i * r * c, dtype, passes * i_n * r_n * c_n, passes)
    return time
