"""Differences of scores, sample by sample: which of them are more than rounding, intervals, and what chance gives."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from scipy import stats
from torch import Tensor

Scores = Mapping[str, Tensor]
"""By data set, one number a sample, float64."""
RESAMPLES = 4000
"""Of a bootstrap."""
FLIPS = 4000
"""Random choices of signs, at least."""
EXACT_SUMS = 2**16
"""Sums of signed changes that are listed one by one; of more, some are drawn."""
NOTHING = 1e-12
"""Sums of scores that differ by less are equal."""


def mean_of(values: Scores) -> float:
    """Mean over data sets of their means: each counts alike."""
    return math.fsum(v.mean().item() for v in values.values()) / len(values)


def rounding_of(first: Scores, second: Scores) -> float:
    """By how much scores of the same thing differ, computed in two ways: twice the largest difference.

    Right and wrong answers do not round: where all scores are 0 or 1 it is 0, and an answer that flips is a change.
    """
    both = torch.cat([*first.values(), *second.values()])
    if bool(((both == 0) | (both == 1)).all()):
        return 0.0
    differences = torch.cat([(second[name] - values).abs() for name, values in first.items()])
    return 2 * float(differences.max())


def changes_of(after: Scores, before: Scores, *, rounding: float = 0.0) -> dict[str, Tensor]:
    """After minus before; differences that rounding would explain are 0."""
    changes = {name: values - before[name] for name, values in after.items()}
    return {name: change.where(change.abs() > rounding, 0.0) for name, change in changes.items()}


def gain_interval(changes: Scores, *, seed: int) -> tuple[float, float]:
    """95 % interval of the mean change over data sets: a bootstrap over the samples of each of them."""
    generator = torch.Generator().manual_seed(seed)
    totals = torch.zeros(RESAMPLES, dtype=torch.float64)
    for values in changes.values():
        chosen = torch.randint(len(values), (RESAMPLES, len(values)), generator=generator)
        totals += values[chosen].mean(1) / len(changes)
    low, high = totals.quantile(torch.tensor([0.025, 0.975], dtype=torch.float64)).tolist()
    return low, high


@dataclass(frozen=True)
class SignFlips:
    """The mean change beside those that the same changes with other signs would give."""

    change: float
    improves: float
    """One-sided p: how often flipped signs give as much or more."""
    worsens: float
    """As much or less."""
    null_improved: float
    """How often flipped signs give a mean above 0."""
    null_tied: float
    null_worsened: float


def sign_flips(changes: Scores, generator: torch.Generator, *, tests: int = 1) -> SignFlips:
    """The null of no effect: each sample's change could as well have had the other sign.

    Exact where few different sums can come about, as with right and wrong answers; else by drawn signs, enough of them
    that one of ``tests`` heads can pass a false discovery rate of 5 %.
    """
    flat = torch.cat([change / len(change) / len(changes) for change in changes.values()])
    moved = flat[flat != 0]
    observed = _settled(moved.sum()).item()
    sizes, counts = moved.abs().unique(return_counts=True)
    if math.prod(count + 1 for count in counts.tolist()) <= EXACT_SUMS:
        sums, shares = _all_sums(sizes, counts)
        floor = 0.0
    else:
        draws = max(FLIPS, math.ceil(2 * tests / 0.05))
        signs = torch.randint(0, 2, (draws, len(moved)), generator=generator).double() * 2 - 1
        sums, shares = signs @ moved, torch.full((draws,), 1 / (draws + 1), dtype=torch.float64)
        floor = 1 / (draws + 1)  # the observed signs are one more draw
    sums = _settled(sums)
    total = float(shares.sum())
    return SignFlips(
        change=observed,
        improves=min(1.0, floor + float(shares[sums >= observed - NOTHING].sum())),
        worsens=min(1.0, floor + float(shares[sums <= observed + NOTHING].sum())),
        null_improved=float(shares[sums > 0].sum()) / total,
        null_tied=float(shares[sums == 0].sum()) / total,
        null_worsened=float(shares[sums < 0].sum()) / total,
    )


def _all_sums(sizes: Tensor, counts: Tensor) -> tuple[Tensor, Tensor]:
    """Every sum that signs can give to ``counts`` changes of each of ``sizes``, and how likely it is."""
    sums, shares = torch.zeros(1, dtype=torch.float64), torch.ones(1, dtype=torch.float64)
    for size, count in zip(sizes.tolist(), counts.tolist(), strict=True):
        positive = torch.arange(count + 1, dtype=torch.float64)
        likely = torch.from_numpy(stats.binom.pmf(positive.numpy(), count, 0.5))
        sums = (sums[:, None] + size * (2 * positive - count)).flatten()
        shares = (shares[:, None] * likely).flatten()
    return sums, shares


def _settled(sums: Tensor) -> Tensor:
    """Sums that are 0 but for rounding, as 0."""
    return sums.where(sums.abs() > NOTHING, 0.0)
