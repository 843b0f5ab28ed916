"""Who gets which expert: a fixed assignment that follows from the load of each expert."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate, groupby
from typing import Any

import numpy as np
import numpy.typing as npt

Indices = npt.NDArray[Any]
MOST_RUNS = 8  # runs of experts with equally many rows; each is compiled once; assumed


@dataclass(frozen=True, slots=True)
class Run:
    """Experts `first, first + stride, ...`, `count` of them, with `rows` rows each from row `start` on."""

    first: int
    stride: int
    count: int
    rows: int
    start: int


@dataclass(frozen=True, slots=True)
class Assignment:
    """Experts of each token, and where their rows lie when sorted by expert.

    chosen [tokens, top]: experts; slot [tokens, top]: their rows; source [rows]: token of each row (0 for
    padding); all int32.
    """

    chosen: Indices
    slot: Indices
    source: Indices


def runs(rows: Sequence[int]) -> tuple[Run, ...]:
    """The experts with rows as runs of equal size and stride, in order."""
    starts = [0, *accumulate(rows)]
    found: list[Run] = []
    for expert, size in enumerate(rows):
        if not size:
            continue
        last = found[-1] if found else None
        if last and last.rows == size and last.count == 1:
            found[-1] = Run(last.first, expert - last.first, 2, size, last.start)
        elif last and last.rows == size and expert == last.first + last.stride * last.count:
            found[-1] = Run(last.first, last.stride, last.count + 1, size, last.start)
        else:
            found.append(Run(expert, 1, 1, size, starts[expert]))
    return tuple(found)


@lru_cache(maxsize=64)
def padded(counts: tuple[int, ...]) -> tuple[int, ...]:
    """Rows kept for each expert: `counts`, or a little more where that leaves at most MOST_RUNS runs.

    Neighbours are rounded up to the largest of them, with least padding in all (dynamic programming over
    neighbours of equal count). Counts in order of size need least padding.
    """
    if len(runs(counts)) <= MOST_RUNS:
        return counts
    parts = [(size, len(list(same))) for size, same in groupby(counts)]
    ends = [0, *accumulate(size for _, size in parts)]
    best: list[tuple[int, tuple[int, ...]]] = [(0, ())]  # rows in all, cuts behind the parts so far
    table = [best * 1 + [(1 << 60, ())] * len(parts)]
    for _ in range(MOST_RUNS):
        row = [table[-1][0]]
        for end in range(1, len(parts) + 1):
            most, choice = 0, table[-1][end]
            for begin in range(end - 1, -1, -1):
                most = max(most, parts[begin][0])
                total = table[-1][begin][0] + most * (ends[end] - ends[begin])
                if total < choice[0]:
                    choice = (total, (*table[-1][begin][1], end))
            row.append(choice)
        table.append(row)
    rows: list[int] = []
    begin = 0
    for end in table[-1][-1][1]:
        most = max(size for size, _ in parts[begin:end])
        rows += [most] * (ends[end] - ends[begin])
        begin = end
    return tuple(rows)


@lru_cache(maxsize=64)
def assign(counts: tuple[int, ...], top: int) -> Assignment:
    """Each token gets `top` different experts, expert e `counts[e]` tokens.

    The rows, sorted by expert, are dealt to the tokens in turn: no expert has more rows than there are
    tokens, so none comes to a token twice (McNaughton's wrap-around rule).
    """
    tokens = sum(counts) // top
    expert = np.repeat(np.arange(len(counts)), counts)
    rows = padded(counts)
    first = np.concatenate([[0], np.cumsum(rows)])[:-1]  # where each expert's rows start, padding included
    before = np.concatenate([[0], np.cumsum(counts)])[:-1]
    dealt = np.arange(len(expert))
    slot = first[expert] + dealt - before[expert]
    source = np.zeros(sum(rows), dtype=np.int32)
    source[slot] = dealt % tokens
    chosen, at = (a.reshape(top, tokens).T.astype(np.int32) for a in (expert, slot))
    return Assignment(np.ascontiguousarray(chosen), np.ascontiguousarray(at), source)
