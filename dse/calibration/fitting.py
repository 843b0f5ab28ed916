"""Bounded, robust least squares with a prior: pure functions of errors and slopes.

Everything is in `x`: spreads of a constant's prior from its documented value. An error is
log(predicted / measured) of a row. What is minimised is the sum over the rows of log(1 + (error / scatter)^2)
(Cauchy's loss: a row that is far off has next to no say) plus that over the constants of x^2.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from dse.errors import SpaceError

Array = npt.NDArray[np.float64]

# A constant is identified if the rows alone narrow it to under half of its prior's spread, that is the
# variance to under a quarter, with the other constants free. The share is assumed.
IDENTIFIED = 0.25
REPEAT = 0.05  # assumed: scatter of rows before any residual is known, that of repeated measurements
LEAST_SCATTER, MOST_SCATTER = 0.01, 0.5  # assumed
NORMAL_MAD = 1.4826  # of a normal distribution: standard deviation / median absolute deviation
TOLERANCE = 1e-3
MAX_STEPS = 8  # of a round; what is left is for the next one
INSIDE = 0.5  # spreads from a limit that a fit starts at: at it the method sees no way


def solve(
    errors: Callable[[Array], Array],
    slopes: Callable[[Array], Array],
    start: Array,
    limits: tuple[Array, Array],
    scatter: float,
) -> Array:
    """The constants of least cost within the limits. Raises: SpaceError without scipy."""
    least_squares = _least_squares()
    eye = np.eye(len(start))
    low, high = limits
    margin = np.minimum(INSIDE, (high - low) / 4)
    found = least_squares(
        lambda x: np.concatenate([errors(x) / scatter, x]),
        np.clip(start, low + margin, high - margin),
        jac=lambda x: np.vstack([slopes(x) / scatter, eye]),
        bounds=limits,
        loss=lambda z: _loss(z, len(start)),
        xtol=TOLERANCE,
        ftol=TOLERANCE,
        max_nfev=MAX_STEPS,
    )
    return np.asarray(found.x, dtype=np.float64)


def _least_squares() -> Callable[..., Any]:
    """scipy is an extra: only this needs it, and it takes a while to import."""
    try:
        from scipy.optimize import least_squares
    except ImportError as error:
        raise SpaceError(
            ["dse calibrate: got no scipy, want it for the fit: pip install 'accel-dse[calibrate]'"]
        ) from error
    return cast("Callable[..., Any]", least_squares)


def _loss(z: Array, num_constants: int) -> Array:
    """Loss and its derivatives by `z`, the squared residuals: Cauchy's of rows, `z` itself of the prior."""
    of_row = np.arange(len(z)) < len(z) - num_constants
    near = 1 / (1 + z)
    return np.where(of_row, [np.log1p(z), near, -(near**2)], [z, np.ones_like(z), np.zeros_like(z)])


def cost(errors: Array, x: Array, scatter: float) -> float:
    """What `solve` minimises."""
    return float(np.sum(np.log1p((errors / scatter) ** 2)) + np.sum(x**2))


def scatter_of(errors: Array, num_constants: int) -> float:
    """Standard deviation of the rows around the fit, robust against some that are far off."""
    free = len(errors) / max(1, len(errors) - num_constants)
    found = NORMAL_MAD * float(np.median(np.abs(errors))) * free**0.5
    return float(min(max(found, LEAST_SCATTER), MOST_SCATTER))


def covariance(slopes: Array, scatter: float, errors: Array | None = None) -> Array:
    """Of the constants, from rows and prior together; rows that are far off count less, as in the loss."""
    weights = np.ones(len(slopes)) if errors is None else 1 / (1 + (errors / scatter) ** 2)
    information = slopes.T @ (weights[:, None] * slopes) / scatter**2
    return np.asarray(np.linalg.inv(information + np.eye(slopes.shape[1])), dtype=np.float64)


def identified(slopes: Array, scatter: float, most: int) -> tuple[list[int], dict[int, float]]:
    """Columns that the rows identify, at most so many; and of the others what is left of the prior's spread.

    The least known is dropped first, then the rest are looked at anew: of two constants that the rows
    cannot tell apart one stays.
    """
    kept, dropped = list(range(slopes.shape[1])), dict[int, float]()
    while kept:
        variances = np.diag(covariance(slopes[:, kept], scatter))
        worst = int(np.argmax(variances))
        if variances[worst] <= IDENTIFIED and len(kept) <= most:
            break
        dropped[kept[worst]] = float(np.sqrt(variances[worst]))
        del kept[worst]
    return kept, dropped


def without_each(
    errors: Array,
    slopes: Array,
    x: Array,
    limits: tuple[Array, Array],
    scatter: float,
    folds: Sequence[Sequence[int]],
) -> list[Array]:
    """The constants as they come out without the rows of each fold, by the fit made linear at `x`."""
    found = []
    for fold in folds:
        rest = np.setdiff1d(np.arange(len(errors)), fold)
        base, slope = errors[rest], slopes[rest]
        found.append(
            solve(
                lambda y, base=base, slope=slope: base + slope @ (y - x),  # type: ignore[misc]
                lambda y, slope=slope: slope,  # type: ignore[misc]
                x,
                limits,
                scatter,
            )
        )
    return found
