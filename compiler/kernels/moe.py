"""Around the experts: gates (`Route`), rows by expert (`Dispatch`) and back to tokens (`Combine`)."""

from __future__ import annotations

from compiler.builder import Builder, Range, Tensor
from compiler.ir.dtype import dtype_bytes
from compiler.kernels.site import Site
from compiler.kernels.strips import LONG_RUN, blocked, strip_block, strips, tile_counts
from compiler.kernels.transpose import check_rows, gather_features
from compiler.kernels.turn import columns_at_once, rows_at_once
from compiler.kernels.wants import PLAIN, Anything, Features, Kernel, Same, always, plain_wants
from compiler.ops.moe import ClampedGlu, Combine, Route


# ---- gates ---------------------------------------------------------------------------------------
def route(b: Builder, site: Site) -> None:
    """Lower `Route`: tokens on partitions; a chosen expert's score is picked by comparing indices."""
    op, (logits, chosen, index) = site.op, site.inputs
    assert isinstance(op, Route)
    experts, top = len(op.counts), op.top
    parts = site.arch.partitions(site.arch.scratchpad)
    each = min(op.tokens, parts)
    number = b.scratch((each, experts), "fp32", name="number")
    b.dma(number[:], index.tensor.repeat(0, each)[:], "aux")
    at_once = max(1, min(top, site.room // (8 * experts * site.slots) - 4))
    for t in b.tiles(op.tokens, each, "t"):
        rows = (t.start, t.size)
        raw = b.scratch((t.size, experts), logits.type.dtype, slots=site.slots, name="logits")
        b.dma(raw[:], logits.tensor[rows, :], "input")
        wanted = b.scratch((t.size, top), "int32", slots=site.slots, name="chosen")
        b.dma(wanted[:], chosen.tensor[rows, :], "aux")
        which = b.scratch((t.size, top), "fp32", slots=site.slots, name="which")
        b.copy(which[:], wanted[:])
        scores = _scores(b, site, op, raw)
        gates = b.scratch((t.size, top), "fp32", slots=site.slots, name="gates")
        for j in b.tiles(top, at_once, "j"):
            shape = (t.size, j.size, experts)
            picked = b.scratch(shape, "fp32", slots=site.slots, name="picked")
            mine = which.stretch(experts)[:, (j.start, j.size), :]
            b.tensor_tensor(picked[:], number.part(0, 0, t.size).repeat(1, j.size)[:], mine, "equal")
            b.tensor_tensor(picked[:], picked[:], scores.repeat(1, j.size)[:], "multiply")
            b.reduce(gates[:, (j.start, j.size)], picked[:], "add")
        result = _finish_gates(b, site, op, gates)
        with b.stage(1):
            b.dma(site.outputs[0].tensor[rows, :], result[:], "output")


def _scores(b: Builder, site: Site, op: Route, raw: Tensor) -> Tensor:
    """Scores of all experts, not yet divided by what `normalise` cancels."""
    tokens = raw.shape[0]
    scores = b.scratch(raw.shape, "fp32", slots=site.slots, name="scores")
    if op.score == "sigmoid":
        b.activate(scores[:], raw[:], "sigmoid")
        return scores
    top, total = (b.scratch((tokens, 1), "fp32", slots=site.slots, name=n) for n in ("max", "total"))
    b.reduce(top[:], raw[:], "max")
    b.tensor_scalar(top[:], top[:], "multiply", -1.0)
    b.activate(scores[:], raw[:], "exp", bias=top[:])
    if not op.normalise:
        b.reduce(total[:], scores[:], "add")
        b.activate(total[:], total[:], "reciprocal")
        b.tensor_scalar(scores[:], scores[:], "multiply", total[:])
    return scores


def _finish_gates(b: Builder, site: Site, op: Route, gates: Tensor) -> Tensor:
    result = b.scratch(gates.shape, site.outputs[0].type.dtype, slots=site.slots, name="result")
    if not op.normalise:
        b.tensor_scalar(result[:], gates[:], "multiply", op.scale)
        return result
    total = b.scratch((gates.shape[0], 1), "fp32", slots=site.slots, name="sum")
    b.reduce(total[:], gates[:], "add")
    b.activate(total[:], total[:], "reciprocal")
    b.tensor_scalar(result[:], gates[:], "multiply", total[:], "multiply", op.scale)
    return result


# ---- rows ----------------------------------------------------------------------------------------
def dispatch(b: Builder, site: Site) -> None:
    """Lower `Dispatch`: turn tokens to rows once, then gather rows by expert and turn them back."""
    x, source = site.inputs
    check_rows(site, x.type.dtype)
    rows = b.dram(f"{site.name}.rows", x.type.shape, x.type.dtype)
    features_to_rows(b, site, rows)
    gather_features(b, site, source.tensor, rows, site.outputs[0])


def features_to_rows(b: Builder, site: Site, rows: Tensor) -> None:
    """Operand 0, features on partitions, to a row-major DRAM tensor."""
    x = site.inputs[0]
    tokens, features = x.type.shape
    size, dtype = dtype_bytes(x.type.dtype), x.type.dtype
    wide, step = min(columns_at_once(site), tokens), rows_at_once(site, dtype)
    room = site.room // site.slots - 512
    target = rows.split(1, x.block)
    for first, count, height in tile_counts(features, x.block):
        for low in range(0, height, step):
            high = min(step, height - low)
            at_once = max(1, min(count, room // ((wide + high) * size), -(-LONG_RUN // (high * size))))
            for t in b.tiles(tokens, wide, "t"):
                for f in b.tiles(count, at_once, "f"):
                    tile = b.scratch((high, f.size, t.size), dtype, slots=site.slots, name="x")
                    blocks = (f.start + first, f.size)
                    b.dma(tile[:], blocked(x)[(low, high), blocks, (t.start, t.size)], "input")
                    turned = b.scratch((t.size, f.size, high), dtype, slots=site.slots, name="rows")
                    for j in b.tiles(f.size, 1, "j"):
                        total = b.accumulator((t.size, high), dtype=dtype, slots=site.slots, name="turned")
                        b.transpose(total[:], tile[:, j.start])
                        b.copy(turned[:, j.start], total[:])
                    with b.stage(1):
                        b.dma(target[(t.start, t.size), blocks, (low, high)], turned[:], "output")


def combine(b: Builder, site: Site) -> None:
    """Lower `Combine`: gather each token's rows, add them up by their gates, turn to features."""
    op, (x, gates, slot), out = site.op, site.inputs, site.outputs[0]
    assert isinstance(op, Combine)
    check_rows(site, x.type.dtype)
    tokens, features = out.type.shape
    dtype, size = x.type.dtype, dtype_bytes(x.type.dtype)
    step = min(tokens, rows_at_once(site, dtype))
    room = site.room // site.slots - 1024
    for t in b.tiles(tokens, step, "t"):
        index = b.scratch((t.size, op.top), "int32", slots=site.slots, name="slot")
        b.dma(index[:], slot.tensor[(t.start, t.size), :], "aux")
        weight = b.scratch((t.size, op.top), gates.type.dtype, slots=site.slots, name="gates")
        b.dma(weight[:], gates.tensor[(t.start, t.size), :], "aux")
        factor = b.scratch((t.size, op.top), "fp32", slots=site.slots, name="factor")
        b.copy(factor[:], weight[:])
        for first, count, wide in tile_counts(features, out.block):
            each = wide * (2 * size * site.slots + 4) + step * size
            at_once = max(1, min(count, room // each, -(-LONG_RUN // (wide * size))))
            for f in b.tiles(count, at_once, "f"):
                start, width = (f.start + first) * out.block, f.size * wide
                total = _weighted(b, site, op, x.tensor, index, factor, Range(start, width, f.start))
                y = b.scratch((wide, f.size, t.size), dtype, slots=site.slots, name="y")
                for j in b.tiles(f.size, 1, "j"):
                    turned = b.accumulator((wide, t.size), dtype=dtype, slots=site.slots, name="turned")
                    b.transpose(turned[:], total[:, (j.start * wide, wide)])
                    b.copy(y[:, j.start], turned[:])
                with b.stage(1):
                    where = (f.start + first, f.size), (t.start, t.size)
                    b.dma(blocked(out)[((0, wide), *where)], y[:], "output")


def _weighted(
    b: Builder, site: Site, op: Combine, x: Tensor, index: Tensor, factor: Tensor, columns: Range
) -> Tensor:
    """The weighted sum of each token's rows, some columns of it: [tokens, columns]."""
    tokens = index.shape[0]
    shape = (tokens, columns.size)
    total = b.scratch(shape, "fp32", slots=site.slots, name="total")
    result = b.scratch(shape, x.dtype, slots=site.slots, name="sum")
    for j in range(op.top):
        row = b.scratch(shape, x.dtype, slots=site.slots, name="row")
        b.gather(row[:], x[0, (columns.start, columns.size)], index[:, (j, 1)], x.shape[1])
        target = (result if j == op.top - 1 else total)[:]
        if j:
            b.tensor_tensor(target, row[:], total[:], "add", scale=factor[:, (j, 1)])
        else:
            b.tensor_scalar(target, row[:], "multiply", factor[:, (j, 1)])
    return result


# ---- gates of gpt-oss ----------------------------------------------------------------------------
def clamped_glu(b: Builder, site: Site) -> None:
    """Lower `ClampedGlu`, strip by strip."""
    op, (gate, up), out = site.op, site.inputs, site.outputs[0]
    assert isinstance(op, ClampedGlu)
    parts = site.arch.partitions(site.arch.scratchpad)
    size = 3 * dtype_bytes(gate.type.dtype) + 12
    for left, right, target in zip(*(strips(port, parts) for port in (gate, up, out)), strict=True):
        for t in b.tiles(left.length, strip_block(site, left.length, size), "e"):
            dims = (left.partitions, t.size)
            x, y, z = (b.scratch(dims, gate.type.dtype, slots=site.slots, name=n) for n in ("x", "y", "z"))
            g, s, u = (b.scratch(dims, "fp32", slots=site.slots, name=n) for n in ("gate", "sigmoid", "up"))
            b.dma(x[:], left(t.start, t.size), "input")
            b.dma(y[:], right(t.start, t.size), "aux")
            b.tensor_scalar(g[:], x[:], "min", op.limit)
            b.activate(s[:], g[:], "sigmoid", scale=op.alpha)
            b.tensor_tensor(g[:], g[:], s[:], "multiply")
            b.tensor_scalar(u[:], y[:], "min", op.limit, "max", -op.limit)
            b.tensor_scalar(u[:], u[:], "add", 1.0)
            b.tensor_tensor(z[:], g[:], u[:], "multiply")
            with b.stage(1):
                b.dma(target(t.start, t.size), z[:], "output")


ROUTE = Kernel(plain_wants, route)
DISPATCH = Kernel(always(Features(), PLAIN, Features()), dispatch)
COMBINE = Kernel(always(PLAIN, PLAIN, PLAIN, Features()), combine)
CLAMPED_GLU = Kernel(always(Anything(), Same(0), Same(0)), clamped_glu)
