"""Exhaustive search: every candidate once, in study order."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from typing_extensions import override

from dse.point import Point
from dse.result import Record
from dse.search.base import Searcher


class GridSearcher(Searcher):
    """Every candidate in order; results do not change what comes next."""

    kind: ClassVar[str] = "grid"

    @override
    def __init__(self, candidates: Sequence[Point], seed: int = 0) -> None:
        """Start at the first of `candidates`; the seed has no effect."""
        self._count = len(candidates)
        self._next = 0

    @override
    def ask(self, count: int) -> tuple[int, ...]:
        end = min(self._count, self._next + count)
        asked = tuple(range(self._next, end))
        self._next = end
        return asked

    @override
    def tell(self, index: int, record: Record) -> None:
        return None
