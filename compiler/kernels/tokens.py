"""Rows of tokens: picking one a sequence (`TakeRows`), and patches to tokens (`AssembleTokens`)."""

from __future__ import annotations

from compiler.builder import Builder, Tensor
from compiler.ir.dtype import dtype_bytes
from compiler.isa import Affine
from compiler.kernels.site import Site
from compiler.kernels.strips import Pair, blocked, common_pieces
from compiler.kernels.wants import PLAIN, Anything, Features, Kernel, Same, always
from compiler.ops.move import TakeRows


def take_rows(b: Builder, site: Site) -> None:
    """Lower `TakeRows`: one strided transfer, or one for whole and one for short feature blocks."""
    op, x, out = site.op, site.inputs[0], site.outputs[0]
    assert isinstance(op, TakeRows)
    row, features = op.index % op.seq, out.type.shape[1]
    if not x.block:
        b.dma(out.tensor[:], x.tensor.split(0, op.seq)[:, row], "input")
        return
    source, target = blocked(x).split(2, op.seq), blocked(out)
    for p in common_pieces(features, x.block, out.block):
        picked = source[(p.source, p.size), (p.block, p.count), :, row]
        b.dma(target[(p.target, p.size), (p.target_block, p.count)], picked, "input")


def assemble_tokens(b: Builder, site: Site) -> None:
    """Lower `AssembleTokens`: feature block by feature block, some images at once."""
    x, out = site.inputs[0], site.outputs[0]
    n, features, height, width = x.type.shape
    patches = height * width
    size = dtype_bytes(x.type.dtype)
    room = site.room // site.slots - 512
    images = max(1, min(n, room // ((3 * patches + 2) * size)))
    for p in common_pieces(features, x.block, out.block):
        for f in b.tiles(p.count, 1, "f"):
            fixed = _load_fixed(b, site, p, f.start + p.target_block)
            for i in b.tiles(n, images, "i"):
                source = blocked(x).split(2, patches)
                tile = b.scratch((p.size, i.size, patches), x.type.dtype, slots=site.slots, name="patches")
                where = (f.start + p.block, (i.start, i.size))
                b.dma(tile[:], source[((p.source, p.size), *where)], "input")
                y = b.scratch((p.size, i.size, patches + 1), out.type.dtype, slots=site.slots, name="tokens")
                _add_positions(b, y, tile, fixed)
                target = blocked(out).split(2, patches + 1)
                with b.stage(1):
                    place = (f.start + p.target_block, (i.start, i.size))
                    b.dma(target[((p.target, p.size), *place)], y[:], "output")


def _load_fixed(b: Builder, site: Site, p: Pair, block: int | Affine) -> Tensor:
    """Positions of one feature block, [features, tokens], the class token added to the first."""
    _, cls, positions = site.inputs
    tokens = positions.type.shape[0]
    fixed = b.scratch((p.size, tokens), positions.type.dtype, slots=site.slots, name="positions")
    b.dma(fixed[:], blocked(positions)[(p.target, p.size), block], "aux")
    first = b.scratch((p.size, 1), cls.type.dtype, slots=site.slots, name="class")
    rows = cls.tensor.split(0, positions.block).permute(1, 0)
    b.dma(first[:], rows[(p.target, p.size), block], "aux")
    b.tensor_tensor(fixed[:, (0, 1)], fixed[:, (0, 1)], first[:], "add")
    return fixed


def _add_positions(b: Builder, y: Tensor, patches: Tensor, fixed: Tensor) -> None:
    """Tokens of all images: the class token, then each patch, with their positions."""
    images, count = patches.shape[1:]
    spread = fixed.repeat(1, images)
    b.copy(y[:, :, (0, 1)], spread[:, :, (0, 1)])
    b.tensor_tensor(y[:, :, (1, count)], patches[:], spread[:, :, (1, count)], "add")


TAKE_ROWS = Kernel(always(Anything(), Same(0)), take_rows)
ASSEMBLE_TOKENS = Kernel(  # positions lie as the tokens do
    always(Features(), PLAIN, Same(3), Features()), assemble_tokens
)
