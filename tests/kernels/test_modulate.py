"""Norms and sums modulated by a value a sample, and rows of two streams, at awkward sizes."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from arch_configs import load_arch
from compiler.errors import CompileError
from compiler.ir.graph import Graph, TensorType
from compiler.ops import AdaptiveNorm, GatedAdd, JoinRows, PartRows, Rope
from tests.kernels.conftest import agrees, one_op

Check = Callable[[Graph], int]
SHAPES = [(1, 5, 7), (2, 1, 130), (3, 37, 200), (2, 600, 24)]  # samples, rows of each, features


@pytest.mark.parametrize(("samples", "rows", "features"), SHAPES)
@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
def test_adaptive_norm(samples, rows, features, dtype) -> None:
    x, vector = ((samples * rows, features), "input"), ((samples, features), "input")
    graph = one_op(AdaptiveNorm(), x, vector, vector, dtype=dtype)
    for arch in ("trn1", "trn2", "trn3", "tpu-v5e"):
        assert agrees(graph, load_arch(arch)) is not None


@pytest.mark.parametrize(("samples", "rows", "features"), SHAPES)
def test_gated_add(check: Check, samples, rows, features) -> None:
    x, gate = ((samples * rows, features), "input"), ((samples, features), "input")
    assert check(one_op(GatedAdd(), x, x, gate)) > 3


@pytest.mark.parametrize(
    ("batch", "first", "second", "features"), [(1, 3, 5, 7), (2, 9, 70, 130), (3, 1, 1, 24)]
)
def test_streams_are_joined_and_parted(check: Check, batch, first, second, features) -> None:
    streams = [((batch * rows, features), "input") for rows in (first, second)]
    assert check(one_op(JoinRows(batch), *streams)) > 3
    joined = ((batch * (first + second), features), "input")
    assert check(one_op(PartRows(batch, first, first + second), joined)) > 3


def test_modulation_is_that_of_the_row_s_own_sample() -> None:
    x, scale, shift = (
        np.array([[1.0, 3.0]] * 4),
        np.array([[0.0, 1.0], [2.0, 3.0]]),
        np.array([[5.0, 6.0]] * 2),
    )
    (y,) = AdaptiveNorm(0.0).reference(x, scale, shift)
    np.testing.assert_allclose(y, [[4.0, 8.0], [4.0, 8.0], [2.0, 10.0], [2.0, 10.0]], rtol=1e-5)
    (z,) = GatedAdd().reference(x, x, scale)
    np.testing.assert_allclose(z, [[1.0, 6.0], [1.0, 6.0], [3.0, 12.0], [3.0, 12.0]])


def test_positions_on_a_grid_turn_by_row_and_column() -> None:
    op = Rope(1, 8, 7, style="interleaved", grid=(1, 2, 3), axes=(2, 2, 4))
    cos = op.constants()["cos"]
    assert cos.shape == (7, 4)
    np.testing.assert_allclose(cos[0], 1.0)  # text
    np.testing.assert_allclose(cos[6], [1.0, np.cos(1.0), np.cos(2.0), np.cos(0.02)], rtol=1e-6)  # (0, 1, 2)


@pytest.mark.parametrize(
    ("op", "shapes", "words"),
    [
        (AdaptiveNorm(), [(6, 4), (4, 4), (4, 4)], "scale: got 4 rows, want a divisor of the 6 rows"),
        (AdaptiveNorm(), [(6, 4), (2, 4), (3, 4)], "shift: got shape"),
        (GatedAdd(), [(6, 4), (6, 4), (2, 5)], "gate: got shape"),
        (JoinRows(2), [(3, 4), (2, 4)], "first: got 3 rows, want a multiple of 2"),
        (PartRows(2, 1, 4), [(6, 4)], "got 1:4, want a range within 0:3"),
        (Rope(1, 8, 7, grid=(1, 2, 2), axes=(2, 2, 4)), [(7, 8), (7, 4), (7, 4)], "want 7 positions"),
        (Rope(1, 8, 7, grid=(1, 2, 3), axes=(1, 3, 4)), [(7, 8), (7, 4), (7, 4)], "want even numbers"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_refused(op, shapes, words) -> None:
    with pytest.raises(CompileError, match=words):
        op.infer(tuple(TensorType(shape, "bf16") for shape in shapes))
