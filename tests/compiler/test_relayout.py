"""Ops that want a value in different orders: a relayout comes between, and the result is right."""

from __future__ import annotations

import pytest

from arch_configs import load_arch
from compiler import CompileOptions, optimise
from compiler.ir.graph import Graph
from compiler.ops import Binary, Linear, Permute, Reduce, Relayout, Reshape, Softmax, Unary
from tests.kernels.conftest import agrees
from workloads.blocks import GraphBuilder

ARCHS = ("trn1", "trn2", "tpu-v5e", "edge-npu")


def attention_by_hand() -> Graph:
    """Linear layers around reshapes, permutations and a softmax: blocked and row-major in turn."""
    b = GraphBuilder("mixed", "fp32")
    x = b.input("x", 12, 40)
    y = b.op("q", Linear(), x, b.weight("wq", 40, 24))
    heads = b.op("heads", Permute((1, 0, 2)), b.op("cut", Reshape((12, 3, 8)), y))
    soft = b.op("soft", Softmax(), heads)
    flat = b.op("flat", Reshape((12, 24)), b.op("back", Permute((1, 0, 2)), soft))
    out = b.op("o", Linear(), flat, b.weight("wo", 24, 40))
    return b.build((b.op("sum", Binary("add"), out, x),), {"unit": "ops", "work": 1})


def in_a_region() -> Graph:
    """The carried value is blocked outside and reduced row by row inside."""
    b = GraphBuilder("region", "fp32")

    def layer(x: str) -> str:
        y = b.op("lin", Linear(), x, b.weight("w", 33, 33))
        top = b.op("top", Reduce("max", (1,)), x)
        return b.op("sum", Binary("add"), b.op("act", Unary("tanh"), y), top)

    x = b.repeat("layer", 3, b.input("x", 17, 33), layer)
    return b.build((x,), {"unit": "ops", "work": 1})


@pytest.mark.parametrize("arch", ARCHS)
@pytest.mark.parametrize("graph", [attention_by_hand(), in_a_region()], ids=lambda g: g.name)
def test_a_relayout_comes_between(graph: Graph, arch: str) -> None:
    assert agrees(graph, load_arch(arch)) is not None


def test_relayouts_are_in_the_graph_and_few() -> None:
    graph = optimise(attention_by_hand(), load_arch("trn1"), CompileOptions())
    assert sum(isinstance(node.op, Relayout) for node, _ in graph.walk()) == 1


def test_graphs_that_agree_are_left_alone() -> None:
    b = GraphBuilder("plain", "fp32")
    y = b.op("q", Linear(), b.input("x", 12, 40), b.weight("w", 40, 24))
    graph = b.build((y,), {"unit": "ops", "work": 1})
    assert optimise(graph, load_arch("trn1"), CompileOptions(passes=())) is graph
