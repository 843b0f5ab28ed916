"""What a kernel chose, against what, and why: for people who want to know what the compiler did."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import TypeVar

P = TypeVar("P")


@dataclass(frozen=True, slots=True)
class Decision:
    """One choice; times are the estimates it was made by, in ps, 0 where it follows from a rule.

    `runner_up` is empty where there was none.
    """

    op: str
    what: str
    chosen: str
    reason: str
    time_ps: int = 0
    considered: int = 1
    fitting: int = 1
    runner_up: str = ""
    runner_up_ps: int = 0


def decide(
    op: str,
    what: str,
    fitting: Sequence[tuple[int, P]],
    chosen: tuple[int, P],
    considered: int,
    say: Callable[[P], str],
) -> Decision:
    """The choice of `chosen` from `fitting`, each with its ps; the runner-up is the fastest other one."""
    time, text = chosen[0], say(chosen[1])
    by_time = sorted(fitting, key=itemgetter(0))
    others = ((t, say(plan)) for t, plan in by_time)
    runner_ps, runner = next((found for found in others if found[1] != text), (0, ""))
    over = (time - by_time[0][0]) / max(1, by_time[0][0])
    reason = f"{over:.1%} over the least time, moves fewer DRAM bytes" if over else "least time"
    return Decision(op, what, text, reason, time, considered, len(fitting), runner, runner_ps)
