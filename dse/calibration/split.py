"""Which rows are fitted and which are only for the test: by a hash of their ids, whatever their order."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from dse.measured import Measured

ALONE = 40  # assumed: up to so many rows each is left out alone; above, in FOLDS groups
FOLDS = 10


def held_out(rows: Sequence[Measured], share: float, seed: int) -> frozenset[str]:
    """Ids of the rows that the fit does not see.

    A row that something of ours was derived from is no test, so it is never among them.
    """
    free = by_hash([row.id for row in rows if not row.fitted], seed)
    return frozenset(free[: round(share * len(rows))])


def folds_of(ids: Sequence[str], seed: int) -> list[list[int]]:
    """Positions of the rows to leave out together: each alone, or in groups of like size."""
    position = {name: index for index, name in enumerate(ids)}
    ranked = [position[name] for name in by_hash(ids, seed)]
    count = len(ids) if len(ids) <= ALONE else FOLDS
    return [sorted(ranked[first::count]) for first in range(count)]


def by_hash(ids: Sequence[str], seed: int) -> list[str]:
    """Ids in the order of their hash."""
    return sorted(ids, key=lambda name: hashlib.sha256(f"{seed}:{name}".encode()).hexdigest())
