"""Rotary position embedding with the head dimension on partitions.

out = x * cos + partner * sin, where the partner of a feature is the other one of its pair, with the sign of
the first of each pair turned in the sine table; features that stay have cosine 1 and sine 0. Partners sit on
other partitions, so they come by their own transfer; neighbours that change places do so in DRAM first.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from arch_configs.spec import ArchSpec
from compiler.builder import Builder, Range, Tensor
from compiler.errors import Infeasible, Shortfall
from compiler.ir.dtype import dtype_bytes
from compiler.ir.graph import Node, TensorType
from compiler.ir.layout import Layout, feature_blocked
from compiler.isa import Access
from compiler.kernels.site import Site, head_block
from compiler.kernels.wants import Fixed, Kernel, Want
from compiler.ops.rope import Rope

FEATURES_FIRST = Layout((), (1, 0))


def _wants(node: Node, types: Mapping[str, TensorType], arch: ArchSpec) -> tuple[Want, ...]:
    op = node.op
    assert isinstance(op, Rope)
    block = head_block(arch, op.head_dim)
    if op.style == "interleaved":  # both features of a pair in one block
        block = next((d for d in range(block, 1, -1) if d % 2 == 0 and op.head_dim % d == 0), block)
    heads = Fixed(feature_blocked(block))
    return heads, Fixed(FEATURES_FIRST), Fixed(FEATURES_FIRST), heads


@dataclass(frozen=True, slots=True)
class _Piece:
    """Partitions `first .. first + size` of block `block` of a head, and the source that goes there."""

    block: int
    first: int
    size: int
    source: int


def _pieces(sources: Sequence[int | None], block: int, source_block: int) -> Iterator[_Piece]:
    """Where `sources[f]` goes for each feature f, in runs within a block of both; None goes nowhere."""
    start = 0
    for f in range(1, len(sources) + 1):
        here, last = sources[start], sources[f - 1]
        follows = f < len(sources) and last is not None and sources[f] == last + 1
        if follows and f % block and (last is None or (last + 1) % source_block):
            continue
        if here is not None:
            yield _Piece(start // block, start % block, f - start, here)
        start = f


def _partners(op: Rope) -> list[int | None]:
    """The other feature of each one's pair; of those that stay, themselves."""
    found: list[int | None] = list(range(op.head_dim))
    if op.style == "half":  # the kernel changes places of neighbours before it loads
        for one, other in zip(*op.pairs(), strict=True):
            found[one], found[other] = int(other), int(one)
    return found


def _angles(op: Rope) -> list[int | None]:
    """The column of the tables for each feature."""
    found: list[int | None] = [None] * op.head_dim
    for features in op.pairs():
        for i, feature in enumerate(features):
            found[feature] = i
    return found


def rope(b: Builder, site: Site) -> None:
    """Lower a `Rope` op."""
    op = site.op
    assert isinstance(op, Rope)
    x, out = site.inputs[0], site.outputs[0]
    block = x.block
    blocks = op.head_dim // block
    batch = x.type.shape[0] // op.seq
    heads, rows, sequences = _sizes(site, op, blocks, batch)
    other = _swapped(b, site) if op.style == "interleaved" else x.tensor
    signs = None if _is_plain(op) else _signs(b, op, block)
    own = list(range(op.head_dim))
    for s in b.tiles(op.seq, rows, "s"):
        cos, sin = _tables(b, site, op, block, s, signs)
        for n in b.tiles(batch, sequences, "b"):
            for h in b.tiles(op.heads, heads, "h"):
                shape = (block, h.size, blocks, n.size, s.size)
                tile = b.scratch(shape, x.type.dtype, slots=site.slots, name="x")
                partner = b.scratch(shape, x.type.dtype, slots=site.slots, name="partner")
                _load(b, tile, x.tensor, op, (h, n, s), own)
                _load(b, partner, other, op, (h, n, s), _partners(op))
                b.tensor_tensor(tile[:], tile[:], _over(cos, h.size, n.size), "multiply")
                b.tensor_tensor(partner[:], partner[:], _over(sin, h.size, n.size), "multiply")
                b.tensor_tensor(tile[:], tile[:], partner[:], "add")
                with b.stage(1):
                    where = (h.start, h.size), slice(None), (n.start, n.size), (s.start, s.size)
                    b.dma(_window(out.tensor, op)[(0, block), *where], tile[:], "output")


def _sizes(site: Site, op: Rope, blocks: int, batch: int) -> tuple[int, int, int]:
    """(heads, positions, sequences) a tile: about 4 KiB a partition and operand, and what fits."""
    arch = site.arch
    room = arch.partition_bytes(arch.scratchpad) // (2 * site.slots + 4)
    elements = max(1, min(4096, room) // dtype_bytes(site.inputs[0].type.dtype) // blocks)
    rows = min(op.seq, elements)
    sequences = min(batch, elements) if op.seq == 1 else 1
    return max(1, min(op.heads, elements // (rows * sequences))), rows, sequences


def _window(tensor: Tensor, op: Rope) -> Tensor:
    """[block, heads, blocks, sequences, positions] of a stored [block, all blocks, tokens]."""
    return tensor.split(1, op.head_dim // tensor.shape[0]).split(3, op.seq)


def _is_plain(op: Rope) -> bool:
    """Whether all features turn, the first half with the second."""
    return op.style == "half" and op.turned == op.head_dim


def _swapped(b: Builder, site: Site) -> Tensor:
    """x in DRAM with neighbouring features in each other's place."""
    x = site.inputs[0]
    if x.block % 2:
        need = Shortfall(
            "partitions", site.arch.scratchpad, 2, x.block, "features a block",
            ((site.name, 2),), f"memories.{site.arch.scratchpad}.partitions >= 2",
        )  # fmt: skip
        raise Infeasible(need)
    copy = b.dram(f"{site.name}.swapped", x.tensor.shape, x.type.dtype)
    to, source = copy.split(0, 2), x.tensor.split(0, 2)
    for i in range(2):
        b.dma(to[:, i], source[:, 1 - i], "aux")
    return copy


def _signs(b: Builder, op: Rope, block: int) -> Tensor:
    """[block, blocks]: -1 for the first of each pair, else 1."""
    row = b.scratch((1, op.head_dim), "fp32", name="signs")
    half = op.turned // 2
    b.memset(row[:], 1.0)
    b.memset(row[:, (op.first, half) if op.style == "half" else (op.first, half, 2)], -1.0)
    signs = b.scratch((block, op.head_dim // block), "fp32", name="signs")
    for i in range(op.head_dim // block):
        b.dma(signs[:, (i, 1)], row[:, (i * block, block)], "aux")
    return signs


def _load(
    b: Builder,
    tile: Tensor,
    x: Tensor,
    op: Rope,
    where: tuple[Range, Range, Range],
    sources: Sequence[int | None],
) -> None:
    """Load heads x sequences x positions, each feature from that of `sources`."""
    h, n, s = where
    block = tile.shape[0]
    view = _window(x, op)
    for piece in _pieces(sources, block, block):
        source, offset = divmod(piece.source, block)
        b.dma(
            tile[(piece.first, piece.size), :, piece.block],
            view[(offset, piece.size), (h.start, h.size), source, (n.start, n.size), (s.start, s.size)],
        )


def _tables(
    b: Builder, site: Site, op: Rope, block: int, s: Range, signs: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Cosines, and sines with their signs: [block, blocks of a head, positions]."""
    blocks, tables = op.head_dim // block, []
    for port, name in zip(site.inputs[1:], ("cos", "sin"), strict=True):
        raw = b.scratch((block, blocks, s.size), port.type.dtype, slots=site.slots, name=name)
        if op.turned < op.head_dim:
            b.memset(raw[:], float(name == "cos"))
        if op.style == "half":
            for piece in _pieces(_angles(op), block, op.head_dim):
                target = raw[(piece.first, piece.size), piece.block]
                b.dma(target, port.tensor[(piece.source, piece.size), (s.start, s.size)], "aux")
        else:
            _spread(b, op, raw, port.tensor, s)
        tables.append(raw)
    cos, sin = tables
    if signs is None:
        for piece in _pieces(range(op.head_dim // 2), block, op.head_dim):
            part = sin[(piece.first, piece.size), piece.block]
            b.tensor_scalar(part, part, "multiply", -1.0)
        return cos, sin
    for i in range(blocks):
        b.tensor_scalar(sin[:, i], sin[:, i], "multiply", signs[:, i])
    return cos, sin


def _spread(b: Builder, op: Rope, raw: Tensor, table: Tensor, s: Range) -> None:
    """Each row of a table for both features of its pair."""
    block = raw.shape[0]
    both = table.repeat(1, 2)
    at, end = op.first, op.first + op.turned
    while at < end:
        size = min(block - at % block, end - at)
        rows = ((at - op.first) // 2, size // 2)
        b.dma(raw[(at % block, size), at // block], both[rows, :, (s.start, s.size)], "aux", lanes=1)
        at += size


def _over(table: Tensor, heads: int, sequences: int) -> Access:
    """The table repeated for each head and sequence."""
    return table.repeat(2, sequences).repeat(1, heads)[:]


KERNEL = Kernel(_wants, rope)
