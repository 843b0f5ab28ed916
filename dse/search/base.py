"""What a search strategy is: it proposes points and hears of results; it never evaluates or stores."""

from __future__ import annotations

import abc
from collections.abc import Sequence
from typing import ClassVar

from dse.point import Point
from dse.result import Record


class Searcher(abc.ABC):
    """Ask/tell. A searcher is given all candidate points of a study, and a seed, when it is made."""

    kind: ClassVar[str]

    @abc.abstractmethod
    def __init__(self, candidates: Sequence[Point], seed: int = 0) -> None:
        """Search among `candidates`; equal seeds give equal searches."""

    @abc.abstractmethod
    def ask(self, count: int) -> tuple[int, ...]:
        """Up to `count` indices of candidates not asked for before; empty when the search is over."""

    @abc.abstractmethod
    def tell(self, index: int, record: Record) -> None:
        """Hear the result of a candidate; may come in any order."""
