"""Kernels of one instruction, or of one transfer, whose duration has been published."""

import numpy as np

from compiler.user_kernel import Builder, Tensor, kernel


@kernel(
    inputs={"x": "rows cols", "y": "rows cols"},
    outputs={"z": "rows cols"},
    sizes={"rows": 128, "cols": 8192},
    reference=lambda x, y: x * y,
    dtype="fp32",
)
def multiply(b: Builder, x: Tensor, y: Tensor, z: Tensor) -> None:
    """One product of two tiles in the scratchpad."""
    left, right = b.scratch(x.shape, x.dtype), b.scratch(x.shape, x.dtype)
    b.dma(left[:], x[:])
    b.dma(right[:], y[:])
    with b.on(("vector",)):
        b.tensor_tensor(left[:], left[:], right[:], "multiply")
    b.dma(z[:], left[:], "output")


@kernel(
    inputs={"x": "rows cols"},
    outputs={"y": "rows cols"},
    sizes={"rows": 128, "cols": 4096},
    reference=np.exp,
    dtype="bf16",
)
def exponential(b: Builder, x: Tensor, y: Tensor) -> None:
    """One activation of a tile."""
    tile = b.scratch(x.shape, x.dtype)
    b.dma(tile[:], x[:])
    b.activate(tile[:], tile[:], "exp")
    b.dma(y[:], tile[:], "output")


@kernel(
    inputs={"x": "times rows cols"},
    outputs={"y": "cols"},
    sizes={"times": 64, "rows": 128, "cols": 4096},
    reference=lambda x: x[-1, 0],
    dtype="bf16",
)
def loads(b: Builder, x: Tensor, y: Tensor, *, lanes: int = 1) -> None:
    """Equal transfers, one issued behind the other, on `lanes` queues."""
    times, rows, cols = x.shape
    for i in b.tiles(times, 1):
        tile = b.scratch((rows, cols), x.dtype, slots=4)
        b.dma(tile[:], x[i.start], lanes=lanes)
    b.dma(y[:], x[times - 1, 0], "output")
