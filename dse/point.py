"""Point: everything a user chooses about one evaluation."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, get_args

Fidelity = Literal["roofline", "event", "exact"]
FIDELITIES: tuple[Fidelity, ...] = get_args(Fidelity)


def fidelity(text: str) -> Fidelity:
    """`text` as a fidelity; raises ValueError if it is none."""
    for known in FIDELITIES:
        if text == known:
            return known
    raise ValueError(f"fidelity: got {text!r}, want one of {', '.join(FIDELITIES)}")


Option = bool | int | float | str


@dataclass(frozen=True, slots=True)
class Point:
    """One design point: an architecture with overrides, a workload, compiler options, a fidelity, a seed.

    `overrides` are dotted paths into the architecture with the text a YAML file would have;
    `options` are fields of `CompileOptions`. Both keep the order they were given in.
    """

    arch: str
    workload: str
    overrides: tuple[tuple[str, str], ...] = ()
    options: tuple[tuple[str, Option], ...] = ()
    fidelity: Fidelity = "event"
    seed: int = 0

    def __post_init__(self) -> None:
        """Refuse a fidelity that does not exist."""
        fidelity(self.fidelity)

    def with_overrides(self, overrides: Mapping[str, str]) -> Point:
        """The same point with more overrides; a repeated path takes the new text."""
        merged = dict(self.overrides) | dict(overrides)
        return Point(self.arch, self.workload, tuple(merged.items()), self.options, self.fidelity, self.seed)
