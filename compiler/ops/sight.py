"""Which keys a query sees: masks as numbers, without a mask."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from compiler.ops.base import Array


@dataclass(frozen=True, slots=True)
class Sight:
    """Which keys a query at some position sees."""

    causal: bool
    window: int  # 0: none

    def first(self, position: int) -> int:
        """The first key that a query at `position` sees."""
        return max(0, position - self.window + 1) if self.window else 0

    def end(self, position: int, keys: int) -> int:
        """One behind the last of `keys` that it sees."""
        return min(keys, position + 1) if self.causal else keys

    def pairs(self, first: int, queries: int, keys: int) -> int:
        """(query, key) pairs for queries at `first`, `first + 1`, ..."""
        if not self.causal:
            return queries * keys
        last = first + queries - 1
        full = _triangle(last, keys) - _triangle(first - 1, keys)
        if not self.window:
            return full
        return full - (_triangle(last - self.window, keys) - _triangle(first - 1 - self.window, keys))

    def mask(self, first: int, queries: int, keys: int) -> Array:
        """bool [queries, keys]: what is seen."""
        position, key = first + np.arange(queries)[:, None], np.arange(keys)[None, :]
        seen = np.ones((queries, keys), dtype=bool)
        if self.causal:
            seen &= key <= position
        if self.window:
            seen &= key > position - self.window
        return seen


def _triangle(last: int, keys: int) -> int:
    """Sum over p = 0..last of min(p + 1, keys)."""
    if last < 0:
        return 0
    short = min(last + 1, keys)
    return short * (short + 1) // 2 + (last + 1 - short) * keys
