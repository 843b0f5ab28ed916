"""Convolution and pooling kernels against the reference: padding, strides, groups, folding, tiny arrays."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from arch_configs import load_arch
from compiler import compile_graph
from compiler.ir.graph import Graph
from compiler.ir.verify_program import program_macs
from compiler.ops import Conv2d, GlobalAvgPool, Pool2d
from eventsim import simulate
from tests.kernels.conftest import one_op

Check = Callable[[Graph], int]
Sizes = tuple[int, int, int, int, int, int, int]  # n, c, h, w, k, r, s


def conv(
    sizes: Sizes, *, stride: int = 1, padding: int = 0, groups: int = 1, fused: str = "", dtype: str = "bf16"
) -> Graph:
    """A graph of one convolution; `fused` names what is fused: b bias, r residual, a activation."""
    n, c, h, w, k, r, s = sizes
    op = Conv2d(stride, padding, groups, "relu" if "a" in fused else None, "b" in fused, "r" in fused)
    out = (n, k, (h + 2 * padding - r) // stride + 1, (w + 2 * padding - s) // stride + 1)
    operands = [((n, c, h, w), "input"), ((k, c // groups, r, s), "weight")]
    operands += [((k,), "weight")] * ("b" in fused) + [(out, "input")] * ("r" in fused)
    return one_op(op, *operands, dtype=dtype)


@pytest.mark.parametrize("fused", ["", "ba", "bra", "r"])
def test_fused_parts(check: Check, fused: str) -> None:
    assert check(conv((2, 67, 9, 8, 33, 3, 3), padding=1, fused=fused)) > 3


@pytest.mark.parametrize("dtype", ["bf16", "fp32"])
def test_one_element(check: Check, dtype: str) -> None:
    assert check(conv((1, 1, 1, 1, 1, 1, 1), dtype=dtype)) > 3


@pytest.mark.parametrize(
    ("sizes", "stride", "padding"),
    [
        ((1, 3, 20, 20, 10, 7, 7), 2, 3),  # rows of the window on partitions
        ((2, 3, 32, 32, 48, 16, 16), 16, 0),  # patches
        ((1, 130, 13, 13, 70, 3, 3), 2, 1),
        ((3, 300, 7, 7, 131, 1, 1), 1, 0),
        ((1, 64, 14, 14, 128, 1, 1), 2, 0),
        ((1, 16, 6, 70, 24, 3, 5), 1, 1),
        ((1, 5, 7, 7, 6, 3, 3), 3, 3),  # whole windows of padding
    ],
)
def test_shapes(check: Check, sizes: Sizes, stride: int, padding: int) -> None:
    assert check(conv(sizes, stride=stride, padding=padding)) >= 3


@pytest.mark.parametrize(
    ("sizes", "groups"),
    [((1, 32, 9, 9, 32, 3, 3), 32), ((2, 70, 8, 8, 70, 3, 3), 70), ((1, 24, 9, 9, 36, 3, 3), 4)],
)
def test_groups(check: Check, sizes: Sizes, groups: int) -> None:
    assert check(conv(sizes, stride=2, padding=1, groups=groups, fused="ba")) >= 3


def test_macs_are_those_of_the_graph() -> None:
    """Every tap of every output is multiplied once; padding of channels costs nothing."""
    for sizes in ((2, 67, 9, 8, 33, 3, 3), (1, 3, 20, 20, 10, 7, 7), (1, 300, 7, 7, 131, 1, 1)):
        graph = conv(sizes, padding=sizes[5] // 2)
        for name in ("trn1", "edge-npu"):
            assert program_macs(compile_graph(graph, load_arch(name)))[0] == graph.macs


def test_large_convolutions_keep_the_array_busy() -> None:
    """16 images, 3x3 over 256 channels: at least half of the peak on a 128 x 128 array."""
    arch = load_arch("trn2")
    graph = conv((16, 256, 14, 14, 256, 3, 3), padding=1, fused="ba")
    ideal_ps = 2 * graph.macs * 10**12 // arch.peak_flops("bf16")
    assert simulate(compile_graph(graph, arch), arch).time_ps < 2 * ideal_ps


@pytest.mark.parametrize("func", ["max", "mean"])
@pytest.mark.parametrize(
    ("shape", "kernel", "stride", "padding"),
    [
        ((1, 3, 7, 7), 3, 2, 1),
        ((2, 67, 8, 9), 3, 1, 1),
        ((1, 1, 1, 1), 1, 1, 0),
        ((3, 300, 5, 5), 2, 2, 0),
        ((2, 5, 6, 6), 5, 1, 2),
    ],
)
def test_pooling(
    check: Check, func: str, shape: tuple[int, ...], kernel: int, stride: int, padding: int
) -> None:
    assert check(one_op(Pool2d(func, kernel, stride, padding), (shape, "input"))) > 3


@pytest.mark.parametrize("shape", [(1, 3, 7, 7), (2, 67, 8, 9), (5, 300, 7, 7), (1, 1, 1, 1)])
def test_global_average(check: Check, shape: tuple[int, ...]) -> None:
    assert check(one_op(GlobalAvgPool(), (shape, "input"))) > 3
