"""Power laws of the loss, L(x) = E + A · x^(-a), and what an arm needs for equal loss (2410.05258, figure 3)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy
from scipy.optimize import least_squares

FEWEST_POINTS = 4
"""A law has three numbers; fewer points would be met exactly and say nothing of their spread."""
RESAMPLES = 400
STEEPEST, FLATTEST = 2.0, 1e-3
"""Exponents that a law may have."""


@dataclass(frozen=True)
class Law:
    """L(x) = floor + scale · x^(-exponent)."""

    floor: float
    scale: float
    exponent: float

    def __call__(self, x: float) -> float:
        """Loss at x."""
        return self.floor + self.scale * x**-self.exponent

    def inverse(self, loss: float) -> float | None:
        """The x that has this loss; None where the law never gets so low."""
        if loss <= self.floor:
            return None
        return float((self.scale / (loss - self.floor)) ** (1 / self.exponent))

    @property
    def ends_on_a_bound(self) -> bool:
        """Whether the exponent is as far as it may go, so that the points ask for a law of another form."""
        return not 1.01 * FLATTEST < self.exponent < 0.99 * STEEPEST


def fit_law(x: Sequence[float], losses: Sequence[float], *, near: Law | None = None) -> Law:
    """Least squares in the logarithm of the loss; E ≥ 0, A > 0, a in (0, 2].

    Args:
        near: where to begin; None: from several places.

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
    if near is not None:
        begins = [(min(near.floor, 0.999 * min(losses)), near.exponent)]
    best = None
    for floor, exponent in begins:
        start = [floor, math.log(max(float(numpy.exp(logs).mean()) - floor, 1e-6)), exponent]
        found = least_squares(residuals, start, bounds=([0, -50, FLATTEST], [min(losses), 50, STEEPEST]))
        if best is None or found.cost < best.cost:
            best = found
    assert best is not None
    floor, height, exponent = map(float, best.x)
    return Law(floor, math.exp(height + exponent * middle), exponent)


@dataclass(frozen=True)
class EqualLoss:
    """What an arm needs for the loss that the baseline has at its largest size."""

    loss: float
    baseline: float
    """The baseline's largest x."""
    needed: float | None
    """The arm's x for the same loss; None where its law never gets so low."""
    ratio: float | None
    """Needed / baseline; below 1 the arm needs less."""
    interval: tuple[float, float] | None
    """95 % of the ratio over resampled seeds; None for one seed, or where resamples do not reach the loss."""


def equal_loss(baseline: dict[float, list[float]], arm: dict[float, list[float]], *, seed: int = 0) -> EqualLoss:
    """Compare two laws at the baseline's largest x.

    Args:
        baseline, arm: losses by x, one for each seed, in the same order of seeds.

    Raises:
        ValueError: as ``fit_law``.
    """
    largest = max(baseline)

    seeds = len(next(iter(baseline.values())))

    def law(losses: dict[float, list[float]], chosen: Sequence[int], near: Law | None = None) -> Law:
        points = [(size, values[index]) for size, values in losses.items() for index in chosen]
        return fit_law([size for size, _ in points], [loss for _, loss in points], near=near)

    laws = law(baseline, range(seeds)), law(arm, range(seeds))
    loss = laws[0](largest)
    needed = laws[1].inverse(loss)
    interval = None
    if seeds > 1:
        generator = numpy.random.default_rng(seed)
        drawn = []
        for _ in range(RESAMPLES):
            chosen = generator.integers(0, seeds, seeds).tolist()
            drawn.append(law(arm, chosen, laws[1]).inverse(law(baseline, chosen, laws[0])(largest)))
        if all(value is not None for value in drawn):
            low, high = numpy.quantile([value / largest for value in drawn if value is not None], [0.025, 0.975])
            interval = float(low), float(high)
    return EqualLoss(loss, largest, needed, None if needed is None else needed / largest, interval)
