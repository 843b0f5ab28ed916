"""What can go wrong while compiling: the user's mistakes, and designs that do not fit."""

from __future__ import annotations

from dataclasses import dataclass

from typing_extensions import override


class CompileError(Exception):
    """The graph or an option is wrong; the message says where, what was got and what was wanted."""


class VerifyError(CompileError):
    """A level of the compiler produced something illegal: our mistake, or a user kernel's."""


@dataclass(frozen=True, slots=True)
class Shortfall:
    """Why a design point does not fit."""

    code: str  # stable, e.g. "scratchpad-capacity"
    resource: str  # e.g. "sbuf"
    needed: int
    available: int
    unit: str
    terms: tuple[tuple[str, int], ...]  # largest first
    fix: str


class Infeasible(Exception):
    """The design point does not fit: a result, not a crash."""

    def __init__(self, shortfall: Shortfall, ops: tuple[str, ...] = ()) -> None:
        """Keep `shortfall` as data; `ops` names the graph ops that ask for too much, if known."""
        self.shortfall, self.ops = shortfall, ops
        super().__init__(
            f"{shortfall.resource}: need {shortfall.needed} {shortfall.unit}, "
            f"have {shortfall.available} {shortfall.unit}; {shortfall.fix}"
        )

    @override
    def __reduce__(self) -> tuple[type[Infeasible], tuple[Shortfall, tuple[str, ...]]]:
        """Survive the trip through a process pool."""
        return (type(self), (self.shortfall, self.ops))
