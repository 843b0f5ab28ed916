"""Search strategies by name."""

from __future__ import annotations

from dse.search.base import Searcher
from dse.search.grid import GridSearcher

SEARCHERS: dict[str, type[Searcher]] = {"grid": GridSearcher}
