"""The kernels: how each op becomes tiles. One entry a kind of op."""

from __future__ import annotations

from compiler.kernels import attention, decode, elementwise, matmul, norm, rope
from compiler.kernels.pool import GLOBAL_AVG_POOL, POOL
from compiler.kernels.wants import Kernel

__all__ = ["KERNELS", "Kernel"]

KERNELS: dict[str, Kernel] = {
    "pool2d": POOL,
    "global-avg-pool": GLOBAL_AVG_POOL,
    "linear": matmul.KERNEL,
    "rms-norm": norm.KERNEL,
    "layer-norm": norm.KERNEL,
    "attention": attention.KERNEL,
    "decode-attention": decode.DECODE,
    "kv-write": decode.KV_WRITE,
    "rope": rope.KERNEL,
    "unary": elementwise.UNARY,
    "binary": elementwise.BINARY,
}
