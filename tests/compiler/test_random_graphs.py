"""Graphs of general ops compile to right programs on any machine."""

from __future__ import annotations

import random

import pytest

from arch_configs import load_arch
from compiler import Infeasible, compile_graph
from compiler.ir.graph import Graph
from compiler.ops import Scalar, Unary
from tests.compiler.designs import check_program
from tests.compiler.graphs import random_graph
from tests.kernels.conftest import agrees
from tests.strategies import random_arch
from workloads.blocks import GraphBuilder

ARCHS = ("trn1", "trn2", "trn3", "tpu-v5e", "edge-npu")
GRAPHS = 90  # 9,000 were right when this was written


def check(seed: int) -> bool:
    """Whether the graph of `seed` fits its machine; raises if its program is wrong."""
    graph, shipped = random_graph(seed), bool(seed % 2)
    arch = load_arch(ARCHS[seed % len(ARCHS)]) if shipped else random_arch(random.Random(seed))
    try:
        program = compile_graph(graph, arch)
    except Infeasible:
        assert not shipped, f"{arch.name}: {graph.name} does not fit"
        return False
    check_program(graph, program, arch, seed)
    return True


@pytest.mark.parametrize("first", range(0, GRAPHS, 30))
def test_random_graphs_are_right_or_do_not_fit(first: int) -> None:
    assert sum(check(seed) for seed in range(first, first + 30)) > 20


def two_regions() -> Graph:
    """Two regions that begin with the same value, as two heads of a model do."""
    b = GraphBuilder("two regions", "fp32")
    x = b.op("start", Unary("tanh"), b.input("x", 7, 13))
    one = b.repeat("one", 3, x, lambda x: b.op("half", Scalar("mul", 0.5), x))
    other = b.repeat("other", 2, x, lambda x: b.op("more", Scalar("add", 1.0), x))
    return b.build((one, other), {"unit": "ops", "work": 1})


@pytest.mark.parametrize("arch", ["trn1", "edge-npu"])
def test_regions_may_begin_with_the_same_value(arch: str) -> None:
    assert agrees(two_regions(), load_arch(arch))
