"""Intervals: Wilson's for a share, Student's for a mean of paired differences."""

from __future__ import annotations

import math
from collections.abc import Sequence

from scipy import stats


def wilson_interval(successes: int, trials: int, confidence: float = 0.95) -> tuple[float, float]:
    """Interval of a share (Wilson 1927), (0, 1) without trials."""
    if trials == 0:
        return 0.0, 1.0
    interval = stats.binomtest(successes, trials).proportion_ci(confidence, method="wilson")
    return float(interval.low), float(interval.high)


def mean_interval(values: Sequence[float], confidence: float = 0.95) -> tuple[float, float] | None:
    """Student's interval of the mean; None for fewer than two values, which have no spread."""
    if len(values) < 2:
        return None
    mean = sum(values) / len(values)
    error = math.sqrt(sum((value - mean) ** 2 for value in values) / (len(values) - 1) / len(values))
    half = float(stats.t.ppf((1 + confidence) / 2, len(values) - 1)) * error
    return mean - half, mean + half
