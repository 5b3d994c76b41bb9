"""Power laws of the loss, L(x) = E + A · x^(-a), and what an arm needs for equal loss (2410.05258, figure 3)."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence

import numpy
from scipy.optimize import least_squares

from antiphase.lab.statistics.intervals import mean_interval
from antiphase.lab.studies.scaling import EqualLoss, Law

FEWEST_POINTS = 4
"""A law has three numbers; fewer points would be met exactly and say nothing of their spread."""
STEEPEST, FLATTEST = 2.0, 1e-3
"""Exponents that a law may have."""


def ends_on_a_bound(law: Law, losses: Iterable[Iterable[float]]) -> bool:
    """Whether exponent or floor is as far as the losses let it go, so that they ask for a law of another form."""
    lowest = min(loss for of_size in losses for loss in of_size)
    return law.floor > 0.999 * lowest or not 1.01 * FLATTEST < law.exponent < 0.99 * STEEPEST


def fit_law(x: Sequence[float], losses: Sequence[float]) -> Law:
    """Least squares in the logarithm of the loss; E ≥ 0, A > 0, a in (0, 2].

    Raises:
        ValueError: fewer than four different x, or a loss that is not above 0.
    """
    if len(set(x)) < FEWEST_POINTS:
        raise ValueError(f"a law needs at least {FEWEST_POINTS} different sizes, got {len(set(x))}")
    if min(losses) <= 0 or not all(map(math.isfinite, losses)):
        raise ValueError("losses must be finite and above 0")
    sizes, logs = numpy.log(numpy.asarray(x, dtype=float)), numpy.log(numpy.asarray(losses, dtype=float))
    middle = float(sizes.mean())  # the scale is fitted where the data are, so that its numbers are of ordinary size

    def residuals(values: numpy.ndarray) -> numpy.ndarray:
        floor, height, exponent = values
        return numpy.log(floor + numpy.exp(height - exponent * (sizes - middle))) - logs

    begins = [(share * min(losses), exponent) for share in (0.0, 0.5, 0.9) for exponent in (0.05, 0.2, 0.6)]
    best = None
    for floor, exponent in begins:
        start = [floor, math.log(max(float(numpy.exp(logs).mean()) - floor, 1e-6)), exponent]
        found = least_squares(residuals, start, bounds=([0, -50, FLATTEST], [min(losses), 50, STEEPEST]))
        if best is None or found.cost < best.cost:
            best = found
    assert best is not None
    floor, height, exponent = map(float, best.x)
    return Law(floor, math.exp(height + exponent * middle), exponent)


Losses = Mapping[float, Sequence[float]]
"""Losses by x, one for each seed, in the same order of seeds."""


def seed_laws(losses: Losses) -> list[Law]:
    """The law of each seed's own losses.

    Raises:
        ValueError: as ``fit_law``.
    """
    seeds = len(next(iter(losses.values())))
    return [fit_law(list(losses), [values[index] for values in losses.values()]) for index in range(seeds)]


def equal_loss(baseline: Losses, arm: Losses) -> EqualLoss:
    """Compare two arms at the baseline's largest x, by laws of single seeds: their log ratios have Student's interval.

    Raises:
        ValueError: as ``fit_law``.
    """
    largest = max(baseline)
    pairs = list(zip(seed_laws(baseline), seed_laws(arm), strict=True))
    loss = statistics.fmean(law(largest) for law, _ in pairs)
    needed = [
        None
        if ends_on_a_bound(one, baseline.values()) or ends_on_a_bound(other, arm.values())
        else other.inverse(one(largest))
        for one, other in pairs
    ]
    logs = [math.log(value / largest) for value in needed if value is not None]
    if len(logs) < len(pairs):
        return EqualLoss(loss, largest, None, None, None)
    ratio, interval = math.exp(statistics.fmean(logs)), mean_interval(logs)
    ends = None if interval is None else [math.exp(end) for end in interval]
    return EqualLoss(loss, largest, ratio * largest, ratio, ends)
