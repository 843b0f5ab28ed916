"""What users of the exploration can get wrong; the CLI prints these without a traceback."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class SpaceError(Exception):
    """A study, a sweep directory or a record file is wrong; `problems` are complete lines."""

    def __init__(self, problems: list[str]) -> None:
        """Keep `problems` as data."""
        self.problems = problems
        super().__init__("\n".join(problems))


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """``; did you mean X`` for the nearest known name, else the list of names."""
    names = list(known)
    return nearest(name, names) or f"; have {', '.join(names)}"


def nearest(name: str, known: Iterable[str]) -> str:
    """``; did you mean X`` for the nearest known name, or nothing."""
    close = difflib.get_close_matches(name, list(known), n=1)
    return f"; did you mean {close[0]!r}" if close else ""
