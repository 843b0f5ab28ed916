"""The kernels: how each op becomes tiles. One entry a kind of op."""

from __future__ import annotations

from compiler.kernels import attention, conv, decode, elementwise, matmul, norm, pool, rope
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
    "global-avg-pool": pool.GLOBAL_AVG_POOL,
}
