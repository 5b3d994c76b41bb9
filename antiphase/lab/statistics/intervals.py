"""Confidence intervals of a proportion, a mean, a difference of paired proportions, a slope, an area under a curve."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TypeVar

from scipy import stats

Sample = TypeVar("Sample")


def wilson_interval(successes: int, trials: int, confidence: float = 0.95) -> tuple[float, float]:
    """Wilson's (1927) interval of a proportion; (0, 1) without trials."""
    if trials == 0:
        return 0.0, 1.0
    interval = stats.binomtest(successes, trials).proportion_ci(confidence, method="wilson")
    return float(interval.low), float(interval.high)


def mean_interval(values: Sequence[float], confidence: float = 0.95) -> tuple[float, float] | None:
    """Student's interval of the mean; None for fewer than two values, from which no variance can be estimated."""
    if len(values) < 2:
        return None
    mean = sum(values) / len(values)
    error = math.sqrt(sum((value - mean) ** 2 for value in values) / (len(values) - 1) / len(values))
    half = float(stats.t.ppf((1 + confidence) / 2, len(values) - 1)) * error
    return mean - half, mean + half


def share_interval(shares: Sequence[float], samples: int) -> tuple[float, float]:
    """Interval of the mean of shares, one for each seed: Student's over seeds, within 0 and 1.

    With one seed, or seeds that are all equal (as at 0 and 1), which say nothing of a spread, it is Wilson's over the
    samples of one.
    """
    found = mean_interval(shares)
    if found is None or len(set(shares)) == 1:
        return wilson_interval(round(shares[0] * samples), samples)
    return max(0.0, found[0]), min(1.0, found[1])


def jackknife_interval(
    values: Sequence[Sample], statistic: Callable[[Sequence[Sample]], float], confidence: float = 0.95
) -> tuple[float, float] | None:
    """Student's interval of a smooth statistic, whose error is that of the jackknife (Tukey 1958).

    Returns:
        The interval; None for fewer than two values, or where the statistic is infinite without one of them.
    """
    if len(values) < 2:
        return None
    without = [statistic([*values[:index], *values[index + 1 :]]) for index in range(len(values))]
    if not all(map(math.isfinite, without)):
        return None
    mean = sum(without) / len(without)
    error = math.sqrt((len(values) - 1) / len(values) * sum((value - mean) ** 2 for value in without))
    half = float(stats.t.ppf((1 + confidence) / 2, len(values) - 1)) * error
    middle = statistic(values)
    return middle - half, middle + half


def paired_interval(better: int, worse: int, trials: int) -> tuple[float, tuple[float, float]]:
    """Difference of two proportions on the same trials and its 95 % interval (Bonett and Price 2012).

    One trial is added to ``better`` and one to ``worse``, so that the interval has a positive width even if the two
    never differ.

    Args:
        better, worse: trials that only the first, or only the second, got right.
    """
    one, other = (better + 1) / (trials + 2), (worse + 1) / (trials + 2)
    half = float(stats.norm.ppf(0.975)) * math.sqrt((one + other - (one - other) ** 2) / (trials + 2))
    middle = one - other
    return (better - worse) / trials, (max(-1.0, middle - half), min(1.0, middle + half))


def mcnemar(better: int, worse: int) -> float:
    """McNemar's exact two-sided p-value: whether answers changed for the better as often as for the worse.

    Args:
        better, worse: trials that only the one, or only the other, got right.
    """
    return float(stats.binomtest(better, better + worse).pvalue) if better + worse else 1.0


def slope_interval(points: Sequence[tuple[float, float]]) -> tuple[float, tuple[float, float]]:
    """Least-squares slope of y over log2 x with Student's 95 % interval; ``points`` have at least two different x."""
    x, y = zip(*((math.log2(place), value) for place, value in points), strict=True)
    fitted = stats.linregress(x, y)
    if len(points) < 3 or len(set(y)) == 1:  # equal values, as at the floor, say nothing of their spread
        return float(fitted.slope), (-math.inf, math.inf)
    half = float(stats.t.ppf(0.975, len(points) - 2)) * float(fitted.stderr)
    return float(fitted.slope), (float(fitted.slope) - half, float(fitted.slope) + half)


def area_interval(area: float, positive: int, negative: int) -> tuple[float, float]:
    """95 % interval of the area under a curve (AUC): all areas whose standard error reaches the one that was found.

    The standard error is Hanley and McNeil's (1982), which takes the samples as independent. As in Wilson's interval it
    is that of the limit and not of ``area``, so that the interval has a positive width even at 1 (Newcombe 2006).

    Args:
        positive, negative: number of samples of each kind, at least one.
    """
    z = float(stats.norm.ppf(0.975))

    def is_outside(limit: float) -> bool:
        above, below = limit / (2 - limit) - limit**2, 2 * limit**2 / (1 + limit) - limit**2
        variance = (limit * (1 - limit) + (positive - 1) * above + (negative - 1) * below) / (positive * negative)
        return (area - limit) ** 2 > z**2 * variance

    def edge(outside: float) -> float:
        inside = area
        for _ in range(60):
            middle = (inside + outside) / 2
            inside, outside = (inside, middle) if is_outside(middle) else (middle, outside)
        return inside

    return edge(0.0), edge(1.0)
