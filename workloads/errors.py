"""What can be wrong with a workload text or a model file: the user's mistake."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class WorkloadError(Exception):
    """All problems of one workload, one a line: where, what was got, what was wanted, the fix."""


def nearest(name: str, known: Iterable[str]) -> str:
    """`; did you mean 'x'?` for the closest known name, or nothing."""
    close = difflib.get_close_matches(name, list(known), n=1)
    return f"; did you mean {close[0]!r}?" if close else ""
