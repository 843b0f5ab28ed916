"""Units at the edge: text such as ``24 MiB`` or ``2.8 GHz`` becomes one exact integer.

Inside the program capacity is int bytes, bandwidth int bytes per second, frequency int hertz and
time int picoseconds. kB/MB/GB are powers of 1000, KiB/MiB/GiB powers of 1024 (IEC 80000-13).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from decimal import Decimal
from fractions import Fraction
from typing import Annotated

from pydantic import BeforeValidator, WithJsonSchema

BYTES: Mapping[str, int] = {
    "B": 1,
    "kB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12,
    "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40,
}  # fmt: skip
HERTZ: Mapping[str, int] = {"Hz": 1, "kHz": 10**3, "MHz": 10**6, "GHz": 10**9}
PICOSECONDS: Mapping[str, int] = {"ps": 1, "ns": 10**3, "us": 10**6, "ms": 10**9, "s": 10**12}
BYTES_PER_SECOND: Mapping[str, int] = {f"{unit}/s": scale for unit, scale in BYTES.items()}

MAX_QUANTITY = 2**62  # fits a signed 64-bit integer with room for one addition
_MAX_TEXT = 48  # longer numbers are slips of the hand; also keeps conversion cheap
_MAX_EXPONENT = 30  # beyond MAX_QUANTITY in every unit
_QUANTITY = re.compile(r"\s*([+-]?[0-9][0-9_]*(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?)\s*([A-Za-z/]+)\s*")


def _parse(text: object, units: Mapping[str, int], what: str) -> int:
    """Return the exact integer that `text` means; raise ValueError with the accepted units."""
    want = f"got {text!r}, want a {what} with a unit, one of: {', '.join(units)}"
    if not isinstance(text, str):
        raise ValueError(want)
    match = _QUANTITY.fullmatch(text) if len(text) <= _MAX_TEXT else None
    if match is None:
        raise ValueError(want)
    number, unit = match.groups()
    if unit not in units:
        same = [known for known in units if known.lower() == unit.lower()]
        raise ValueError(f"{want}; did you mean '{number} {same[0]}'?" if same else want)
    return _scale(text, Decimal(number.replace("_", "")), units[unit], what)


def _scale(text: str, number: Decimal, scale: int, what: str) -> int:
    if number < 0:
        raise ValueError(f"got {text!r}, want a {what} that is not negative")
    if number and abs(number.adjusted()) > _MAX_EXPONENT:
        raise ValueError(f"got {text!r}, want a {what} between 0 and {MAX_QUANTITY} base units")
    value = Fraction(number) * scale
    if value > MAX_QUANTITY:
        raise ValueError(f"got {text!r}, want a {what} of at most {MAX_QUANTITY} base units")
    if value.denominator != 1:
        raise ValueError(f"got {text!r}, want a {what} that is a whole number of {_base(what)}")
    return value.numerator


def _base(what: str) -> str:
    return {"size": "bytes", "bandwidth": "bytes per second", "frequency": "hertz", "time": "ps"}[what]


def parse_bytes(text: object) -> int:
    """``24 MiB`` -> 25165824."""
    return _parse(text, BYTES, "size")


def parse_bytes_per_second(text: object) -> int:
    """``820 GB/s`` -> 820000000000."""
    return _parse(text, BYTES_PER_SECOND, "bandwidth")


def parse_hertz(text: object) -> int:
    """``2.8 GHz`` -> 2800000000."""
    return _parse(text, HERTZ, "frequency")


def parse_picoseconds(text: object) -> int:
    """``1.3 us`` -> 1300000."""
    return _parse(text, PICOSECONDS, "time")


def format_quantity(value: int, units: Mapping[str, int]) -> str:
    """Return `value` exactly, in the unit that needs the fewest characters (``24 MiB``, ``410 GB/s``)."""
    texts: list[str] = []
    for unit, scale in sorted(units.items(), key=lambda item: -item[1]):
        if value >= scale and (value * 1000) % scale == 0:
            texts.append(f"{Decimal(value * 1000 // scale).scaleb(-3).normalize():f} {unit}")
    return min(texts, key=len, default=f"{value} {next(iter(units))}")


def _quantity_schema(example: str, units: Mapping[str, int]) -> WithJsonSchema:
    """What an editor checks while the file is written."""
    pattern = rf"^\s*[+]?[0-9][0-9_]*(\.[0-9]+)?([eE][+-]?[0-9]+)?\s*({'|'.join(units)})\s*$"
    return WithJsonSchema({"type": "string", "pattern": pattern, "examples": [example]})


Bytes = Annotated[int, BeforeValidator(parse_bytes), _quantity_schema("24 MiB", BYTES)]
BytesPerSecond = Annotated[
    int, BeforeValidator(parse_bytes_per_second), _quantity_schema("820 GB/s", BYTES_PER_SECOND)
]
Hertz = Annotated[int, BeforeValidator(parse_hertz), _quantity_schema("2.8 GHz", HERTZ)]
Picoseconds = Annotated[int, BeforeValidator(parse_picoseconds), _quantity_schema("1.3 us", PICOSECONDS)]
