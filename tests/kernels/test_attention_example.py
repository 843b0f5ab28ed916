"""The attention kernels of the examples: their numbers, and the times that docs/kernels.md states."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from arch_configs import load_arch
from compiler.user_kernel import compile_kernel
from dse.costs import LawCost
from dse.kernel import check_numbers
from dse.kernel_files import load_kernel
from eventsim import simulate

FILE = "examples/kernels/attention.py"
PAGE = (Path(__file__).resolve().parents[2] / "docs/kernels.md").read_text()
ROWS = re.findall(r"^\| .*?(whole_rows|together=\d).*\| ([\d.]+) ms \| \d+ % \|", PAGE, re.MULTILINE)


@pytest.mark.parametrize("arch", ["trn1", "trn2", "tpu-v5e"])
@pytest.mark.parametrize("name", ["whole_rows", "flash"])
def test_numbers_in_both_orders(name: str, arch: str) -> None:
    errors = check_numbers(load_kernel(f"{FILE}:{name}"), load_arch(arch))
    assert [e.order for e in errors] == ["program", "time"]
    assert all(0 < e.relative <= e.tolerance for e in errors)


@pytest.mark.parametrize(("step", "milliseconds"), ROWS)
def test_a_step_takes_what_the_page_says(step: str, milliseconds: str) -> None:
    name, sizes = ("flash", {"together": int(step[-1])}) if "=" in step else (step, {})
    arch = load_arch("trn2")
    program = compile_kernel(load_kernel(f"{FILE}:{name}"), arch, sizes, cost=LawCost(arch))
    assert simulate(program, arch).time_ps / 1e9 == pytest.approx(float(milliseconds), rel=0.01)


def test_all_steps_of_the_page_are_found() -> None:
    assert [step for step, _ in ROWS] == ["whole_rows", *(f"together={n}" for n in (1, 2, 4, 8))]
