"""What an op says about operands that do not fit: the operand, what it got, what it wants."""

import pytest

from compiler.errors import CompileError
from compiler.ir.graph import TensorType
from compiler.ops import (
    AssembleTokens,
    Attention,
    BatchMatmul,
    Binary,
    Concat,
    Conv2d,
    CumSum,
    DecodeAttention,
    Embedding,
    Expand,
    Gather,
    KvWrite,
    LayerNorm,
    Linear,
    Pad,
    Permute,
    Pool2d,
    Reduce,
    Reshape,
    RmsNorm,
    Rope,
    Scalar,
    Select,
    Slice,
    TakeRows,
    TopK,
    Transpose2d,
    Unary,
    Update,
)


def b16(*shape):
    return TensorType(shape, "bf16")


FP32 = TensorType((8, 4), "fp32")
IDS = TensorType((3,), "int32")
CASES = [
    (Linear(), (b16(2, 8),), "linear: got 1 operands, want 2: x, w"),
    (Linear(), (b16(2, 8), b16(7, 4)), "linear: w: got shape [7, 4], want [8, 4]"),
    (Linear(), (b16(2, 8), FP32), "linear: w: got dtype fp32, want bf16"),
    (Linear(), (b16(2, 3, 8), b16(8, 4)), "linear: x: got shape [2, 3, 8], want axes [t k]"),
    (Linear(norm="rms"), (b16(2, 8), b16(8, 4), b16(4)), "linear: gain: got shape [4], want [8]"),
    (Linear(bias=True), (b16(2, 8), b16(8, 4), b16(8)), "linear: b: got shape [8], want [4]"),
    (Linear(norm="batch"), (b16(2, 8), b16(8, 4)), "norm: got 'batch', want one of: rms, layer"),
    (Linear(activation="gelu2"), (b16(2, 8), b16(8, 4)), "activation: got 'gelu2'"),
    (Linear(gated=True), (b16(2, 8), b16(8, 4), b16(8, 4)), "gated: want an activation"),
    (Linear(activation="silu", gated=True, scale=2.0), (), "scale: got 2.0 with gated"),
    (RmsNorm(), (b16(2, 8), b16(4)), "rms-norm: gain: got shape [4], want [8]"),
    (RmsNorm(heads=3), (b16(2, 8), b16(4)), "heads: got 3, want a divisor of 8"),
    (LayerNorm(), (b16(2, 8), b16(8), b16(7)), "layer-norm: beta: got shape [7], want [8]"),
    (Unary("sinh"), (b16(2),), "unary: func: got 'sinh', want one of: identity, relu"),
    (Binary("xor"), (b16(2), b16(2)), "binary: func: got 'xor', want one of: add, sub, mul, max, div"),
    (Binary("add"), (b16(6, 5), b16(4, 5)), "binary: got shapes [6, 5] and [4, 5], want ones that broadcast"),
    (Scalar("xor", 1.0), (b16(2),), "scalar: func: got 'xor', want one of: add"),
    (Select(), (b16(3), b16(2), b16(2)), "select: got shapes [3] and [2] and [2], want ones that broadcast"),
    (Reshape((3, 5)), (b16(2, 8),), "reshape: shape: got [3, 5], want 16 elements"),
    (Permute((0, 0)), (b16(2, 8),), "permute: order: got [0, 0], want each of the axes 0 to 1 once"),
    (Slice((0, 3), (2, 9)), (b16(2, 8),), "slice: axis 1: got 3:9:1, want a range within 0:8 and a step"),
    (Slice((0,), (2,)), (b16(2, 8),), "slice: starts, stops, steps: want 2 of each, as x has axes"),
    (Expand((3, 8)), (b16(2, 8),), "got [3, 8], which [2, 8] does not broadcast to"),
    (Pad((0, -1), (0, 0)), (b16(2, 8),), "pad: low, high: want 2 of each, 0 or more"),
    (Concat(2), (b16(2, 8), b16(2, 8)), "concat: axis: got 2, want 0 to 1"),
    (Concat(0), (b16(2, 8), b16(2, 7)), "concat: x1: got shape [2, 7], want [2, 8]"),
    (BatchMatmul(), (b16(2, 3, 4), b16(2, 5, 6)), "batch-matmul: rhs: got shape [2, 5, 6], want [2, 4, 6]"),
    (Gather(2), (b16(2, 8), IDS), "gather: axis: got 2, want 0 to 1"),
    (Gather(0), (b16(2, 8), b16(3)), "gather: ids: got dtype bf16, want int32"),
    (Update((0, 6)), (b16(2, 8), b16(2, 3)), "update: axis 1: got 6:9, want a range within 0:8"),
    (Update((0,)), (b16(2, 8), b16(2, 3)), "update: starts: got [0], want one for each axis of [2, 8]"),
    (TopK(9), (b16(2, 8),), "top-k: k: got 9, want 1 to the size of the last axis of [2, 8]"),
    (CumSum(2), (b16(2, 8),), "cumsum: axis: got 2, want an axis of [2, 8]"),
    (Reduce("max", (0, 2)), (b16(2, 3, 4),), "reduce: axes: got [0, 2], want neighbours"),
    (Binary("add"), (b16(8, 4), FP32), "binary: rhs: got dtype fp32, want bf16"),
    (Reduce("mode"), (b16(2, 2),), "reduce: func: got 'mode', want one of: add, max, min, mean"),
    (Attention(1, 4, 3, 2, True, 1.0), (b16(2, 8), b16(2, 6), b16(2, 6)), "want a multiple of 3 kv heads"),
    (Attention(2, 4, 2, 2, True, 1.0), (b16(3, 8), b16(3, 4), b16(3, 4)), "got 3 rows, want a multiple of"),
    (Attention(1, 4, 2, 2, True, 1.0), (b16(3, 8), b16(3, 8), b16(3, 4)), "k: got shape [3, 8], want [3, 4]"),
    (
        DecodeAttention(1, 2, 1, 4, 1.0, 9),
        (b16(1, 8), b16(1, 1, 4, 8), b16(1, 1, 8, 4)),
        "length: got 9, want 1 to the cache's 8 positions",
    ),
    (
        DecodeAttention(1, 2, 1, 4, 1.0, 8),
        (b16(1, 8), b16(1, 1, 4, 8), b16(1, 1, 4, 8)),
        "v_cache: got shape [1, 1, 4, 8], want [1, 1, 8, 4]",
    ),
    (
        Attention(1, 2, 2, 4, False, 1.0, window=3),
        (b16(3, 8), b16(3, 8), b16(3, 8)),
        "window: got 3, want 0 for none, or 1 or more with causal",
    ),
    (
        Attention(1, 2, 2, 4, True, 1.0, offset=9, window=2),
        (b16(3, 8), b16(3, 8), b16(3, 8)),
        "offset: got 9, want 0 or more, and keys in every query's window",
    ),
    (
        Attention(1, 2, 2, 4, True, 1.0, bias=True),
        (b16(3, 8), b16(3, 8), b16(3, 8), b16(1, 3, 3, 3)),
        "bias: got shape [1, 3, 3, 3], want [1, 2, 3, 3]",
    ),
    (KvWrite(8, axis_k=True), (b16(1, 1, 4, 8), b16(1, 4)), "position: got 8, want 0 to 7"),
    (KvWrite(0, axis_k=False), (b16(1, 1, 8, 4), b16(1, 8)), "new: got shape [1, 8], want [1, 4]"),
    (Rope(2, 4, 3), (b16(3, 8), b16(2, 2), b16(3, 2)), "rope: cos: got shape [2, 2], want [3, 2]"),
    (Rope(2, 3, 3), (b16(3, 6), b16(3, 1), b16(3, 1)), "head_dim: got 3, want an even number"),
    (Rope(2, 4, 3, first=1), (b16(3, 8), b16(3, 1), b16(3, 1)), "first, rotary: got 3 features from 1 on"),
    (Rope(2, 4, 3, style="pairs"), (b16(3, 8), b16(3, 2), b16(3, 2)), "style: got 'pairs', want 'half' or"),
    (Conv2d(groups=3), (b16(1, 4, 8, 8), b16(6, 1, 3, 3)), "groups: got 3, want a divisor of 4 and 6"),
    (Conv2d(groups=2), (b16(1, 4, 8, 8), b16(6, 4, 3, 3)), "w: got shape [6, 4, 3, 3], want [6, 2, 3, 3]"),
    (Conv2d(), (b16(1, 4, 2, 2), b16(6, 4, 3, 3)), "got a 3x3 window, larger than the padded 2x2 image"),
    (Pool2d("min", 2, 2), (b16(1, 1, 4, 4),), "func: got 'min', want one of: max, mean"),
    (Pool2d("max", 5, 1), (b16(1, 1, 4, 4),), "kernel: got 5, larger than the padded 4x4 image"),
    (Pool2d("max", 2, 1, padding=2), (b16(1, 1, 4, 4),), "padding 2"),
    (Embedding(), (b16(3), b16(5, 4)), "embedding: ids: got dtype bf16, want int32"),
    (Embedding(), (IDS, b16(5)), "embedding: table: got shape [5], want axes [v f]"),
    (AssembleTokens(), (b16(1, 4, 2, 2), b16(4), b16(4, 4)), "pos: got shape [4, 4], want [5, 4]"),
    (TakeRows(4, 0), (b16(6, 2),), "got 6 rows, want a multiple of seq 4"),
    (TakeRows(3, 3), (b16(6, 2),), "index: got 3, want -3 to 2"),
    (Transpose2d(), (b16(2, 2, 2),), "x: got shape [2, 2, 2], want axes [a b]"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("op", "ins", "message"), CASES, ids=[f"{i}-{c[0].kind}" for i, c in enumerate(CASES)]
)
def test_operands_that_do_not_fit(op, ins, message):
    with pytest.raises(CompileError) as error:
        op.infer(ins)
    assert message in str(error.value)
    assert str(error.value).startswith(f"{op.kind}: ")


def test_eight_bit_operands_may_give_a_wider_result():
    narrow = TensorType((4, 4), "fp8e4")
    assert Linear(out_dtype="bf16").infer((narrow, narrow)) == (b16(4, 4),)
    assert Linear(out_dtype="bf16", bias=True).infer((narrow, narrow, b16(4))) == (b16(4, 4),)
