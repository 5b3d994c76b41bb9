"""Survival analysis of steps until an event, in runs that may end before it: medians and the log-rank test."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from typing import Any

from scipy import stats


def survival(passed: Sequence[int | None], until: int) -> dict[str, Any]:
    """Summary of the time to an event over seeds.

    Args:
        passed: step of the event for each seed; None if it did not happen within ``until`` steps, when all runs ended.

    Returns:
        ``passed`` and ``seeds`` (counts), ``until``, and ``median``, the Kaplan–Meier median, None if half of the seeds
        never passed. Since all runs are censored at the same step, it is the median with censored runs counted as
        latest.
    """
    middle = statistics.median(math.inf if step is None else step for step in passed)
    return {
        "passed": sum(step is not None for step in passed),
        "seeds": len(passed),
        "median": None if math.isinf(middle) else middle,
        "until": until,
    }


def log_rank(one: Sequence[int | None], other: Sequence[int | None], until: int) -> float | None:
    """Two-sided p-value of the log-rank test (Mantel 1966) that two groups have equal rates; None without events."""
    if not any(step is not None for step in (*one, *other)):
        return None
    groups = [
        stats.CensoredData.right_censored(
            [until if step is None else step for step in steps], [step is None for step in steps]
        )
        for steps in (one, other)
    ]
    p = float(stats.logrank(*groups).pvalue)
    return None if math.isnan(p) else p
