"""Time: integer picoseconds; a number of cycles is rounded up to picoseconds once."""

from __future__ import annotations

PS_PER_S = 10**12


def ceil_div(a: int, b: int) -> int:
    """`a / b` rounded up."""
    return -(-a // b)


def cycles_to_ps(cycles: int, clock_hz: int) -> int:
    """Time of `cycles` at `clock_hz`, rounded up once (never sum a rounded period)."""
    return ceil_div(cycles * PS_PER_S, clock_hz)
