"""Biases by distance: buckets as published, and the result by its definition."""

import numpy as np
import pytest

from compiler.errors import CompileError
from compiler.ir.graph import TensorType
from compiler.ops import RelativeBias

# 32 buckets up to a distance of 128, by hand from the formula: 8 (16) near ones, then by the logarithm.
BOTH = {0: 0, 1: 17, -1: 1, -7: 7, -8: 8, -16: 10, -32: 12, -127: 15, -500: 15, 8: 24, 64: 30, 500: 31}
PAST = {0: 0, 1: 0, 90: 0, -1: 1, -15: 15, -16: 16, -64: 26, -128: 31, -1000: 31}


@pytest.mark.parametrize(("both", "want"), [(True, BOTH), (False, PAST)])
def test_buckets(both: bool, want: dict[int, int]) -> None:
    found = RelativeBias(queries=1001, keys=1001, both=both).constants()["index"]
    assert {distance: int(found[distance + 1000]) for distance in want} == want


def test_the_bias_of_a_query_in_a_cache_is_a_row_of_the_whole() -> None:
    table = np.random.default_rng(0).standard_normal((8, 3)).astype(np.float32)
    whole = RelativeBias(9, 9, both=False, buckets=8, far=20)
    last = RelativeBias(2, 9, both=False, buckets=8, far=20, offset=7)
    (all_rows,), (rows,) = (op.reference(op.constants()["index"], table) for op in (whole, last))
    np.testing.assert_array_equal(rows, all_rows[:, :, 7:])
    assert all_rows.shape == (1, 3, 9, 9)
    np.testing.assert_array_equal(np.diagonal(all_rows[0], axis1=1, axis2=2), table[:1].T.repeat(9, 1))


def test_errors() -> None:
    index, table = TensorType((10,), "int32"), TensorType((32, 3), "bf16")
    with pytest.raises(CompileError, match="buckets, far: got 7, 128, want an even number"):
        RelativeBias(2, 9, both=True, buckets=7).infer((index, table))
    with pytest.raises(CompileError, match=r"index: got shape \[10\], want \[11\]"):
        RelativeBias(3, 9, both=True).infer((index, table))
