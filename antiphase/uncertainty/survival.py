"""Survival analysis of steps until an event, in runs that may end before it: medians and the log-rank test."""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Sequence
from typing import Any

from scipy import stats

MOST_DIVISIONS = 200_000
"""Divisions of all seeds into two groups that are enumerated: those of ten and ten."""


def survival(passed: Sequence[int | None], until: int) -> dict[str, Any]:
    """Summary of the time to an event over seeds.

    Args:
        passed: step of the event for each seed; None if it did not happen within ``until`` steps, when all runs ended.

    Returns:
        ``passed`` and ``seeds`` (counts), ``until``, and ``median``, the Kaplan–Meier median: the first step by which
        half of the seeds had passed; None if more than half never did.
    """
    middle = statistics.median_low(math.inf if step is None else step for step in passed)
    return {
        "passed": sum(step is not None for step in passed),
        "seeds": len(passed),
        "median": None if math.isinf(middle) else middle,
        "until": until,
    }


def log_rank(one: Sequence[int | None], other: Sequence[int | None], until: int) -> float | None:
    """Two-sided p-value of the log-rank test (Mantel 1966) that two groups have equal rates; None without events.

    Of few seeds it is exact, the share of all divisions into such groups whose statistic is as far from zero: with
    three seeds each, it is never below 0.1. Of many it is that of the limiting distribution.
    """
    if not any(step is not None for step in (*one, *other)):
        return None
    if math.comb(len(one) + len(other), len(one)) <= MOST_DIVISIONS:
        return _exact(one, other)
    groups = [
        stats.CensoredData.right_censored(
            [until if step is None else step for step in steps], [step is None for step in steps]
        )
        for steps in (one, other)
    ]
    p = float(stats.logrank(*groups).pvalue)
    return None if math.isnan(p) else p


def _exact(one: Sequence[int | None], other: Sequence[int | None]) -> float:
    """A division's statistic is events minus expected events of its first group, a sum of one score for each seed."""
    ends = [math.inf if step is None else step for step in (*one, *other)]
    times = sorted({end for end in ends if math.isfinite(end)})
    hazards = [(time, ends.count(time) / sum(end >= time for end in ends)) for time in times]
    scores = [math.isfinite(end) - math.fsum(hazard for time, hazard in hazards if time <= end) for end in ends]
    found = abs(math.fsum(scores[: len(one)]))
    sums = [abs(math.fsum(chosen)) for chosen in itertools.combinations(scores, len(one))]
    return sum(total >= found - 1e-9 for total in sums) / len(sums)
