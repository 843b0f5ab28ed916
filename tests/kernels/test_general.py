"""Kernels of the general ops against the reference, at awkward sizes and on awkward machines."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from arch_configs import load_arch
from compiler import CompileOptions
from compiler.ir.graph import Graph, Node, TensorType, Value
from compiler.ops import (
    BatchMatmul,
    Binary,
    Cast,
    Concat,
    CumSum,
    Expand,
    Gather,
    Opaque,
    Pad,
    Permute,
    Reduce,
    Reshape,
    Scalar,
    Select,
    Slice,
    Softmax,
    TopK,
    Update,
)
from tests.kernels.conftest import agrees, one_op

Check = Callable[[Graph], int]
BROADCASTS = [
    ((3, 5, 7), (5, 7)),
    ((3, 5, 7), (3, 1, 7)),
    ((3, 5, 7), (5, 1)),
    ((1, 5, 7), (3, 1, 1)),
    ((2, 3, 130, 17), (1, 3, 1, 17)),
    ((300,), (1,)),
    ((1, 1), (33, 65)),
    ((2, 1, 7, 1), (3, 1, 5)),
]


@pytest.mark.parametrize(("lhs", "rhs"), BROADCASTS)
def test_operands_are_broadcast(check: Check, lhs: tuple[int, ...], rhs: tuple[int, ...]) -> None:
    assert check(one_op(Binary("sub"), (lhs, "input"), (rhs, "input"), dtype="fp32")) > 3


@pytest.mark.parametrize("func", ["add", "min", "sub", "div", "less", "greater_equal", "equal"])
@pytest.mark.parametrize("swapped", [False, True])
def test_a_number_is_an_operand(check: Check, func: str, swapped: bool) -> None:
    assert check(one_op(Scalar(func, 0.75, swapped), ((7, 13), "input"), dtype="fp32")) > 3


def test_types_change(check: Check) -> None:
    assert check(one_op(Cast("bf16"), ((7, 130), "input"), dtype="fp32")) > 3
    assert check(one_op(Opaque("fancy", 3), ((7, 130), "input"))) > 3


@pytest.mark.parametrize("shapes", [((5, 7), (5, 7), (5, 7)), ((1, 5, 7), (3, 5, 7), (1,))])
def test_select(check: Check, shapes: tuple[tuple[int, ...], ...]) -> None:
    assert check(one_op(Select(), *((shape, "input") for shape in shapes), dtype="fp32")) > 3


MOVES = [
    (Reshape((13, 14)), (7, 26)),
    (Reshape((182,)), (7, 26)),
    (Permute((1, 0)), (7, 26)),
    (Permute((0, 2, 1)), (3, 40, 17)),
    (Permute((0, 2, 1, 3)), (2, 33, 3, 16)),
    (Permute((2, 0, 1)), (5, 3, 130)),
    (Permute((3, 2, 1, 0)), (2, 3, 5, 7)),
    (Slice((1, 0), (7, 26)), (7, 26)),
    (Slice((0, 3), (7, 20)), (7, 26)),
    (Slice((1, 2, 0), (5, 9, 7), (2, 3, 1)), (5, 11, 7)),
    (Expand((4, 7, 26)), (7, 26)),
    (Expand((3, 5, 7)), (3, 1, 7)),
    (Pad((0, 2), (1, 3), 0.5), (7, 26)),
    (Pad((1, 0, 2), (0, 3, 1)), (2, 5, 7)),
]


@pytest.mark.parametrize(("op", "shape"), MOVES, ids=str)
@pytest.mark.parametrize("dtype", ["bf16", "fp32"])
def test_moves(check: Check, op: Permute, shape: tuple[int, ...], dtype: str) -> None:
    assert check(one_op(op, (shape, "input"), dtype=dtype)) > 3


@pytest.mark.parametrize(
    ("axis", "shapes"), [(0, ((3, 7), (5, 7))), (1, ((3, 7), (3, 1))), (1, ((2, 3, 5), (2, 4, 5)))]
)
def test_concat(check: Check, axis: int, shapes: tuple[tuple[int, ...], ...]) -> None:
    assert check(one_op(Concat(axis), *((shape, "input") for shape in shapes))) > 3


@pytest.mark.parametrize(("shape", "axes"), [
    ((3, 5, 7), (1,)), ((3, 5, 7), (0,)), ((3, 5, 7), (0, 1)), ((3, 5, 7), (1, 2)), ((2, 300, 5, 9), (2, 3)),
    ((1, 400, 64), (1,)), ((130,), (0,)),
])  # fmt: skip
@pytest.mark.parametrize("func", ["add", "max", "min", "mean"])
def test_reductions(check: Check, shape: tuple[int, ...], axes: tuple[int, ...], func: str) -> None:
    assert check(one_op(Reduce(func, axes), (shape, "input"), dtype="fp32")) > 3


def test_softmax_of_any_rank(check: Check) -> None:
    assert check(one_op(Softmax(), ((2, 3, 17, 65), "input"))) > 3


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("sizes", [(1, 1, 1, 1), (2, 7, 13, 5), (3, 130, 200, 65), (1, 33, 300, 600)])
@pytest.mark.parametrize("dtype", ["bf16", "fp32"])
def test_stacks_of_products(check: Check, sizes: tuple[int, ...], transposed: bool, dtype: str) -> None:
    stack, m, k, n = sizes
    rhs = (stack, n, k) if transposed else (stack, k, n)
    graph = one_op(BatchMatmul(transposed), ((stack, m, k), "input"), (rhs, "input"), dtype=dtype)
    assert check(graph) > 2


@pytest.mark.parametrize(
    ("x", "ids", "axis"),
    [
        ((13, 7), (5,), 0),
        ((130, 3, 5), (2, 150), 0),
        ((3, 11, 7), (4,), 1),
        ((5, 33), (2, 3), 1),
        ((9,), (1,), 0),
    ],
)
@pytest.mark.parametrize("dtype", ["bf16", "fp32"])
def test_gathers(check: Check, x: tuple[int, ...], ids: tuple[int, ...], axis: int, dtype: str) -> None:
    assert check(one_op(Gather(axis), (x, "input"), (ids, "input:int32"), dtype=dtype)) > 3


@pytest.mark.parametrize(
    ("x", "part", "starts"),
    [
        ((7, 26), (3, 26), (2, 0)),
        ((7, 26), (1, 1), (6, 25)),
        ((2, 33, 5), (1, 3, 2), (1, 30, 1)),
        ((5,), (5,), (0,)),
    ],
)
def test_updates(check: Check, x: tuple[int, ...], part: tuple[int, ...], starts: tuple[int, ...]) -> None:
    assert check(one_op(Update(starts), (x, "input"), (part, "input"))) > 3


def largest(shape: tuple[int, ...], k: int, dtype: str) -> Graph:
    """A graph of both results of `TopK`."""
    x = Value("x", TensorType(shape, dtype), "input")
    found = tuple(Value(n, t) for n, t in zip(("y", "at"), TopK(k).infer((x.type,)), strict=True))
    return Graph("one", (x, *found), (Node("y", TopK(k), ("x",), ("y", "at")),), ("y", "at"))


@pytest.mark.parametrize(
    ("shape", "k"), [((7, 13), 1), ((2, 3, 50), 50), ((1, 1), 1), ((130, 65), 3), ((64,), 2)]
)
@pytest.mark.parametrize("dtype", ["bf16", "fp32"])
def test_the_largest(check: Check, shape: tuple[int, ...], k: int, dtype: str) -> None:
    assert check(largest(shape, k, dtype)) > 3


SMALL = CompileOptions(scratch_share=0.02)  # rows come in pieces even where the scratchpad is large


@pytest.mark.parametrize("arch", ["trn1", "tpu-v5e", "edge-npu"])
def test_rows_in_pieces(arch: str) -> None:
    """In bf16 many of these are equal: the first comes first over pieces, too."""
    assert agrees(largest((3, 700), 5, "bf16"), load_arch(arch), SMALL)
    assert agrees(largest((140, 300), 2, "fp32"), load_arch(arch), SMALL)
    for shape, axis in (((3, 900), 1), ((2, 400, 3), 1), ((700, 200), 0)):
        assert agrees(one_op(CumSum(axis), (shape, "input"), dtype="fp32"), load_arch(arch), SMALL)


@pytest.mark.parametrize(
    ("shape", "axis"),
    [((7, 13), 0), ((7, 13), 1), ((3, 65, 5), 1), ((1, 1), 0), ((2, 3, 130), 2), ((300,), 0)],
)
@pytest.mark.parametrize("dtype", ["bf16", "fp32"])
def test_running_sums(check: Check, shape: tuple[int, ...], axis: int, dtype: str) -> None:
    assert check(one_op(CumSum(axis), (shape, "input"), dtype=dtype)) > 3
