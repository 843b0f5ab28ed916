"""Elementwise, softmax and reduction kernels against the reference, at awkward sizes."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from compiler.ir.graph import Graph, Node, TensorType, Value
from compiler.ops import Binary, Reduce, Softmax, Unary
from tests.kernels.conftest import one_op

Check = Callable[[Graph], int]


@pytest.mark.parametrize("dtype", ["bf16", "fp32"])
@pytest.mark.parametrize("shape", [(1, 1), (7, 13), (130, 257), (17,), (2, 67, 5, 7)])
def test_same_shape(check: Check, shape: tuple[int, ...], dtype: str) -> None:
    assert check(one_op(Unary("relu"), (shape, "input"), dtype=dtype)) > 3
    assert check(one_op(Binary("sub"), (shape, "input"), (shape, "input"), dtype=dtype)) > 3


@pytest.mark.parametrize("rows", [(), (1,), (13,), (65,)])
@pytest.mark.parametrize("width", [20, 257])
def test_rhs_is_repeated_down_the_rows(check: Check, rows: tuple[int, ...], width: int) -> None:
    graph = one_op(Binary("sub"), ((130, width), "input"), ((*rows, width), "weight"))
    if rows != (65,) and 130 % (rows or (1,))[0]:
        pytest.skip("rows do not divide")
    assert check(graph) > 3


@pytest.mark.parametrize("shape", [(1, 1), (7, 13), (130, 257), (3, 2500)])
def test_row_statistics(check: Check, shape: tuple[int, int]) -> None:
    assert check(one_op(Softmax(), (shape, "input"))) > 3
    for func in ("add", "max", "mean"):
        assert check(one_op(Reduce(func), (shape, "input"), dtype="fp32")) > 3


@pytest.mark.parametrize("shape", [(1, 13), (130, 257), (3, 2500), (700, 40)])
def test_a_value_for_each_row(check: Check, shape: tuple[int, int]) -> None:
    assert check(one_op(Binary("sub"), (shape, "input"), ((shape[0], 1), "input"))) > 3
    graph = one_op(Softmax(), (shape, "input"))  # which leaves rows on partitions
    values = {value.name: value for value in graph.values}
    column = Value("c", TensorType((shape[0], 1), "bf16"), "input")
    out = Value("z", values["y"].type)
    node = Node("z", Binary("mul"), ("y", "c"), ("z",))
    assert check(Graph("g", (*graph.values, column, out), (*graph.nodes, node), ("z",))) > 3
