"""How far predictions are from measurements: pure functions of their ratios.

A ratio is predicted time over measured time, so an error above zero means that the prediction is slower.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean, geometric_mean, median
from typing import TypeVar

import pandas as pd

K = TypeVar("K", bound=Hashable)


@dataclass(frozen=True, slots=True)
class Accuracy:
    """Errors of a set of rows, as fractions: 0.1 is 10 %. `rank` is null below three rows, or if all tie."""

    count: int
    mean_abs: float
    median_abs: float
    max_abs: float
    bias: float  # mean signed error
    geomean: float  # geometric mean of the ratios
    rank: float | None  # Spearman's rank correlation of predicted and measured values
    within_10: float  # share of rows
    within_25: float


def accuracy(pairs: Sequence[tuple[float, float]]) -> Accuracy:
    """Errors of (measured time, predicted time) pairs, all above 0; at least one."""
    errors = [predicted / measured - 1 for measured, predicted in pairs]
    sizes = [abs(error) for error in errors]
    return Accuracy(
        count=len(pairs),
        mean_abs=fmean(sizes),
        median_abs=median(sizes),
        max_abs=max(sizes),
        bias=fmean(errors),
        geomean=geometric_mean(predicted / measured for measured, predicted in pairs),
        rank=rank_correlation(pairs),
        within_10=share_within(sizes, 0.10),
        within_25=share_within(sizes, 0.25),
    )


def accuracy_of_groups(groups: Mapping[K, Sequence[tuple[float, float]]]) -> Accuracy:
    """Of all rows, but with mean and bias averaged over the groups, so that no large one outweighs others."""
    whole = accuracy([pair for pairs in groups.values() for pair in pairs])
    each = [accuracy(pairs) for pairs in groups.values()]
    return replace(
        whole, mean_abs=fmean(item.mean_abs for item in each), bias=fmean(item.bias for item in each)
    )


def rank_correlation(pairs: Sequence[tuple[float, float]]) -> float | None:
    """Spearman's: Pearson's correlation of the ranks, ties at their mean rank."""
    if len(pairs) < 3:
        return None
    ranks = pd.DataFrame(pairs, columns=["measured", "predicted"]).rank()
    if ranks.nunique().min() == 1:
        return None
    found = float(ranks["measured"].corr(ranks["predicted"]))
    return found if math.isfinite(found) else None


def share_within(sizes: Sequence[float], limit: float) -> float:
    """Share of absolute errors that are at most `limit`, up to what floating point adds."""
    return sum(size <= limit + 1e-9 for size in sizes) / len(sizes)
