"""The kernels: how each op becomes tiles. One entry a kind of op."""

from __future__ import annotations

from compiler.kernels import (
    attention,
    conv,
    conv1d,
    decode,
    elementwise,
    grouped,
    latent,
    matmul,
    moe,
    norm,
    pool,
    rope,
    softmax,
    ssm,
    ssm_step,
    tokens,
    transpose,
)
from compiler.kernels.wants import Kernel

__all__ = ["KERNELS", "Kernel"]

KERNELS: dict[str, Kernel] = {
    "linear": matmul.KERNEL,
    "rms-norm": norm.KERNEL,
    "layer-norm": norm.KERNEL,
    "attention": attention.KERNEL,
    "decode-attention": decode.DECODE,
    "kv-write": decode.KV_WRITE,
    "rope": rope.KERNEL,
    "unary": elementwise.UNARY,
    "binary": elementwise.BINARY,
    "conv2d": conv.KERNEL,
    "pool2d": pool.POOL,
    "softmax": softmax.SOFTMAX,
    "reduce": softmax.REDUCE,
    "embedding": transpose.EMBEDDING,
    "transpose2d": transpose.TRANSPOSE,
    "take-rows": tokens.TAKE_ROWS,
    "assemble-tokens": tokens.ASSEMBLE_TOKENS,
    "global-avg-pool": pool.GLOBAL_AVG_POOL,
    "route": moe.ROUTE,
    "dispatch": moe.DISPATCH,
    "grouped-linear": grouped.KERNEL,
    "combine": moe.COMBINE,
    "causal-conv1d": conv1d.CAUSAL_CONV1D,
    "conv-step": conv1d.CONV_STEP,
    "ssd-scan": ssm.SSD_SCAN,
    "ssd-step": ssm_step.SSD_STEP,
    "latent-decode": latent.LATENT_DECODE,
    "head-linear": latent.HEAD_LINEAR,
}
