"""References of ops in which positions matter, against loops and numbers written out."""

import numpy as np

from compiler.ir.graph import TensorType
from compiler.ops import CumSum, Embedding, Gather, Slice, TopK, Update

X = np.arange(12, dtype=np.float32).reshape(2, 3, 2)


def test_gather_takes_positions_of_an_axis() -> None:
    ids = np.array([[2, 0], [1, 1]], np.int32)
    (y,) = Gather(1).reference(X, ids)
    assert y.shape == (2, 2, 2, 2)
    for a, i, j, c in np.ndindex(y.shape):
        assert y[a, i, j, c] == X[a, ids[i, j], c]


def test_all_indices_may_name_one_row() -> None:
    ins = TensorType((2, 30, 4), "fp32"), TensorType((7,), "int32")
    assert Gather(1).read_bytes(ins) == (2 * 4 * 4, 7 * 4)
    assert Gather(1).index_bounds(ins) == {"ids": 30}
    assert Embedding().index_bounds((ins[1], TensorType((30, 4), "fp32"))) == {"ids": 30}


def test_update_replaces_a_part() -> None:
    part = np.full((1, 2, 2), -1, np.float32)
    (y,) = Update((1, 1, 0)).reference(X, part)
    assert y.tolist() == [X[0].tolist(), [[6, 7], [-1, -1], [-1, -1]]]
    assert X[1, 1, 0] == 8  # the operand is as it was


def test_what_is_not_read_is_not_compulsory() -> None:
    x = TensorType((4, 10), "bf16")
    assert Update((0, 3)).read_bytes((x, TensorType((4, 5), "bf16"))) == (40, 40)
    assert Slice((1, 0), (2, 10)).read_bytes((x,)) == (20,)


def test_the_largest_fall_and_the_first_of_equals_comes_first() -> None:
    x = np.array([[3, 9, -1, 9, 3], [0, 0, 0, 0, 1]], np.float32)
    values, places = TopK(3).reference(x)
    assert values.tolist() == [[9, 9, 3], [1, 0, 0]]
    assert places.tolist() == [[1, 3, 0], [4, 0, 1]]
    assert places.dtype == np.int32


def test_running_sums() -> None:
    (y,) = CumSum(1).reference(X)
    assert y[1].tolist() == [[6, 7], [14, 16], [24, 27]]
