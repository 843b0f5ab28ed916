"""Quantities at the edge: exact, decimal and binary prefixes apart, one clear error otherwise."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from arch_configs.units import (
    BYTES,
    BYTES_PER_SECOND,
    HERTZ,
    MAX_QUANTITY,
    PICOSECONDS,
    format_quantity,
    parse_bytes,
    parse_bytes_per_second,
    parse_hertz,
    parse_picoseconds,
)

PARSERS = (
    (parse_bytes, BYTES),
    (parse_bytes_per_second, BYTES_PER_SECOND),
    (parse_hertz, HERTZ),
    (parse_picoseconds, PICOSECONDS),
)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("24 MiB", 24 * 2**20),
        ("24 MB", 24_000_000),
        ("1 GiB", 1_073_741_824),
        ("0.5KiB", 512),
        ("1.5e3 kB", 1_500_000),
        ("1_000 B", 1000),
        ("0 B", 0),
        ("0.1 GB", 100_000_000),  # 0.1 has no exact binary float
        (" 7  TiB ", 7 * 2**40),
    ],
)
def test_sizes_are_exact(text: str, value: int) -> None:
    assert parse_bytes(text) == value


def test_other_quantities_are_exact() -> None:
    assert parse_hertz("2.8 GHz") == 2_800_000_000
    assert parse_hertz("1.12 GHz") == 1_120_000_000
    assert parse_picoseconds("1.28 us") == 1_280_000
    assert parse_picoseconds("3 s") == 3 * 10**12
    assert parse_bytes_per_second("2.9 TB/s") == 2_900_000_000_000
    assert parse_bytes_per_second("400 GiB/s") == 400 * 2**30


@pytest.mark.parametrize(
    "text",
    ["", "24", "MiB", "24 MIBS", "24 MiB/s", "-1 B", "1,5 GB", "0.3 B", "nan B", "inf B", "1e400 GB",
     "9" * 60 + " B", "1e-40 GB", "1 B B", "0x10 B", "1e99 B", 24, 24.0, True, None, [1]],
)  # fmt: skip
def test_anything_else_is_refused(text: object) -> None:
    with pytest.raises(ValueError, match=r"got .*, want a size"):
        parse_bytes(text)


def test_a_wrong_case_is_met_with_the_right_one() -> None:
    with pytest.raises(ValueError, match=r"did you mean '24 MiB'\?"):
        parse_bytes("24 mib")
    with pytest.raises(ValueError, match=r"did you mean '2.8 GHz'\?"):
        parse_hertz("2.8 ghz")


@pytest.mark.parametrize(("parse", "units"), PARSERS)
@given(value=st.integers(0, MAX_QUANTITY))
def test_formatting_loses_nothing(parse: object, units: dict[str, int], value: int) -> None:
    assert callable(parse)
    assert parse(format_quantity(value, units)) == value


@given(number=st.fractions(0, 10**6, max_denominator=1000), unit=st.sampled_from(sorted(BYTES)))
def test_parsing_agrees_with_exact_arithmetic(number: Fraction, unit: str) -> None:
    thousandths = int(number * 1000)
    exact = Fraction(thousandths, 1000) * BYTES[unit]
    text = f"{thousandths // 1000}.{thousandths % 1000:03d} {unit}"
    if exact.denominator == 1 and exact <= MAX_QUANTITY:
        assert parse_bytes(text) == exact
    else:
        with pytest.raises(ValueError, match="want a size"):
            parse_bytes(text)


@pytest.mark.parametrize(
    ("value", "units", "text"),
    [
        (24 * 2**20, BYTES, "24 MiB"),
        (410 * 10**9, BYTES_PER_SECOND, "410 GB/s"),
        (1200 * 10**9, BYTES_PER_SECOND, "1.2 TB/s"),
        (960 * 10**6, HERTZ, "960 MHz"),
        (1_280_000, PICOSECONDS, "1.28 us"),
        (0, PICOSECONDS, "0 ps"),
        (7, BYTES, "7 B"),
    ],
)
def test_formats_are_short(value: int, units: dict[str, int], text: str) -> None:
    assert format_quantity(value, units) == text
