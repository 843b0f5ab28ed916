"""Four ways to write a large matrix product, each faster than the one before it.

`out[m, n] = sum over k of lhs_t[k, m] * rhs[k, n]`, with the contraction on partitions. The four are the
steps of the matrix multiplication tutorial of the AWS Neuron SDK (tag v2.26.0,
general/nki/tutorials/matrix_multiplication.rst), which gives their times on one core of Trainium1 for
m=4096, k=8192, n=8192 in bf16: 51.8, 42.96, 22.07 and 6.97 ms. Loads go over one queue, stores over another.

    dse kernel examples/kernels/nki_matmul.py:fully_blocked trn1
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from compiler.builder import Range
from compiler.user_kernel import Builder, CompileError, Tensor, UserKernel, kernel

SLOTS = 4  # streamed tiles under way at once; assumed: enough that a transfer never waits for the array


def product(lhs_t: np.ndarray, rhs: np.ndarray) -> np.ndarray:
    """What all four must compute."""
    return lhs_t.T @ rhs


def matmul_kernel(**small: int) -> Callable[[Callable[..., None]], UserKernel]:
    """The problem that the four have in common."""
    return kernel(
        inputs={"lhs_t": "k m", "rhs": "k n"},
        outputs={"out": "m n"},
        sizes={"m": 4096, "k": 8192, "n": 8192},
        small={"m": 256, "k": 256, "n": 1024, **small},
        reference=product,
        macs="m k n",
    )


def pieces(b: Builder, axis: str, extent: int, size: int) -> Iterator[Range]:
    """A loop over pieces of `size`; these kernels take whole pieces only."""
    if extent % size:
        raise CompileError(f"{axis}: got {extent}, want a multiple of {size}")
    return b.tiles(extent, size, axis)


@matmul_kernel()
def basic(b: Builder, lhs_t: Tensor, rhs: Tensor, out: Tensor) -> None:
    """Load both tiles for every product of two tiles."""
    k_tile, m_tile, n_tile = b.arch.array.rows, b.arch.array.cols, b.arch.array.moving_max
    for m in pieces(b, "m", out.shape[0], m_tile):
        for n in pieces(b, "n", out.shape[1], n_tile):
            total = b.accumulator((m_tile, n_tile), slots=2, name="sum")
            for k in pieces(b, "k", rhs.shape[0], k_tile):
                left = b.scratch((k_tile, m_tile), lhs_t.dtype, slots=SLOTS, name="left")
                right = b.scratch((k_tile, n_tile), rhs.dtype, slots=SLOTS, name="right")
                b.dma(left[:], lhs_t[(k.start, k_tile), (m.start, m_tile)], "input", lanes=1)
                b.dma(right[:], rhs[(k.start, k_tile), (n.start, n_tile)], "input", lanes=1)
                b.matmul(total[:], left[:], right[:], reset=(k.index,))
            result = b.scratch((m_tile, n_tile), out.dtype, slots=2, name="result")
            b.copy(result[:], total[:])
            b.dma(out[(m.start, m_tile), (n.start, n_tile)], result[:], "output", lanes=1)


def blocked(b: Builder, lhs_t: Tensor, rhs: Tensor, out: Tensor, m_tiles: int, n_tiles: int) -> None:
    """Blocks of `m_tiles` x `n_tiles` tiles: a column of lhs_t stays, slices of rhs stream by."""
    k_tile, m_tile, n_tile = b.arch.array.rows, b.arch.array.cols, b.arch.array.moving_max
    k_tiles = rhs.shape[0] // k_tile
    for m in pieces(b, "m", out.shape[0], m_tiles * m_tile):
        left = b.scratch((k_tile, k_tiles, m.size), lhs_t.dtype, slots=2, name="left")
        for k in pieces(b, "k", rhs.shape[0], k_tile):
            b.dma(left[:, k.index], lhs_t[(k.start, k_tile), (m.start, m.size)], "input", lanes=1)
        for n in pieces(b, "n", out.shape[1], n_tiles * n_tile):
            sums = b.accumulator((m_tile, m_tiles, n_tiles, n_tile), slots=2, name="sums")
            for k in pieces(b, "k", rhs.shape[0], k_tile):
                right = b.scratch((k_tile, n.size), rhs.dtype, slots=SLOTS, name="right")
                b.dma(right[:], rhs[(k.start, k_tile), (n.start, n.size)], "input", lanes=1)
                for mi in b.tiles(m.size, m_tile, "mi"):
                    for ni in b.tiles(n.size, n_tile, "ni"):
                        stationary = left[:, k.index, (mi.start, m_tile)]
                        moving = right[:, (ni.start, n_tile)]
                        b.matmul(sums[:, mi.index, ni.index], stationary, moving, reset=(k.index,))
            result = b.scratch((m_tile, m_tiles, n.size), out.dtype, slots=2, name="result")
            b.copy(result[:], sums[:])
            rows = out.split(0, m_tile).permute(1, 0, 2)
            b.dma(rows[:, (m.index * m_tiles, m_tiles), (n.start, n.size)], result[:], "output", lanes=1)


@matmul_kernel()
def hoisted_loads(b: Builder, lhs_t: Tensor, rhs: Tensor, out: Tensor) -> None:
    """Load a column of lhs_t once for all n, and a column of rhs once for each tile of the result."""
    blocked(b, lhs_t, rhs, out, 1, 1)


@matmul_kernel(n=2048)
def blocked_free(b: Builder, lhs_t: Tensor, rhs: Tensor, out: Tensor) -> None:
    """Blocks of 2 x 2 tiles: each loaded column serves two tiles of the result."""
    blocked(b, lhs_t, rhs, out, 2, 2)


@matmul_kernel(m=512, k=512, n=1024, m_tiles=2, n_tiles=1, k_tiles=2)
def fully_blocked(
    b: Builder,
    lhs_t: Tensor,
    rhs: Tensor,
    out: Tensor,
    *,
    m_tiles: int = 16,
    n_tiles: int = 2,
    k_tiles: int = 8,
) -> None:
    """Block k as well; sums over a block of k are added up in the scratchpad."""
    k_tile, m_tile, n_tile = b.arch.array.rows, b.arch.array.cols, b.arch.array.moving_max
    for n in pieces(b, "n", out.shape[1], n_tiles * n_tile):
        result = b.scratch((m_tile, out.shape[0] // m_tile, n.size), out.dtype, slots=2, name="result")
        b.memset(result[:], 0.0)
        for k in pieces(b, "k", rhs.shape[0], k_tiles * k_tile):
            right = load_block(b, rhs, k, n, "right")
            for m in pieces(b, "m", out.shape[0], m_tiles * m_tile):
                left = load_block(b, lhs_t, k, m, "left")
                for ni in b.tiles(n.size, n_tile, "ni"):
                    for mi in b.tiles(m.size, m_tile, "mi"):
                        total = b.accumulator((m_tile, n_tile), slots=SLOTS, name="sum")
                        for ki in b.tiles(k_tiles, 1, "ki"):
                            stationary = left[:, ki.index, (mi.start, m_tile)]
                            moving = right[:, ki.index, (ni.start, n_tile)]
                            b.matmul(total[:], stationary, moving, reset=(ki.index,))
                        part = result[:, m.index * m_tiles + mi.index, (ni.start, n_tile)]
                        b.tensor_tensor(part, part, total[:], "add")
        b.dma(out.split(0, m_tile).permute(1, 0, 2)[:, :, (n.start, n.size)], result[:], "output", lanes=1)


def load_block(b: Builder, dram: Tensor, k: Range, columns: Range, name: str) -> Tensor:
    """A block as [k in tile, k tile, column]: one transfer a k tile, so that runs are whole rows."""
    k_tile = b.arch.array.rows
    tile = b.scratch((k_tile, k.size // k_tile, columns.size), dram.dtype, slots=2, name=name)
    for ki in b.tiles(k.size, k_tile, "load"):
        part = dram[(k.start + ki.start, k_tile), (columns.start, columns.size)]
        b.dma(tile[:, ki.index], part, "input", lanes=1)
    return tile
