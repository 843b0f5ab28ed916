"""Units at the edge: text such as ``24 MiB`` or ``2.8 GHz`` becomes one exact integer.

Inside the program capacity is int bytes, bandwidth int bytes per second, frequency int hertz and
time int picoseconds. kB/MB/GB are powers of 1000, KiB/MiB/GiB powers of 1024 (IEC 80000-13).
"""

from __future__ import annotations

import re
from decimal import Decimal, InvalidOperation
from typing import Annotated

from pydantic import BeforeValidator

_BYTES = {
    "B": 1,
    "kB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12,
    "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40,
}  # fmt: skip
_HERTZ = {"Hz": 1, "kHz": 10**3, "MHz": 10**6, "GHz": 10**9}
_PICOSECONDS = {"ps": 1, "ns": 10**3, "us": 10**6, "ms": 10**9, "s": 10**12}
_BYTES_PER_SECOND = {f"{unit}/s": scale for unit, scale in _BYTES.items()}

_QUANTITY = re.compile(r"^\s*([+-]?[0-9][0-9_]*(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?)\s*([A-Za-z/]+)\s*$")


def _parse(text: object, units: dict[str, int], what: str) -> int:
    """Return the exact integer that `text` means; raise ValueError with the accepted units."""
    accepted = ", ".join(units)
    match = _QUANTITY.match(text) if isinstance(text, str) else None
    if match is None or match.group(2) not in units:
        raise ValueError(f"got {text!r}, want a {what} with a unit, one of: {accepted}")
    try:
        value = Decimal(match.group(1).replace("_", "")) * units[match.group(2)]
    except InvalidOperation as error:  # pragma: no cover - the pattern admits only numbers
        raise ValueError(f"got {text!r}, want a {what}") from error
    if value < 0:
        raise ValueError(f"got {text!r}, want a {what} that is not negative")
    if value != int(value):
        raise ValueError(f"got {text!r}, which is not a whole number of base units")
    return int(value)


def parse_bytes(text: object) -> int:
    """``24 MiB`` -> 25165824."""
    return _parse(text, _BYTES, "size")


def parse_bytes_per_second(text: object) -> int:
    """``820 GB/s`` -> 820000000000."""
    return _parse(text, _BYTES_PER_SECOND, "bandwidth")


def parse_hertz(text: object) -> int:
    """``2.8 GHz`` -> 2800000000."""
    return _parse(text, _HERTZ, "frequency")


def parse_picoseconds(text: object) -> int:
    """``1.3 us`` -> 1300000."""
    return _parse(text, _PICOSECONDS, "time")


def format_quantity(value: int, units: dict[str, int]) -> str:
    """Return `value` in the largest unit that needs at most four significant digits."""
    for unit, scale in sorted(units.items(), key=lambda item: -item[1]):
        if value >= scale and (value * 1000) % scale == 0:
            return f"{Decimal(value) / scale:g} {unit}"
    return f"{value} {next(iter(units))}"


Bytes = Annotated[int, BeforeValidator(parse_bytes)]
BytesPerSecond = Annotated[int, BeforeValidator(parse_bytes_per_second)]
Hertz = Annotated[int, BeforeValidator(parse_hertz)]
Picoseconds = Annotated[int, BeforeValidator(parse_picoseconds)]
