"""Group norm, upsampling, joins of channels and values a channel, at awkward sizes."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from arch_configs import load_arch
from compiler.ir.graph import Graph
from compiler.ops import ChannelAdd, Concat, Conv2d, GroupNorm, Linear, Pixels, Tokens, Unary, Upsample
from tests.kernels.conftest import agrees, one_op
from workloads.blocks import GraphBuilder

Check = Callable[[Graph], int]


@pytest.mark.parametrize(("shape", "groups"), [
    ((1, 4, 3, 5), 2), ((2, 30, 5, 7), 3), ((1, 140, 4, 4), 7), ((2, 320, 3, 3), 32), ((1, 6, 40, 50), 6),
    ((1, 5, 1, 1), 1),
])  # fmt: skip
@pytest.mark.parametrize("activation", [None, "silu"])
def test_group_norm(shape, groups, activation) -> None:
    vector = ((shape[1],), "weight")
    graph = one_op(GroupNorm(groups, 1e-5, activation), (shape, "input"), vector, vector, dtype="fp32")
    for arch in ("trn1", "trn2", "tpu-v5e"):
        assert agrees(graph, load_arch(arch)) is not None


@pytest.mark.parametrize("shape", [(1, 3, 2, 5), (2, 140, 3, 7), (1, 8, 33, 40)])
@pytest.mark.parametrize("factor", [1, 2, 3])
def test_upsample(check: Check, shape, factor) -> None:
    assert check(one_op(Upsample(factor), (shape, "input"))) > 3


@pytest.mark.parametrize("channels", [(3, 5), (130, 7), (20, 200), (64, 64)])
def test_channels_are_joined(check: Check, channels) -> None:
    shapes = [(2, c, 3, 5) for c in channels]
    assert check(one_op(Concat(1), *((shape, "input") for shape in shapes))) > 3


@pytest.mark.parametrize("shape", [(1, 3, 2, 5), (2, 140, 3, 7), (3, 8, 33, 40)])
def test_one_value_a_channel(check: Check, shape) -> None:
    assert check(one_op(ChannelAdd(), (shape, "input"), (shape[:2], "input"))) > 3


def image_to_tokens_and_back() -> Graph:
    b = GraphBuilder("tokens", "fp32")
    x = b.op("conv", Conv2d(padding=1), b.input("x", 2, 5, 4, 6), b.weight("k", 140, 5, 3, 3))
    rows = b.op("mix", Linear(), b.op("rows", Tokens(), x), b.weight("w", 140, 33))
    image = b.op("image", Pixels(4, 6), rows)
    y = b.op("norm", GroupNorm(3), image, b.weight("g", 33), b.weight("s", 33))
    return b.build((b.op("act", Unary("silu"), y),), {"unit": "ops", "work": 1})


@pytest.mark.parametrize("arch", ["trn1", "trn2", "tpu-v5e", "edge-npu"])
def test_pixels_are_rows(arch) -> None:
    assert agrees(image_to_tokens_and_back(), load_arch(arch)) is not None
