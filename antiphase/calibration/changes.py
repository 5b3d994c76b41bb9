"""Differences of scores per sample: changes beyond rounding, confidence intervals, and a null distribution."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from scipy import stats
from torch import Tensor

Scores = Mapping[str, Tensor]
"""By data set, one float64 score per sample."""
RESAMPLES = 4000
"""Number of bootstrap resamples."""
FEWEST_DRAWS = 4000
"""Smallest number of random sign assignments."""
MOST_EXACT_SUMS = 2**16
"""Largest number of signed sums that are enumerated; beyond it, signs are drawn at random."""
TOLERANCE = 1e-12
"""Sums of scores that differ by less count as equal."""


def mean_of(values: Scores) -> float:
    """Unweighted mean over data sets of their means."""
    return math.fsum(v.mean().item() for v in values.values()) / len(values)


def rounding_of(first: Scores, second: Scores) -> float:
    """Rounding error of scores, from two computations of the same scores: twice the largest difference.

    Accuracies have none: if all scores are 0 or 1, the result is 0, and any flipped answer is a change.
    """
    both = torch.cat([*first.values(), *second.values()])
    if bool(((both == 0) | (both == 1)).all()):
        return 0.0
    differences = torch.cat([(second[name] - values).abs() for name, values in first.items()])
    return 2 * float(differences.max())


def changes_of(after: Scores, before: Scores, *, rounding: float = 0.0) -> dict[str, Tensor]:
    """After minus before, with differences within rounding set to 0."""
    changes = {name: values - before[name] for name, values in after.items()}
    return {name: change.where(change.abs() > rounding, 0.0) for name, change in changes.items()}


def gain_interval(changes: Scores, *, seed: int) -> tuple[float, float]:
    """95 % interval of the mean change over data sets.

    It is from a bootstrap over the samples within each, or, where every change is -1, 0 or 1, Bonett and Price's (2012)
    for paired proportions: of few flipped answers, a bootstrap's is too narrow, and of none it is a point.
    """
    if all(bool((values == values.sign()).all()) for values in changes.values()):
        return _interval_of_flips(list(changes.values()))
    generator = torch.Generator().manual_seed(seed)
    totals = torch.zeros(RESAMPLES, dtype=torch.float64)
    for values in changes.values():
        chosen = torch.randint(len(values), (RESAMPLES, len(values)), generator=generator)
        totals += values[chosen].mean(1) / len(changes)
    low, high = totals.quantile(torch.tensor([0.025, 0.975], dtype=torch.float64)).tolist()
    return low, high


def _interval_of_flips(changes: Sequence[Tensor]) -> tuple[float, float]:
    """Bonett and Price's interval, of the mean over data sets: to each, a change of either sign is added."""
    middle = variance = 0.0
    for values in changes:
        trials = len(values) + 2
        better, worse = (int((values == sign).sum()) + 1 for sign in (1, -1))
        middle += (better - worse) / trials / len(changes)
        variance += (better + worse - (better - worse) ** 2 / trials) / trials**2 / len(changes) ** 2
    half = float(stats.norm.ppf(0.975)) * math.sqrt(variance)
    return max(-1.0, middle - half), min(1.0, middle + half)


@dataclass(frozen=True)
class SignFlips:
    """The mean change compared with those under random signs of the same changes."""

    change: float
    improves: float
    """One-sided p-value of an improvement: how often random signs give as much or more."""
    worsens: float
    """One-sided p-value of a decline: how often random signs give as much or less."""
    null_improved: float
    """How often random signs give a mean above 0."""
    null_tied: float
    null_worsened: float


def sign_flips(changes: Scores, generator: torch.Generator, *, tests: int = 1) -> SignFlips:
    """Sign-flip test. The null hypothesis is that each sample's change is equally likely with the opposite sign.

    It is exact if only few different sums are possible, as with accuracies. Otherwise signs are drawn at random, often
    enough that one of ``tests`` heads can pass a false discovery rate of 5 %.
    """
    flat = torch.cat([change / len(change) / len(changes) for change in changes.values()])
    moved = flat[flat != 0]
    observed = _without_rounding(moved.sum()).item()
    sizes, counts = moved.abs().unique(return_counts=True)
    if math.prod(count + 1 for count in counts.tolist()) <= MOST_EXACT_SUMS:
        sums, shares = _all_sums(sizes, counts)
        floor = 0.0
    else:
        draws = max(FEWEST_DRAWS, math.ceil(2 * tests / 0.05))
        signs = torch.randint(0, 2, (draws, len(moved)), generator=generator).double() * 2 - 1
        sums, shares = signs @ moved, torch.full((draws,), 1 / (draws + 1), dtype=torch.float64)
        floor = 1 / (draws + 1)  # the observed signs count as one more draw
    sums = _without_rounding(sums)
    total = float(shares.sum())
    return SignFlips(
        change=observed,
        improves=min(1.0, floor + float(shares[sums >= observed - TOLERANCE].sum())),
        worsens=min(1.0, floor + float(shares[sums <= observed + TOLERANCE].sum())),
        null_improved=float(shares[sums > 0].sum()) / total,
        null_tied=float(shares[sums == 0].sum()) / total,
        null_worsened=float(shares[sums < 0].sum()) / total,
    )


def _all_sums(sizes: Tensor, counts: Tensor) -> tuple[Tensor, Tensor]:
    """Every possible sum of ``counts`` changes of each of ``sizes`` under random signs, with its probability."""
    sums, shares = torch.zeros(1, dtype=torch.float64), torch.ones(1, dtype=torch.float64)
    for size, count in zip(sizes.tolist(), counts.tolist(), strict=True):
        positive = torch.arange(count + 1, dtype=torch.float64)
        likely = torch.from_numpy(stats.binom.pmf(positive.numpy(), count, 0.5))
        sums = (sums[:, None] + size * (2 * positive - count)).flatten()
        shares = (shares[:, None] * likely).flatten()
    return sums, shares


def _without_rounding(sums: Tensor) -> Tensor:
    """Sums with those that are 0 up to rounding set to 0."""
    return sums.where(sums.abs() > TOLERANCE, 0.0)
