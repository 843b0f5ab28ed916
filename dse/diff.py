"""Two records side by side: what was changed, what came of it, and which ops it came from."""

from __future__ import annotations

from dataclasses import dataclass

from dse.result import Record
from dse.store import Cell, flatten


@dataclass(frozen=True, slots=True)
class Change:
    """A field that differs; `ratio` is b / a where both are numbers and a is not zero."""

    field: str
    a: Cell
    b: Cell
    ratio: float | None


@dataclass(frozen=True, slots=True)
class OpChange:
    """Busy time of one op on the engine where it changed most."""

    op: str
    engine: str
    a_ps: int
    b_ps: int

    @property
    def delta_ps(self) -> int:
        """Positive when b is slower."""
        return self.b_ps - self.a_ps


def inputs_of(record: Record) -> dict[str, Cell]:
    """Everything that was asked for, flat."""
    point = record["point"]
    return {
        "arch": point["arch"],
        "workload": point["workload"],
        "fidelity": point["fidelity"],
        "seed": point["seed"],
        **{f"set.{path}": text for path, text in point["overrides"].items()},
        **{f"options.{name}": value for name, value in point["options"].items()},
        "digests.arch": record["digests"]["arch"],
        "digests.graph": record["digests"]["graph"],
        "digests.program": record["digests"]["program"],
        "digests.model": record["digests"]["model"],
    }


def changes(a: dict[str, Cell], b: dict[str, Cell]) -> tuple[Change, ...]:
    """Fields that differ, in the order of `a`, then those only `b` has."""
    found = []
    for field in dict.fromkeys((*a, *b)):
        left, right = a.get(field), b.get(field)
        if left == right:
            continue
        numbers = isinstance(left, (int, float)) and isinstance(right, (int, float))
        ratio = right / left if numbers and left else None  # type: ignore[operator]
        found.append(Change(field, left, right, ratio))
    return tuple(found)


def diff_inputs(a: Record, b: Record) -> tuple[Change, ...]:
    """What was asked for differently."""
    return changes(inputs_of(a), inputs_of(b))


def diff_results(a: Record, b: Record) -> tuple[Change, ...]:
    """What came out differently."""
    return changes(flatten(a), flatten(b))


def diff_ops(a: Record, b: Record) -> tuple[OpChange, ...]:
    """Ops by how much their busy time changed, most first. Busy times overlap: they do not add up to time."""
    spent = [{op["op"]: op["busy_ps"] for op in record["ops"]} for record in (a, b)]
    found = []
    for op in dict.fromkeys((*spent[0], *spent[1])):
        left, right = spent[0].get(op, {}), spent[1].get(op, {})
        engines = dict.fromkeys((*left, *right))
        engine = max(engines, key=lambda name: abs(right.get(name, 0) - left.get(name, 0)), default="")
        change = OpChange(op, engine, left.get(engine, 0), right.get(engine, 0))
        if change.delta_ps:
            found.append(change)
    return tuple(sorted(found, key=lambda item: (-abs(item.delta_ps), item.op)))
