"""The constants that may be fitted: a declared, small set, each with bounds and a prior.

Only timing is in it. What a data sheet states without doubt (sizes, clocks, lanes, capacities) is not: a
fit that needs those to move has found another mistake.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Literal

from arch_configs import ArchSpec
from arch_configs.units import (
    BYTES_PER_SECOND,
    PICOSECONDS,
    format_quantity,
    parse_bytes_per_second,
    parse_picoseconds,
)
from dse.errors import SpaceError, did_you_mean
from dse.roles import by_name

Kind = Literal["share", "rate", "time", "cycles"]
DIGITS = 4  # significant digits of a fitted value
STEP = 0.25  # assumed: a quarter of the prior's spread, beyond the jitter of schedules
SHARE_PARTS = 10**6  # a share is a whole number of millionths while it is fitted


@dataclass(frozen=True, slots=True)
class Family:
    """A constant that every architecture may have, by the role of its part.

    `low` and `high` bound the value: of a rate as factors of the documented one, else absolutely, in ps,
    cycles, or as a share. `spread` is the standard deviation of the prior as a share of the documented
    value, and for times and cycles at least `least`.
    """

    path: str
    kind: Kind
    low: float
    high: float
    spread: float
    least: float
    ops: str  # classes of rows that identify it
    meaning: str


US = 10**6
# Bounds and spreads are assumed where no source is named.
FAMILIES = (
    # JESD235: refresh alone takes 3 to 9 %; STREAM on HBM parts reaches 0.75 to 0.95 of the pins.
    Family(
        "memories.dram.sustained", "share", 0.5, 1.0, 0.10, 0, "memory-bound rows of any op",
        "share of the DRAM's bandwidth that is kept up",
    ),
    # Large products reach 0.6 to 0.95 of the data sheet's peak (clock under load, issue slots).
    Family(
        "engines.array.sustained", "share", 0.4, 1.0, 0.10, 0, "large matmuls",
        "share of the array's rate that is kept up",
    ),
    # Runtimes state 2 to 30 us; a host that blocks more.
    Family(
        "launch_overhead", "time", 0, 200 * US, 0.5, 2 * US, "small ops, metric time",
        "host or runtime gap in front of each run",
    ),
    # Kernels in one stream or graph start 1 to 5 us apart.
    Family(
        "grid.launch", "time", 0, 20 * US, 0.5, 0.5 * US, "small ops, models of many ops",
        "from one op to the next on all cores of a grid",
    ),
    Family(
        "dma.issue", "time", 0, 5 * US, 0.3, 0.05 * US, "many small transfers",
        "time a queue is occupied by starting one transfer",
    ),
    Family(
        "dma.latency", "time", 0, 10 * US, 0.3, 0.05 * US, "small ops, chains of dependent transfers",
        "from the start of a transfer to its first byte",
    ),
    Family(
        "dma.completion", "time", 0, 5 * US, 0.3, 0.05 * US, "small ops, chains of dependent transfers",
        "from the last byte until the waiting engine sees it",
    ),
    Family(
        "dma.engine_bandwidth", "rate", 0.25, 2.0, 0.15, 0, "memory-bound rows, copies",
        "sustained rate of one transfer engine",
    ),
    Family(
        "dma.queue_bandwidth", "rate", 0.25, 4.0, 0.15, 0, "copies through one queue",
        "most that one queue can carry",
    ),
    Family(
        "engines.array.overhead", "cycles", 0, 1000, 0.3, 5, "matmuls of small tiles",
        "cycles that every instruction of the array loses",
    ),
    Family(
        "engines.*.overhead", "cycles", 1, 5000, 0.2, 10, "elementwise, softmax, norms",
        "fixed cycles of every instruction of a vector engine",
    ),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Constant:
    """One value of one architecture, in base units, with what is known of it before any row is seen."""

    path: str
    kind: Kind
    documented: float
    low: float
    high: float
    spread: float  # of the prior: relative for shares and rates, else in base units
    family: Family

    def value(self, x: float) -> float:
        """The value at `x` spreads from the documented one; shares and rates are fitted as logarithms."""
        if self.kind in ("share", "rate"):
            return self.documented * math.exp(x * self.spread)
        return self.documented + x * self.spread

    def at(self, value: float) -> float:
        """Where a value lies, in spreads from the documented one."""
        if self.kind in ("share", "rate"):
            return math.log(value / self.documented) / self.spread
        return (value - self.documented) / self.spread

    @property
    def limits(self) -> tuple[float, float]:
        """The bounds in spreads."""
        return self.at(self.low), self.at(self.high)

    def snapped(self, x: float) -> float:
        """The nearest `x` that the architecture can express: cycles are whole."""
        return self.at(round(self.value(x))) if self.kind == "cycles" else x

    @property
    def step(self) -> float:
        """How far apart, in spreads, two values lie whose difference shows a slope: over the rounding."""
        return max(STEP, 2 / self.spread) if self.kind == "cycles" else STEP

    def error(self, x: float, error: float) -> float:
        """A standard error in spreads as one of the value."""
        return error * self.spread * (self.value(x) if self.kind in ("share", "rate") else 1)

    def exact(self, value: float) -> str:
        """The value as an override, fine enough for a fit."""
        if self.kind == "share":
            return str(Fraction(round(value * SHARE_PARTS), SHARE_PARTS))
        unit = {"rate": " B/s", "time": " ps", "cycles": ""}[self.kind]
        return f"{max(0, round(value))}{unit}"

    def rounded(self, value: float) -> float:
        """The value as it is written to a file: four digits, within the bounds."""
        number = float(f"{value:.{DIGITS}g}")
        number = round(number) if self.kind == "cycles" else number
        return min(max(number, self.low), self.high)

    def show(self, value: float) -> str:
        """The value as it stands in a file, with its unit."""
        if self.kind == "share":
            return f"{value:.{DIGITS}g}"
        if self.kind == "cycles":
            return f"{round(value)}"
        units = BYTES_PER_SECOND if self.kind == "rate" else PICOSECONDS
        decimal = {name: size for name, size in units.items() if "i" not in name}
        return format_quantity(round(value), decimal)

    def show_error(self, error: float) -> str:
        """A standard error, two digits."""
        number = float(f"{error:.2g}")
        return f"{number:g}" if self.kind in ("share", "cycles") else self.show(number)


def overrides(constants: Sequence[Constant], values: Sequence[float]) -> dict[str, str]:
    """The values as overrides of an architecture."""
    return {item.path: item.exact(value) for item, value in zip(constants, values, strict=True)}


def constants_of(arch: ArchSpec, fits: Sequence[str]) -> tuple[list[Constant], dict[str, str]]:
    """The constants that `arch` has, or the ones that `fits` names; and why others are left out.

    Of `fits` each is `path` or `path=low..high` with units. Raises: SpaceError with every problem.
    """
    known = _declared(arch)
    if not fits:
        inside = {item.path: item for item in known if item.low <= item.documented <= item.high}
        left = {
            item.path: f"documented {item.show(item.documented)} is outside of {show_bounds(item)}"
            for item in known
            if item.path not in inside
        }
        return list(inside.values()), left
    problems: list[str] = []
    found: dict[str, Constant] = {}
    for text in fits:
        path, equals, bounds = text.partition("=")
        name = next(iter(by_name({path.strip(): ""}, arch)))
        match = next((item for item in known if item.path == name), None)
        if match is None:
            names = [item.path for item in known]
            problems.append(f"--fit {path}: got a path that is not to be fitted{did_you_mean(name, names)}")
            continue
        if name in found:
            problems.append(f"--fit {path}: got it twice, want it once")
        found[name] = match
        try:
            found[name] = _checked(_bounded(match, bounds) if equals else match)
        except ValueError as error:
            problems.append(f"--fit {text}: {error}")
    if problems:
        raise SpaceError(problems)
    return list(found.values()), {}


def show_bounds(item: Constant) -> str:
    """`low..high`, as it is written behind `--fit`."""
    return f"{item.show(item.low)}..{item.show(item.high)}"


def _declared(arch: ArchSpec) -> list[Constant]:
    plain = arch.canonical()
    found: dict[str, Constant] = {}
    for family in FAMILIES:
        for path in _paths(family, arch):
            value = _number(plain, path, family.kind)
            if value is not None and path not in found:
                found[path] = _constant(family, path, value)
    return list(found.values())


def _paths(family: Family, arch: ArchSpec) -> Iterable[str]:
    if ".*." in family.path:
        head, tail = family.path.split(".*.")
        return [f"{head}.{name}.{tail}" for name in arch.vectors]
    return by_name({family.path: ""}, arch)


def _number(plain: Mapping[str, object], path: str, kind: Kind) -> float | None:
    """The value at a path in base units; None where the architecture has none."""
    value: object = plain
    for part in path.split("."):
        value = value.get(part) if isinstance(value, dict) else None
    if value is None:
        return None
    number = float(Fraction(str(value)))
    return number if number > 0 or kind in ("time", "cycles") else None


def _constant(family: Family, path: str, value: float) -> Constant:
    is_rate = family.kind == "rate"
    low, high = (family.low * value, family.high * value) if is_rate else (family.low, family.high)
    is_log = family.kind in ("share", "rate")
    spread = family.spread if is_log else max(family.spread * value, family.least)
    return Constant(path, family.kind, value, low, high, spread, family)


def _bounded(item: Constant, text: str) -> Constant:
    """The constant with bounds of one's own. Raises ValueError."""
    low, dots, high = text.partition("..")
    if not dots:
        raise ValueError(f"got bounds {text!r}, want LOW..HIGH such as {show_bounds(item)}")
    least, most = _parse(low.strip(), item.kind), _parse(high.strip(), item.kind)
    if not least < most:
        raise ValueError(f"got bounds {text!r}, want the lower first")
    if item.kind in ("share", "rate") and least <= 0:
        raise ValueError(f"got a lower bound of {low.strip()}, want more than 0")
    if item.kind == "share" and most > 1:
        raise ValueError(f"got an upper bound of {high.strip()}, want a share of at most 1")
    return Constant(item.path, item.kind, item.documented, least, most, item.spread, item.family)


def _parse(text: str, kind: Kind) -> float:
    if kind == "time":
        return float(parse_picoseconds(text))
    if kind == "rate":
        return float(parse_bytes_per_second(text))
    try:
        number = float(Fraction(text))
    except (ValueError, ZeroDivisionError) as error:
        raise ValueError(f"got {text!r}, want a number: {kind} have no unit") from error
    if kind == "cycles" and (number < 0 or number != round(number)):
        raise ValueError(f"got {text!r}, want a whole number of cycles")
    return number


def _checked(item: Constant) -> Constant:
    if not item.low <= item.documented <= item.high:
        value = item.show(item.documented)
        raise ValueError(f"got bounds {show_bounds(item)}, want them around the documented value {value}")
    return item
