"""What a shortfall advises is enough."""

from __future__ import annotations

import re

import pytest

from arch_configs import load_arch
from compiler import Infeasible, Shortfall, compile_graph
from compiler.ir.graph import Graph
from workloads import build


@pytest.mark.parametrize("workload", ["vit-b16:batch=1,layers=1", "gemm:m=300,k=4096,n=300", "resnet-tiny"])
def test_the_advised_capacity_is_enough_for_all_ops(workload: str) -> None:
    """The largest shortfall of all ops is reported, not that of the first one that failed."""
    graph, capacity = build(workload), 16 * 1024
    for _ in range(3):
        shortfall = shortfall_at(graph, capacity)
        if shortfall is None:
            return
        advised = re.search(r"memories\.sram\.capacity >= (\d+) B", shortfall.fix)
        assert advised, shortfall
        assert int(advised[1]) > capacity
        capacity = int(advised[1])
    pytest.fail(f"still infeasible at the capacity advised twice, {capacity} B")


def shortfall_at(graph: Graph, capacity: int) -> Shortfall | None:
    try:
        compile_graph(graph, load_arch("edge-npu", {"memories.sram.capacity": f"{capacity} B"}))
    except Infeasible as error:
        return error.shortfall
    return None
