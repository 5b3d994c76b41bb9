"""Confidence intervals of a mean over seeds that also cover the test sample, and Holm's correction for several of them.

The spread over seeds shows how much training varies, but not how much the result would vary with another test sample.
If all seeds are measured on one sample, its error is common to all values, and the spread over seeds does not show it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy
from scipy import stats

from antiphase.outcomes import Basis

BOOTSTRAP_FROM = 8
"""Number of seeds from which a bootstrap is used; with fewer, there are too few different resamples."""
DRAWS = 4000
ALONE = "Student, wider over seeds alone"
"""The method where a sample would have made the interval narrower."""
CONFIDENCE = 0.95
Array = numpy.ndarray[Any, Any]


@dataclass(frozen=True)
class Sample:
    """What is known about the test sample behind the values, one per seed."""

    variances: Sequence[float]
    """Variance of each seed's value due to its test sample, in the squared unit of the values."""
    size: int
    """Number of samples behind one value."""
    shared: bool
    """Whether all seeds were measured on the same sample; otherwise, each drew its own."""
    known_by: str
    """Source of the variances: ``per sample``, ``counts`` (binomial) or ``standard errors``."""
    scores: Array | None = None
    """(seeds, samples) float64, whose means over samples are the values; None if the records do not contain them."""
    drawn_from: int | None = None
    """Number of samples of which each seed drew its own; None if there are always others."""

    @classmethod
    def of_scores(cls, scores: Sequence[Sequence[float]], *, shared: bool) -> Sample:
        """From scores (seeds, samples) with at least two samples."""
        table = numpy.asarray(scores, dtype=numpy.float64)
        size = table.shape[1]
        return cls(list(table.var(axis=1, ddof=1) / size), size, shared, "per sample", table)

    @classmethod
    def of_counts(cls, shares: Sequence[float], size: int, *, shared: bool, drawn_from: int | None = None) -> Sample:
        """From accuracies, one per seed, each over ``size`` answers.

        One success and one failure are added, so that an accuracy of 0 or 1 has a positive variance.
        """
        raised = [(share * size + 1) / (size + 2) for share in shares]
        variances = [share * (1 - share) / size for share in raised]
        return cls(variances, size, shared, "counts", drawn_from=drawn_from)

    @classmethod
    def of_errors(cls, errors: Sequence[float], size: int, *, shared: bool) -> Sample:
        """From standard errors, one per seed."""
        return cls([error**2 for error in errors], size, shared, "standard errors")

    def minus(self, other: Sample) -> Sample:
        """The sample of the differences of values. Known scores are paired, otherwise the variances are added.

        The latter is conservative if both models do well on the same samples.
        """
        if self.scores is not None and other.scores is not None and self.scores.shape == other.scores.shape:
            return Sample.of_scores(self.scores - other.scores, shared=self.shared)  # type: ignore[arg-type]
        variances = [one + another for one, another in zip(self.variances, other.variances, strict=True)]
        known_by = self.known_by if other.scores is not None else other.known_by
        return Sample(variances, min(self.size, other.size), self.shared, known_by, drawn_from=self.drawn_from)

    def of_seeds(self, places: Sequence[int]) -> Sample:
        """The sample of a subset of seeds, given by their indices."""
        scores = None if self.scores is None else self.scores[list(places)]
        return replace(self, variances=[self.variances[place] for place in places], scores=scores)

    @property
    def has_common_error(self) -> bool:
        """Whether the spread over seeds lacks an error that all seeds have."""
        return self.shared or self.drawn_from is not None

    def variance_of_mean(self) -> float:
        """Variance of the mean over seeds that is due to the sample.

        For a shared sample, counts or standard errors give an upper bound, which assumes perfectly correlated errors.
        Where seeds draw from few samples, it is that of all these, which the seeds have in common.
        """
        seeds = len(self.variances)
        if self.drawn_from is not None:
            return sum(self.variances) / seeds * min(1.0, self.size / self.drawn_from)
        if not self.shared:
            return sum(self.variances) / seeds**2
        if self.scores is None:
            return sum(self.variances) / seeds
        return float(self.scores.mean(axis=0).var(ddof=1)) / self.size


@dataclass(frozen=True)
class SeedInterval:
    """A confidence interval of a mean over seeds, and its components."""

    low: float
    high: float
    basis: Basis


def seeds_interval(values: Sequence[float], sample: Sample | None = None) -> SeedInterval | None:
    """95 % confidence interval of the mean of one value per seed; None for fewer than two values.

    Without a sample, or with one of zero variance, it is Student's interval. The variance of a shared sample is added,
    with Satterthwaite's (1946) degrees of freedom, unless the interval over seeds alone is wider, because a sample can
    bring more degrees of freedom than variance; with ``BOOTSTRAP_FROM`` or more seeds, a bootstrap resamples seeds and,
    crossed with them, samples. If each seed has its own sample, the spread over seeds already includes the samples'
    variance. The interval is then the wider of the one over seeds and the one over samples, because a few seeds that
    agree by chance would claim more precision than their samples allow. In this case the bootstrap does not resample
    within seeds, which would count the samples' variance twice (Davison and Hinkley 1997, section 3.8). Seeds that draw
    their samples from a finite set (``drawn_from``) have its error in common, however many they are; its variance is
    added.

    Args:
        values: paired differences or scores, one per seed.
        sample: the sample of these values, in their order.
    """
    count = len(values)
    if count < 2:
        return None
    mean, spread = float(numpy.mean(values)), float(numpy.var(values, ddof=1)) / count
    of_sample = None if sample is None else sample.variance_of_mean()
    if sample is None or not of_sample:
        return _student(mean, spread, count - 1, "Student", sample, of_sample, spread)
    own = None if sample.shared or sample.size < 2 else _student(
        mean, sum(sample.variances) / count**2, count * (sample.size - 1), "the samples' own", sample, of_sample, spread
    )  # fmt: skip
    whole = spread + of_sample if sample.has_common_error else spread
    degrees = count - 1.0
    if sample.has_common_error:
        parts = spread**2 / (count - 1) + of_sample**2 / max(1, sample.size - 1)
        degrees = whole**2 / parts
    if count < BOOTSTRAP_FROM:
        method = "Student and Satterthwaite" if sample.has_common_error else "Student"
        found = _student(mean, whole, degrees, method, sample, of_sample, spread)
    else:
        found = _bootstrap(numpy.asarray(values, dtype=float), sample, of_sample, spread, degrees)
    ways = [found]
    if own is not None:
        ways.append(own)
    if sample.has_common_error and count < BOOTSTRAP_FROM:
        ways.append(_student(mean, spread, count - 1, ALONE, sample, of_sample, spread))
    return max(ways, key=lambda way: way.high - way.low)


def _student(
    mean: float, variance: float, degrees: float, method: str, sample: Sample | None, of_sample: float | None,
    spread: float,
) -> SeedInterval:  # fmt: skip
    error = math.sqrt(variance)
    half = float(stats.t.ppf((1 + CONFIDENCE) / 2, degrees)) * error
    p = float(2 * stats.t.sf(abs(mean) / error, degrees)) if error else float(mean == 0)
    return SeedInterval(
        mean - half, mean + half, Basis(p, method, *_covered(sample), spread, of_sample, float(degrees))
    )  # fmt: skip


def _covered(sample: Sample | None) -> tuple[str, str | None]:
    if sample is None:
        return "seeds", None
    whose = "one sample for all seeds" if sample.shared else "a sample for each seed"
    return "seeds and sample", f"{sample.known_by}, {whose} of {sample.size}"


def _bootstrap(values: Array, sample: Sample, of_sample: float, spread: float, degrees: float) -> SeedInterval:
    """Percentile bootstrap interval.

    Resamples have one seed fewer than there are, which makes their variance unbiased (Rao and Wu 1988), and the
    percentiles are expanded by Student's quantiles (Hesterberg 2015); plain percentiles are too narrow for ten seeds.
    """
    mean, seeds = float(values.mean()), _weights(len(values), len(values) - 1)  # (D, seeds)
    if sample.shared and sample.scores is not None:
        samples = _weights(sample.size, sample.size)  # (D, samples)
        drawn = ((seeds @ sample.scores) * samples).sum(axis=1) + (mean - float(sample.scores.mean()))
    elif sample.has_common_error:
        drawn = seeds @ values + numpy.random.default_rng(0).normal(0, math.sqrt(of_sample), DRAWS)
    else:
        drawn = seeds @ values
    tail = float(stats.norm.sf(stats.t.ppf((1 + CONFIDENCE) / 2, degrees)))
    low, high = (float(end) for end in numpy.quantile(drawn, [tail, 1 - tail]))
    beyond = min((drawn <= 0).sum(), (drawn >= 0).sum())
    distance = float(stats.norm.isf((beyond + 1) / (DRAWS + 1)))  # from the mean to 0, in standard errors
    if not beyond:  # too far for this number of draws to tell
        distance = max(distance, abs(mean) / float(drawn.std()) if drawn.std() else math.inf)
    p = min(1.0, float(2 * stats.t.sf(distance, degrees))) if mean else 1.0
    return SeedInterval(
        low, high, Basis(p, "hierarchical bootstrap", *_covered(sample), spread, of_sample, degrees)
    )  # fmt: skip


@lru_cache(maxsize=4)
def _weights(count: int, drawn: int) -> Array:
    """Relative frequencies of each of ``count`` items in ``drawn`` draws with replacement: (draws, count)."""
    generator = numpy.random.default_rng([count, drawn])
    return generator.multinomial(drawn, numpy.full(count, 1 / count), size=DRAWS) / drawn


def holm(p_values: Sequence[float]) -> list[float]:
    """Holm's (1979) adjusted p-values in the order of the tests, which control the family-wise error rate.

    Raises:
        ValueError: one of them is NaN, so there is no order.
    """
    if any(map(math.isnan, p_values)):
        raise ValueError("a p-value is NaN; leave a test without one out")
    adjusted, largest = [0.0] * len(p_values), 0.0
    for rank, place in enumerate(sorted(range(len(p_values)), key=lambda place: p_values[place])):
        largest = max(largest, min(1.0, (len(p_values) - rank) * p_values[place]))
        adjusted[place] = largest
    return adjusted
