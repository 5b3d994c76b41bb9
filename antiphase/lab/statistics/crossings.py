"""Where a share of right answers falls to a half as something grows, with a profile-likelihood interval."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy
from scipy import optimize, stats

STEEPEST = 64.0
"""Largest fall of the log-odds per doubling, a step; steeper ones would have the same likelihood."""
PLACES = 1001
"""Places between the smallest and the largest size at which the likelihood is computed."""
HALVINGS = 40
SAME = 1e-3
"""Log-likelihoods that differ by less are equal: a fall between two neighbouring sizes may be anywhere between them."""

Array = numpy.ndarray[tuple[int, ...], numpy.dtype[numpy.float64]]


@dataclass(frozen=True)
class Crossed:
    """The size at which a half of the answers are right."""

    value: float | None
    """None if it lies outside the sizes that were measured."""
    beyond: Literal["below", "above"] | None
    """On which side of them it lies."""
    interval: tuple[float | None, float | None]
    """95 % interval; None for an end that lies outside these sizes."""


def crossed(sizes: Sequence[float], right: Sequence[int], trials: Sequence[int], confidence: float = 0.95) -> Crossed:
    """Fit P(right) = 1/(1 + exp(-b(c - log2 size))) with b ≥ 0 by maximum likelihood; c is where it crosses a half.

    The interval holds all c whose profile likelihood is not refused by the likelihood-ratio test with one degree of
    freedom. Nothing is extrapolated: a crossing below the smallest or above the largest size is named as such.

    Args:
        sizes: positive, at least two different ones.
        right, trials: of each size.
    """
    x = numpy.log2(numpy.asarray(sizes, dtype=float))
    hits, misses = (numpy.asarray(one, dtype=float) for one in (right, numpy.subtract(trials, right)))
    places = numpy.linspace(x.min(), x.max(), PLACES)
    profile = _profile(places, x, hits, misses)
    place, height = _best(x, hits, misses)
    best = max(float(profile.max()), height)
    likely = places[profile >= best - stats.chi2.ppf(confidence, 1) / 2]
    low, high = (float(2 ** likely[0]), float(2 ** likely[-1])) if len(likely) else (None, None)
    if profile.max() < best - SAME and not places[0] <= place <= places[-1]:
        is_above = profile[-1] > profile[0]
        if not len(likely):
            low = high = float(2 ** (places[-1] if is_above else places[0]))
        return Crossed(None, "above" if is_above else "below", (low, None) if is_above else (None, high))
    equal = places[profile >= profile.max() - SAME]
    ends = (None if likely[0] == places[0] else low, None if likely[-1] == places[-1] else high)
    return Crossed(float(2 ** ((equal[0] + equal[-1]) / 2)), None, ends)


def _profile(places: Array, x: Array, hits: Array, misses: Array) -> Array:
    """The largest log-likelihood for each place of the crossing, by bisection of its derivative, which falls with b."""
    away = places[:, None] - x  # log-odds per b, (places, sizes)
    low, high = numpy.zeros(len(places)), numpy.full(len(places), STEEPEST)
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        chances = 1 / (1 + numpy.exp(numpy.clip(-middle[:, None] * away, -700, 700)))
        rises = (away * (hits - (hits + misses) * chances)).sum(1) > 0
        low, high = numpy.where(rises, middle, low), numpy.where(rises, high, middle)
    return _likelihood(low[:, None] * away, hits, misses)


def _best(x: Array, hits: Array, misses: Array) -> tuple[float, float]:
    """The most likely place of the crossing, which may be infinite, and its log-likelihood."""
    away = x - x.mean()
    most = STEEPEST * (numpy.ptp(x) + 1)
    found = optimize.minimize(
        lambda ab: -_likelihood((ab[0] - ab[1] * away)[None], hits, misses)[0],
        x0=[0.0, 1.0], bounds=[(-most, most), (0.0, STEEPEST)], method="L-BFGS-B",
    )  # fmt: skip
    odds, fall = map(float, found.x)
    return (x.mean() + odds / fall if fall else math.copysign(math.inf, odds)), -float(found.fun)


def _likelihood(odds: Array, hits: Array, misses: Array) -> Array:
    """Log-likelihoods (…,) of log-odds (…, sizes)."""
    found: Array = -(hits * numpy.logaddexp(0, -odds) + misses * numpy.logaddexp(0, odds)).sum(-1)
    return found
