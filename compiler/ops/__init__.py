"""The ops a graph may hold, by kind."""

from __future__ import annotations

from compiler.ops.attention import Attention, DecodeAttention, KvWrite
from compiler.ops.base import Op
from compiler.ops.conv import Conv2d, GlobalAvgPool, Pool2d
from compiler.ops.elementwise import Binary, Cast, Opaque, Scalar, Select, Unary
from compiler.ops.group import ElementwiseGroup
from compiler.ops.image import ChannelAdd, GroupNorm, Pixels, Tokens, Upsample
from compiler.ops.latent import CacheRows, HeadLinear, LatentAttention, LatentDecode, SharedKeyAttention
from compiler.ops.matmul import Linear
from compiler.ops.modulate import AdaptiveNorm, GatedAdd, JoinRows, PartRows
from compiler.ops.moe import ClampedGlu, Combine, Dispatch, GroupedLinear, Route
from compiler.ops.move import AssembleTokens, Embedding, TakeRows, Transpose2d
from compiler.ops.norm import LayerNorm, Reduce, RmsNorm, Softmax
from compiler.ops.positions import CumSum, Gather, TopK, Update
from compiler.ops.relative import RelativeBias
from compiler.ops.rope import Rope
from compiler.ops.split import JoinParts, PartialDecode, PartialLinear, SumParts
from compiler.ops.ssm import CausalConv1d, ConvStep, SsdScan, SsdStep
from compiler.ops.tensor import BatchMatmul, Concat, Expand, Pad, Permute, Relayout, Reshape, Slice

OPS: dict[str, type[Op]] = {
    op.kind: op
    for op in (
        Linear,
        RmsNorm,
        LayerNorm,
        Softmax,
        Reduce,
        Unary,
        Binary,
        Attention,
        DecodeAttention,
        KvWrite,
        Rope,
        RelativeBias,
        Conv2d,
        Pool2d,
        GlobalAvgPool,
        Embedding,
        AssembleTokens,
        TakeRows,
        Transpose2d,
        Route,
        Dispatch,
        GroupedLinear,
        Combine,
        ClampedGlu,
        CausalConv1d,
        ConvStep,
        SsdScan,
        SsdStep,
        LatentAttention,
        LatentDecode,
        HeadLinear,
        SharedKeyAttention,
        CacheRows,
        Scalar,
        Cast,
        Select,
        Opaque,
        ElementwiseGroup,
        Reshape,
        Permute,
        Slice,
        Expand,
        Pad,
        Concat,
        Relayout,
        BatchMatmul,
        PartialLinear,
        SumParts,
        PartialDecode,
        JoinParts,
        Gather,
        Update,
        TopK,
        CumSum,
        ChannelAdd,
        GroupNorm,
        Pixels,
        Tokens,
        Upsample,
        AdaptiveNorm,
        GatedAdd,
        JoinRows,
        PartRows,
    )
}

__all__ = [
    "OPS",
    "AdaptiveNorm",
    "AssembleTokens",
    "Attention",
    "BatchMatmul",
    "Binary",
    "CacheRows",
    "Cast",
    "CausalConv1d",
    "ChannelAdd",
    "ClampedGlu",
    "Combine",
    "Concat",
    "Conv2d",
    "ConvStep",
    "CumSum",
    "DecodeAttention",
    "Dispatch",
    "ElementwiseGroup",
    "Embedding",
    "Expand",
    "GatedAdd",
    "Gather",
    "GlobalAvgPool",
    "GroupNorm",
    "GroupedLinear",
    "HeadLinear",
    "JoinRows",
    "KvWrite",
    "LatentAttention",
    "LatentDecode",
    "LayerNorm",
    "Linear",
    "Op",
    "Opaque",
    "Pad",
    "PartRows",
    "Permute",
    "Pixels",
    "Pool2d",
    "Reduce",
    "RelativeBias",
    "Relayout",
    "Reshape",
    "RmsNorm",
    "Rope",
    "Route",
    "Scalar",
    "Select",
    "SharedKeyAttention",
    "Slice",
    "Softmax",
    "SsdScan",
    "SsdStep",
    "TakeRows",
    "Tokens",
    "TopK",
    "Transpose2d",
    "Unary",
    "Update",
    "Upsample",
]
