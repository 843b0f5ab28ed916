"""`calibrate`: rows and an architecture in, fitted constants and their errors out, on one page."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import exp

import numpy as np

from arch_configs import list_archs
from arch_configs.load import lineage
from dse.accuracy import Accuracy, accuracy_of_groups
from dse.calibration import fitting
from dse.calibration.constants import Constant, constants_of, overrides
from dse.calibration.fitting import Array
from dse.calibration.replay import Replay, Run, Target, Unfit, Workers, compile_row, run_row, workers
from dse.calibration.split import ALONE, FOLDS, folds_of, held_out
from dse.errors import SpaceError
from dse.measured import Measured
from dse.roles import load_with_roles
from dse.validate import device_of

ROUNDS = 5  # assumed
SETTLED = 0.1  # of a prior's spread: less movement is none
ROWS_A_CONSTANT = 2  # assumed
LEAST_ROWS = 4  # assumed
AT_BOUND = 1e-3  # of a prior's spread


@dataclass(frozen=True, slots=True)
class Request:
    """What a user asks for."""

    arch: str
    fits: tuple[str, ...] = ()
    held_out: float | None = 0.3  # share of the rows; None: all rows are fitted
    seed: int = 0
    jobs: int = 1


@dataclass(frozen=True, slots=True)
class Fitted:
    """A constant before and after."""

    constant: Constant
    value: float
    error: float  # standard error
    remark: str  # empty, or what to be careful about


@dataclass(frozen=True, slots=True)
class Errors:
    """Errors of a set of rows before and after."""

    name: str
    before: Accuracy
    after: Accuracy


@dataclass(frozen=True, slots=True)
class Coverage:
    """What the fitted rows cover; outside of it the constants are extrapolated."""

    time_ps: tuple[int, int]
    dram_bytes: tuple[int, int]
    macs: tuple[int, int]
    kinds: tuple[str, ...]  # of ops
    classes: tuple[str, ...]  # of rows


@dataclass(frozen=True, slots=True)
class RowError:
    """A row's log(predicted / measured) before and after, and whether the fit saw it."""

    row: Measured
    is_held_out: bool
    before: float
    after: float


@dataclass(frozen=True, slots=True)
class Calibration:
    """The constants, and how far off predictions are with them."""

    request: Request
    fitted: tuple[Fitted, ...]
    left: Mapping[str, str]  # path of a constant that was not fitted: why
    errors: tuple[Errors, ...]
    rows: tuple[RowError, ...]
    unfit: tuple[Unfit, ...]
    others: int  # rows of other architectures
    coverage: Coverage
    scatter: float
    rounds: int
    is_settled: bool

    @property
    def unseen(self) -> Errors:
        """Errors of rows that the fit did not see: held out, or else left out in turn."""
        return self.errors[-1]


@dataclass(frozen=True, slots=True)
class _System:
    """Compiled rows, and their errors as a function of the constants; nothing is compiled here."""

    arch: str
    constants: tuple[Constant, ...]
    replays: tuple[Replay, ...]
    pool: Workers
    known: dict[bytes, Array] = field(default_factory=dict)  # slopes that were computed before

    def target(self, x: Array) -> Target:
        values = [item.value(float(at)) for item, at in zip(self.constants, x, strict=True)]
        return Target(self.arch, overrides(self.constants, values))

    def runs(self, *xs: Array) -> list[list[Run]]:
        """Of each row the runs under each of `xs`."""
        targets = [self.target(x) for x in xs]
        return self.pool.map(run_row, [(replay, targets) for replay in self.replays])

    def errors(self, x: Array) -> Array:
        return np.array([runs[0].error for runs in self.runs(x)], dtype=np.float64)

    def slopes(self, x: Array) -> Array:
        """By differences that are wide enough to be over the rounding of values."""
        if x.tobytes() not in self.known:
            self.known[x.tobytes()] = self._slopes(x)
        return self.known[x.tobytes()]

    def _slopes(self, x: Array) -> Array:
        base = np.array([item.snapped(float(at)) for item, at in zip(self.constants, x, strict=True)])
        moved = []
        for column, item in enumerate(self.constants):
            step = item.step if base[column] + item.step <= item.limits[1] else -item.step
            other = base.copy()
            other[column] = item.snapped(base[column] + step)
            moved.append(other)
        table: Array = np.array([[run.error for run in runs] for runs in self.runs(base, *moved)])
        steps: Array = np.array([other[column] - base[column] for column, other in enumerate(moved)])
        return np.asarray((table[:, 1:] - table[:, :1]) / steps, dtype=np.float64)

    def recompiled(self, x: Array) -> _System:
        """The same rows compiled at `x`; one that does not fit there keeps its program."""
        target = self.target(x)
        found = self.pool.map(compile_row, [(replay.row, target) for replay in self.replays])
        replays = (
            new if isinstance(new, Replay) else old for new, old in zip(found, self.replays, strict=True)
        )
        return replace(self, replays=tuple(replays), known={})

    def only(self, kept: Sequence[int]) -> _System:
        """The same rows as a function of some of the constants."""
        return replace(self, constants=tuple(self.constants[index] for index in kept), known={})

    @property
    def limits(self) -> tuple[Array, Array]:
        low, high = zip(*(item.limits for item in self.constants), strict=True)
        return np.array(low), np.array(high)


@dataclass(frozen=True, slots=True)
class _Solution:
    """The best constants, with the rows compiled at them."""

    system: _System
    x: Array
    errors: Array
    scatter: float
    rounds: int
    is_settled: bool


Heard = Callable[[str], None]


def calibrate(rows: Sequence[Measured], request: Request, heard: Heard = lambda line: None) -> Calibration:
    """Fit constants of an architecture to its rows. `heard` gets a line as each step begins.

    Raises: SpaceError for a wrong request or too few rows; ArchError.
    """
    arch = load_with_roles(request.arch, {})
    candidates, left = constants_of(arch, request.fits)
    names = _names(request.arch)
    own = [row for row in rows if device_of(row) in names]
    if not own:
        got = ", ".join(dict.fromkeys(device_of(row) for row in rows))
        raise SpaceError([f"arch: got rows of {got} only, want rows of {' or '.join(names)}"])
    with workers(request.jobs) as pool:
        heard(f"compile {len(own)} rows")
        documented = Target(request.arch, {})
        found = pool.map(compile_row, [(row, documented) for row in own])
        usable = tuple(item for item in found if isinstance(item, Replay))
        tests = _tests(usable, request)
        seen = tuple(item for item in usable if item.row.id not in tests)
        _check_count(seen, request, len(candidates))
        everything = _System(request.arch, tuple(candidates), seen, pool)
        heard(f"which of {len(candidates)} constants {len(seen)} rows identify")
        best, unknown = _fit(everything, heard)
        heard("errors on rows that the fit did not see")
        fitted = _fitted(best)
        final = Target(request.arch, {item.constant.path: item.constant.exact(item.value) for item in fitted})
        lines, errors, cover = _judged(best, usable, tests, final, request)
    return Calibration(
        request=request,
        fitted=fitted,
        left={**left, **unknown},
        errors=errors,
        rows=lines,
        unfit=tuple(item for item in found if isinstance(item, Unfit)),
        others=len(rows) - len(own),
        coverage=cover,
        scatter=best.scatter,
        rounds=best.rounds,
        is_settled=best.is_settled,
    )


def _tests(usable: Sequence[Replay], request: Request) -> frozenset[str]:
    if request.held_out is None:
        return frozenset()
    return held_out([item.row for item in usable], request.held_out, request.seed)


def _names(arch: str) -> tuple[str, ...]:
    """What rows may call it: its own name, and of a file of one's own also what it extends."""
    chain = lineage(arch)
    known = list_archs()
    first = next((index for index, name in enumerate(chain) if name in known), len(chain))
    return chain[: first + 1]


def _check_count(seen: Sequence[Replay], request: Request, num_constants: int) -> None:
    """Refuse what cannot be fitted."""
    least = max(LEAST_ROWS, ROWS_A_CONSTANT * num_constants if request.fits else 0)
    if len(seen) < least:
        what = f"{num_constants} constants" if request.fits else "a fit"
        problem = f"rows: got {len(seen)} to fit, want at least {least} for {what}"
        raise SpaceError([f"{problem}; give more rows, or name fewer constants with --fit, or use --folds"])


def _identified(system: _System, x: Array, scatter: float) -> tuple[_System, list[int], dict[str, str]]:
    """The system of those constants that the rows identify, which these are, and why not the others."""
    slopes = system.slopes(x)
    kept, dropped = fitting.identified(slopes, scatter, len(system.replays) // ROWS_A_CONSTANT)
    why = {system.constants[index].path: _unknown(slopes[:, index], rest) for index, rest in dropped.items()}
    return (system.only(kept) if kept and dropped else system), kept, why


def _unknown(slopes: Array, rest: float) -> str:
    if not slopes.any():
        return "no row depends on it"
    if rest**2 <= fitting.IDENTIFIED:
        return "too few rows for one more constant"
    return f"not identified: beside the others the rows leave {rest:.0%} of its prior's spread"


def _fit(system: _System, heard: Heard) -> tuple[_Solution, dict[str, str]]:
    """Fit with the programs as they are, compile at the solution, and again until it stays.

    After each round the constants are dropped that the rows do not identify, given the scatter that is
    left; if that is all of them they stay, as weak ones. What comes out is the best round, each judged
    with the rows compiled at its own constants.
    """
    x = np.zeros(len(system.constants))
    system, kept, left = _identified(system, x, fitting.REPEAT)
    if not kept:
        reasons = "; ".join(f"{path}: {reason}" for path, reason in left.items())
        raise SpaceError(
            [f"rows: got none that identify a constant, want some that depend on one ({reasons})"]
        )
    x, scatter, rounds, moved = x[kept], fitting.REPEAT, 0, np.inf
    tried = [(system, x, system.errors(x))]
    while rounds < ROUNDS and moved > SETTLED:
        rounds += 1
        heard(f"round {rounds}: fit {len(x)} constants to {len(system.replays)} rows")
        new = fitting.solve(system.errors, system.slopes, x, system.limits, scatter)
        moved, x = float(np.max(np.abs(new - x))), new
        system = system.recompiled(x)
        tried.append((system, x, system.errors(x)))
        scatter = fitting.scatter_of(tried[-1][2], len(x))
        system, kept, why = _identified(system, x, scatter)
        if kept and why:
            left, moved, x = {**left, **why}, np.inf, x[kept]
            tried = [(system, x, system.errors(x))]
    best = min(tried, key=lambda item: fitting.cost(item[2], item[1], scatter))
    return _Solution(*best, scatter, rounds, moved <= SETTLED), left


def _fitted(best: _Solution) -> tuple[Fitted, ...]:
    """Values as they will be written, with their standard errors."""
    spread = np.sqrt(np.diag(fitting.covariance(best.system.slopes(best.x), best.scatter, best.errors)))
    found = []
    for item, at, error in zip(best.system.constants, best.x.tolist(), spread.tolist(), strict=True):
        low, high = item.limits
        remark = "at its lower bound" if at - low < AT_BOUND else ""
        remark = "at its upper bound" if high - at < AT_BOUND else remark
        if not remark and error**2 > fitting.IDENTIFIED:
            remark = "weak: rows and prior say about as much"
        found.append(Fitted(item, item.rounded(item.value(at)), item.error(at, error), remark))
    return tuple(found)


def _judged(
    best: _Solution, usable: Sequence[Replay], tests: frozenset[str], final: Target, request: Request
) -> tuple[tuple[RowError, ...], tuple[Errors, ...], Coverage]:
    """Errors of every row under the constants as they are written, each row compiled for them."""
    pool = best.system.pool
    found = pool.map(compile_row, [(item.row, final) for item in usable])
    again = [new if isinstance(new, Replay) else old for new, old in zip(found, usable, strict=True)]
    before = [runs[0] for runs in pool.map(run_row, [(item, (Target(final.arch, {}),)) for item in usable])]
    after = [runs[0] for runs in pool.map(run_row, [(item, (final,)) for item in again])]
    lines = tuple(
        RowError(item.row, item.row.id in tests, old.error, new.error)
        for item, old, new in zip(usable, before, after, strict=True)
    )
    seen = [line for line in lines if not line.is_held_out]
    name = "calibration rows" if tests else "all rows, seen by the fit"
    errors = [_errors(name, seen), _without_each(best, seen, request.seed)]
    if tests:
        errors.append(_errors("held-out rows", [line for line in lines if line.is_held_out]))
    fitted = [(item, run) for item, run in zip(again, after, strict=True) if item.row.id not in tests]
    return lines, tuple(errors), _coverage(fitted)


def _without_each(best: _Solution, seen: Sequence[RowError], seed: int) -> Errors:
    """Each fitted row under the constants as they come out without it."""
    system = best.system
    folds = folds_of([line.row.id for line in seen], seed)
    slopes = system.slopes(best.x)
    xs = fitting.without_each(best.errors, slopes, best.x, system.limits, best.scatter, folds)
    of_row = {index: system.target(x) for fold, x in zip(folds, xs, strict=True) for index in fold}
    tasks = [(replay, (of_row[index],)) for index, replay in enumerate(system.replays)]
    runs = system.pool.map(run_row, tasks)
    name = "leave-one-out" if len(seen) <= ALONE else f"{FOLDS} folds"
    lines = [
        RowError(line.row, True, line.before, found[0].error) for line, found in zip(seen, runs, strict=True)
    ]
    return _errors(name, lines)


def _errors(name: str, lines: Sequence[RowError]) -> Errors:
    before, after = (_accuracy(lines, attribute) for attribute in ("before", "after"))
    return Errors(name, before, after)


def _accuracy(lines: Sequence[RowError], attribute: str) -> Accuracy:
    """Mean and bias over the means of the ops, as `dse validate` has them."""
    groups: dict[str, list[tuple[float, float]]] = {}
    for line in lines:
        groups.setdefault(line.row.op, []).append((1.0, exp(getattr(line, attribute))))
    return accuracy_of_groups(groups)


def _coverage(fitted: Sequence[tuple[Replay, Run]]) -> Coverage:
    times = [run.time_ps for _, run in fitted]
    sizes = [run.dram_bytes for _, run in fitted]
    macs = [item.macs for item, _ in fitted]
    return Coverage(
        time_ps=(min(times), max(times)),
        dram_bytes=(min(sizes), max(sizes)),
        macs=(min(macs), max(macs)),
        kinds=tuple(sorted({kind for item, _ in fitted for kind in item.kinds})),
        classes=tuple(sorted({item.row.op for item, _ in fitted})),
    )
