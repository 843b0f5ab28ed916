"""What was checked and executed: gathered, as JSON, and as tables."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import cache

from rich.console import Group
from rich.table import Table
from rich.text import Text

from dse.numerics import OpError, OutputError, first_diverging, numerics, op_errors
from dse.point import Point
from dse.present import numerics_table, words_table
from dse.verify import Check, verify_point


@dataclass(frozen=True, slots=True)
class Proof:
    """What is known of one point beyond its metrics; a part that was not asked for is empty."""

    checks: tuple[Check, ...]
    ops: tuple[OpError, ...]
    outputs: tuple[OutputError, ...]

    @property
    def passed(self) -> bool:
        """No check failed, and every error is within its tolerance."""
        found = [item.passed for item in self.checks]
        found += [item.passed for item in self.ops]
        found += [item.passed for item in self.outputs]
        return False not in found

    def record(self) -> dict[str, list[dict[str, object]]]:
        """As JSON; a number that is not finite is null."""
        measured = {
            "ops": [{**asdict(item), "passed": item.passed} for item in self.ops],
            "outputs": [{**asdict(item), "passed": item.passed} for item in self.outputs],
        }
        parts = {"checks": [asdict(item) for item in self.checks], **measured}
        return {
            name: [{key: _finite(value) for key, value in row.items()} for row in rows]
            for name, rows in parts.items()
            if rows
        }


def prove(point: Point, *, verify: bool, numbers: bool) -> Proof:
    """Run the checks, and execute the program, as asked.

    Raises: as `verify_point` and `numerics`.
    """
    measure = cache(numerics)  # the checks ask for it too
    return Proof(
        verify_point(point, measure) if verify else (),
        op_errors(point) if numbers else (),
        measure(point) if numbers else (),
    )


def proof_view(proof: Proof) -> Group:
    """The tables of what was asked for."""
    tables = [checks_table(proof.checks)] if proof.checks else []
    if proof.outputs:
        tables += [ops_table(proof.ops), numerics_table(proof.outputs)]
    return Group(*tables)


def checks_table(found: Sequence[Check]) -> Table:
    """Every check, what it looked at, and what it found."""
    table = words_table("checks", "check", "looked at", "", "rule, or what was found")
    for item in found:
        verdict = {True: ("pass", "green"), False: ("FAIL", "red"), None: ("-", "yellow")}[item.passed]
        table.add_row(item.name, item.looked_at, Text(*verdict), item.found or item.rule)
    return table


def ops_table(found: Sequence[OpError]) -> Table:
    """The error of each op, and the first that is out of tolerance."""
    first = first_diverging(found)
    title = f"ops; the first out of tolerance is {first.op}" if first else "ops, all within tolerance"
    errors = ("max abs", "relative", "ulp", "rounding alone", "tolerance")
    table = words_table(title, "op", "kind", "type", *errors, "")
    for item in found:
        verdict = Text("pass", style="green") if item.passed else Text("FAIL", style="red")
        numbers = (item.max_abs, item.relative, item.ulp, item.rounding, item.tolerance)
        table.add_row(item.op, item.kind, item.dtype, *(f"{number:.3g}" for number in numbers), verdict)
    return table


def _finite(value: object) -> object:
    return None if isinstance(value, float) and not math.isfinite(value) else value
