"""Pareto fronts with ties and duplicates treated right."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, slots=True)
class FrontMember:
    """A point that nothing dominates; `same_as` is the first index with exactly equal objectives."""

    index: int
    same_as: int


def pareto_front(values: Sequence[Sequence[float]], maximise: Sequence[bool]) -> tuple[FrontMember, ...]:
    """Members of the front, in index order.

    A point is dominated if another is at least as good in every objective and better in one. So a tie
    in one objective does not keep a worse point, and exact duplicates of a member are all members.
    Rows with NaN are never members.
    """
    if not len(values):
        return ()
    table = np.asarray(values, dtype=np.float64)
    if table.ndim != 2 or table.shape[1] != len(maximise):
        raise ValueError(f"values: got shape {table.shape}, want (points, {len(maximise)})")
    cost = np.where(np.asarray(maximise), -table, table)
    known = np.flatnonzero(~np.isnan(cost).any(axis=1))
    if not known.size:
        return ()
    rows, first, inverse = np.unique(cost[known], axis=0, return_index=True, return_inverse=True)
    kept = _nondominated(rows)
    return tuple(
        FrontMember(int(index), int(known[first[group]]))
        for index, group in zip(known, inverse.reshape(-1), strict=True)
        if kept[group]
    )


def _nondominated(rows: np.ndarray[tuple[int, int], np.dtype[np.float64]]) -> list[bool]:
    """Which of distinct rows, sorted lexicographically, no other dominates (all minimised).

    In that order no row is dominated by a later one, so each is compared with the front so far only.
    """
    front = np.empty_like(rows)
    size = 0
    kept = []
    for row in rows:
        is_dominated = bool((front[:size] <= row).all(axis=1).any())
        kept.append(not is_dominated)
        if not is_dominated:
            front[size] = row
            size += 1
    return kept
