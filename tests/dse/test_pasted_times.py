"""Times that the pages state are those of the present compiler, to a percent."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from arch_configs import load_arch
from dse.evaluation import evaluate
from dse.point import Point

PAGE = (Path(__file__).resolve().parents[2] / "docs/kernels.md").read_text()
NUMBER = r"([+-]?[\d.]+)"
ROWS = re.findall(
    rf"^\| (trn\d) `(gemm:[^`]+)` (\w+) \| {NUMBER} ms \| {NUMBER} ms \| {NUMBER} %[^|]*\| {NUMBER} % \|$",
    PAGE,
    re.MULTILINE,
)


def time_ms(arch: str, workload: str, *overrides: tuple[str, str]) -> float:
    record = evaluate(Point(arch, workload, overrides))
    assert record["time_ps"] is not None
    return (record["time_ps"] - load_arch(arch).launch_overhead) / 1e9


def test_the_table_is_found() -> None:
    assert len(ROWS) == 7


@pytest.mark.parametrize("row", ROWS, ids=[f"{row[0]} {row[1]}" for row in ROWS])
def test_a_row_of_the_table_is_what_is_simulated(row: tuple[str, ...]) -> None:
    arch, shape, dtype, *numbers = row
    simulated, measured, error, unsustained = map(float, numbers)
    workload = f"{shape},dtype={dtype}"
    found = time_ms(arch, workload)
    assert found == pytest.approx(simulated, rel=0.01), "the page is out of date"
    assert 100 * (found / measured - 1) == pytest.approx(error, abs=1.0)
    full = time_ms(arch, workload, ("engines.tensor.sustained", "1"))
    assert 100 * (full / measured - 1) == pytest.approx(unsustained, abs=1.0)
