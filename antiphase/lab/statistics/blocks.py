"""Randomized blocks: every arm measured in the same seeds, and differences of arms with their t-intervals.

A block, a seed with every arm, shifts all of its values alike, so arms are compared within blocks. What is left varies
by the residual variance. It is estimated once, over all arms, if differences of all arms may vary alike: John's (1972)
test of sphericity, whose distribution is simulated, must not object (p from ``POOLED_FROM`` on). Otherwise, each
difference has the variance of its own values. Intervals cover seeds: the held-out sample is what it is.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any, Generic, TypeVar

import numpy
from scipy import stats
from scipy.optimize import brentq

from antiphase.lab.statistics.verdicts import CONFIDENCE, POWER

POOLED_FROM = 0.1
"""p of the test of sphericity from which on residuals are pooled."""
DRAWS = 4000
Array = numpy.ndarray[Any, Any]
Arm = TypeVar("Arm", bound=Hashable)


def smallest_detectable(error: float, degrees: float, confidence: float = CONFIDENCE) -> float:
    """The true difference (MDE) whose interval excludes 0 with a power of 80 %.

    Args:
        error: standard error of the difference.
        degrees: of freedom of its estimate.
        confidence: of the interval.
    """
    return _errors_seen(degrees, confidence) * error


@lru_cache(maxsize=64)
def _errors_seen(degrees: float, confidence: float) -> float:
    """The MDE in standard errors."""
    critical = float(stats.t.ppf((1 + confidence) / 2, degrees))
    return float(brentq(lambda size: float(stats.nct.sf(critical, degrees, size)) - POWER, 1.0, 3 * critical))


def planned_detectable(spread: float, *, arms: int, blocks: int) -> float:
    """The MDE of a difference of two arms before the runs.

    Args:
        spread: residual standard deviation that is expected of one value.
        arms: whose residuals will be pooled.
    """
    return smallest_detectable(spread * math.sqrt(2 / blocks), (arms - 1) * (blocks - 1))


@dataclass(frozen=True)
class Contrast:
    """Σ weight · mean of an arm over blocks, with its 95 % interval."""

    estimate: float
    error: float
    """Standard error."""
    degrees: int
    blocks: int

    def interval(self, confidence: float = CONFIDENCE) -> tuple[float, float]:
        """Student's interval."""
        half = float(stats.t.ppf((1 + confidence) / 2, self.degrees)) * self.error
        return self.estimate - half, self.estimate + half

    @property
    def detectable(self) -> float:
        """The MDE, if the error is the true one."""
        return smallest_detectable(self.error, self.degrees)

    def is_within(self, margin: float) -> bool:
        """Whether two one-sided tests at 5 % (TOST) show a difference smaller than the margin."""
        low, high = self.interval(2 * CONFIDENCE - 1)
        return -margin < low and high < margin


@dataclass(frozen=True)
class Blocks(Generic[Arm]):
    """One value for each arm and block."""

    arms: Sequence[Arm]
    values: Array
    """(arms, blocks) float64, at least two blocks."""

    @classmethod
    def of(cls, values: Mapping[Arm, Sequence[float | None]]) -> Blocks[Arm] | None:
        """The arms that have a value in every block; None with fewer than two blocks, or without such an arm.

        Blocks without a value are never left out: an arm that fails more often would look better.
        """
        whole = {arm: series for arm, series in values.items() if None not in series}
        table = numpy.array(list(whole.values()), dtype=numpy.float64)
        return None if table.ndim < 2 or table.shape[1] < 2 else cls(list(whole), table)

    @cached_property
    def residuals(self) -> Array:
        """(arms, blocks): what neither the arm nor the block explains."""
        return _centred(self.values)

    @cached_property
    def pooling_p(self) -> float | None:
        """P of the test that differences of all arms vary alike; None of two arms, which have one difference."""
        if len(self.arms) < 3 or not self.residuals.any():
            return None
        drawn = _spherical(*self.values.shape)
        found = _sphericity(self.residuals) * (1 - 1e-9)  # of two blocks it is always the same, but for rounding
        return float((len(drawn) - numpy.searchsorted(drawn, found) + 1) / (len(drawn) + 1))

    @property
    def is_pooled(self) -> bool:
        """Whether one residual variance serves all contrasts."""
        return self.pooling_p is not None and self.pooling_p >= POOLED_FROM

    @property
    def spread(self) -> float:
        """Residual standard deviation of one value, over all arms; 0 of one arm."""
        arms, blocks = self.values.shape
        return math.sqrt(float((self.residuals**2).sum()) / max(1, (arms - 1) * (blocks - 1)))

    def contrast(self, weights: Mapping[Arm, float], *, pooled: bool | None = None) -> Contrast | None:
        """A contrast, whose weights add up to 0; None where an arm is not in every block.

        Args:
            pooled: the variance to take, whatever the test says.
        """
        if any(weight and arm not in self.arms for arm, weight in weights.items()):
            return None
        vector = numpy.array([weights.get(arm, 0.0) for arm in self.arms])
        arms, blocks = self.values.shape
        by_block = vector @ self.values
        if self.is_pooled if pooled is None else pooled:
            variance, degrees = self.spread**2 * float(vector @ vector), (arms - 1) * (blocks - 1)
        else:
            variance, degrees = float(by_block.var(ddof=1)), blocks - 1
        return Contrast(float(by_block.mean()), math.sqrt(variance / blocks), degrees, blocks)

    def difference(self, arm: Arm, other: Arm) -> Contrast | None:
        """``arm`` minus ``other``."""
        return self.contrast({arm: 1.0, other: -1.0})


def _centred(values: Array) -> Array:
    """(…, arms, blocks) without the means of rows and columns."""
    rows, columns = values.mean(-1, keepdims=True), values.mean(-2, keepdims=True)
    return values - rows - columns + values.mean((-2, -1), keepdims=True)


def _sphericity(residuals: Array) -> Array:
    """John's statistic: 1 where residuals vary alike in all directions, larger where some stand out."""
    products = residuals @ residuals.swapaxes(-1, -2)
    return (residuals.shape[-2] - 1) * (products**2).sum((-2, -1)) / numpy.trace(products, axis1=-2, axis2=-1) ** 2


@lru_cache(maxsize=16)
def _spherical(arms: int, blocks: int) -> Array:
    """The statistic of independent residuals of equal variance, sorted."""
    generator = numpy.random.default_rng([arms, blocks])
    return numpy.sort(_sphericity(_centred(generator.normal(size=(DRAWS, arms, blocks)))))
