"""Kernels that move data: embeddings, tokens, transposes."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from arch_configs import load_arch
from compiler import Infeasible, compile_graph
from compiler.ir.graph import Graph
from compiler.ops import AssembleTokens, Embedding, TakeRows, Transpose2d
from tests.kernels.conftest import one_op

Check = Callable[[Graph], int]


@pytest.mark.parametrize("dtype", ["bf16", "fp32"])
@pytest.mark.parametrize(
    ("tokens", "rows", "features"), [(1, 10, 5), (37, 50, 300), (200, 64, 64), (3, 11, 700)]
)
def test_embedding(check: Check, tokens: int, rows: int, features: int, dtype: str) -> None:
    graph = one_op(Embedding(), ((tokens,), "input:int32"), ((rows, features), "weight"), dtype=dtype)
    assert check(graph) >= 3


def test_embedding_needs_gather() -> None:
    arch = load_arch("trn1", {"dma.gather": "false"})
    with pytest.raises(Infeasible) as caught:
        compile_graph(one_op(Embedding(), ((4,), "input:int32"), ((8, 6), "weight")), arch)
    assert caught.value.shortfall.code == "dma-gather"


@pytest.mark.parametrize("dtype", ["bf16", "fp32"])
@pytest.mark.parametrize("shape", [(1, 1), (7, 13), (130, 257), (300, 64), (3, 900)])
def test_transpose(check: Check, shape: tuple[int, int], dtype: str) -> None:
    assert check(one_op(Transpose2d(), (shape, "input"), dtype=dtype)) >= 3


@pytest.mark.parametrize(
    ("tokens", "features", "seq", "index"), [(12, 70, 4, -1), (5, 13, 5, 0), (9, 300, 3, 1), (4, 4, 1, 0)]
)
def test_take_rows(check: Check, tokens: int, features: int, seq: int, index: int) -> None:
    assert check(one_op(TakeRows(seq, index), ((tokens, features), "input"))) > 3


@pytest.mark.parametrize("shape", [(1, 3, 2, 2), (2, 70, 3, 4), (3, 300, 7, 7)])
def test_assemble_tokens(check: Check, shape: tuple[int, int, int, int]) -> None:
    _, features, height, width = shape
    operands = ((features,), "weight"), ((height * width + 1, features), "weight")
    assert check(one_op(AssembleTokens(), (shape, "input"), *operands)) >= 3
