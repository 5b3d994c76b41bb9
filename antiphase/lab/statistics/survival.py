"""Survival analysis of steps until an event, in runs that may end before it: medians, hazard ratios, log-rank test."""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from antiphase.lab.statistics.verdicts import CONFIDENCE, POWER, Verdict

MOST_DIVISIONS = 200_000
"""Divisions of all seeds into two groups that are enumerated: those of ten and ten."""
Steps = Sequence[int | None]
"""Step of the event for each seed; None if it did not happen before all runs ended."""


@dataclass(frozen=True, kw_only=True)
class Survival:
    """The time to an event over seeds."""

    passed: int
    seeds: int
    median: int | None
    """Kaplan and Meier's: the first step by which half of the seeds had passed; None if more than half never did."""
    median_interval: Sequence[int | None] = ()
    """At least 95 %, of order statistics; None for an end that was not seen: a median after the end of training, or
    fewer than six seeds, which allow no such interval."""
    until: int
    """When all runs ended."""


def survival(passed: Steps, until: int) -> Survival:
    """Summary of the seeds of one arm."""
    from scipy import stats

    steps = sorted(math.inf if step is None else step for step in passed)
    rank = int(stats.binom.ppf((1 - CONFIDENCE) / 2, len(steps), 0.5))
    ends = (steps[rank - 1], steps[-rank]) if rank else (math.inf, math.inf)
    low, high, middle = (
        None if math.isinf(step) else int(step) for step in (*ends, statistics.median_low(steps))
    )  # fmt: skip
    return Survival(
        passed=sum(step is not None for step in passed), seeds=len(steps), median=middle,
        median_interval=[low, high], until=until,
    )  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class HazardRatio:
    """How much more often the one arm's remaining seeds pass than the other's; above 1 it is sooner."""

    ratio: float
    interval: Sequence[float]
    """95 %."""
    p: float
    """Of the log-rank test, two-sided."""
    detectable: float
    """The ratio above 1 that is seen with a power of 80 % (Schoenfeld 1981)."""

    def word(self) -> Verdict:
        """Whether the one arm is sooner, by the test, which is exact for few seeds; the interval is that of many."""
        if self.p >= 1 - CONFIDENCE:
            return Verdict("cannot tell", f"log-rank p of {1 - CONFIDENCE:.2f} or more")
        return Verdict("agrees" if self.ratio > 1 else "disagrees")


def compare_steps(one: Steps, other: Steps) -> HazardRatio | None:
    """Peto's estimate of the hazard ratio, with the log-rank test (Mantel 1966); None where nothing can be compared.

    It is made in one step, so that of very unequal arms it lies nearer to 1 than Cox's.

    Of few seeds p is exact, the share of all divisions into such groups whose statistic is as far from zero: with three
    seeds each, it is never below 0.1. Of many it is that of the limiting distribution.
    """
    from scipy import stats

    groups = [[math.inf if step is None else step for step in steps] for steps in (one, other)]
    ends = [*groups[0], *groups[1]]
    surplus = variance = 0.0
    for time in sorted({end for end in ends if math.isfinite(end)}):
        at_risk, own = (sum(end >= time for end in group) for group in (ends, groups[0]))
        events = ends.count(time)
        surplus += groups[0].count(time) - events * own / at_risk
        if at_risk > 1:
            share = own / at_risk
            variance += events * share * (1 - share) * (at_risk - events) / (at_risk - 1)
    if not variance:
        return None
    half = float(stats.norm.ppf((1 + CONFIDENCE) / 2)) / math.sqrt(variance)
    middle = surplus / variance
    p = float(2 * stats.norm.sf(abs(surplus) / math.sqrt(variance)))
    if math.comb(len(ends), len(one)) <= MOST_DIVISIONS:
        p = _exact(ends, len(one))
    return HazardRatio(
        ratio=math.exp(middle), interval=[math.exp(middle - half), math.exp(middle + half)], p=p,
        detectable=detectable_ratio(sum(map(math.isfinite, ends))),
    )  # fmt: skip


def detectable_ratio(events: int) -> float:
    """The hazard ratio of two groups of equal size that is seen with a power of 80 %, given the number of events."""
    from scipy import stats

    return math.exp(2 * float(stats.norm.ppf((1 + CONFIDENCE) / 2) + stats.norm.ppf(POWER)) / math.sqrt(events))


def _exact(ends: Sequence[float], size: int) -> float:
    """A division's statistic is events minus expected events of its first group, a sum of one score for each seed."""
    times = sorted({end for end in ends if math.isfinite(end)})
    hazards = [(time, ends.count(time) / sum(end >= time for end in ends)) for time in times]
    scores = [math.isfinite(end) - math.fsum(hazard for time, hazard in hazards if time <= end) for end in ends]
    found = abs(math.fsum(scores[:size]))
    sums = [abs(math.fsum(chosen)) for chosen in itertools.combinations(scores, size)]
    return sum(total >= found - 1e-9 for total in sums) / len(sums)
