"""Sentences from numbers: which arm is ahead, by how much, and whether that supports a claim of the paper."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from antiphase.outcomes import (
    NOT_SEEN,
    ComparedMetric,
    Counts,
    Difference,
    InFamily,
    LearnedThreshold,
    Summary,
    following_sentence,
    follows,
    split_sentence,
)
from antiphase.uncertainty.intervals import mcnemar
from antiphase.uncertainty.seeds import Sample, SeedInterval, holm, seeds_interval

SEEDS_FOR_A_VERDICT = 5
ALPHA = 0.05
FLOOR_MARGIN, CEILING = 0.02, 0.99


@dataclass(frozen=True)
class Metric:
    """A number by arm and seed, and how to put it into words."""

    name: str
    unit: str
    lower_is_better: bool
    digits: int
    is_share: bool = False
    """A share from 0 to 1, given in percentage points; it has a floor and a ceiling."""

    def within(self, found: SeedInterval) -> list[float]:
        """The ends of an interval of differences, cut at what a difference of shares can be."""
        ends = [found.low, found.high]
        return [min(1.0, max(-1.0, end)) for end in ends] if self.is_share else ends

    def spoken(self, value: float) -> str:
        """The value as it stands in a sentence, without its unit."""
        text = f"{value * (100 if self.is_share else 1):,.{self.digits}f}"
        return text.removeprefix("-") if float(text.replace(",", "")) == 0 else text  # never -0.0


Values = Mapping[str, Sequence[float | None]]
"""Arm to one value for each seed."""


def compare_metric(
    metric: Metric,
    values: Values,
    baseline: str,
    *,
    samples: Mapping[str, Sample] | None = None,
    threshold: LearnedThreshold | None = None,
    accuracies: Values | None = None,
) -> ComparedMetric | None:
    """Paired values (arm → one for each seed) against a baseline; None where nothing is known.

    A seed without a value in either arm (a threshold never passed) counts in neither, and the sentence says so. Where
    an arm's models either learned or did not, there are counts and neither a mean difference nor an interval.

    Args:
        samples: of each arm's values, for intervals that cover the test sample too.
        threshold: above which a model has learned.
        accuracies: which show what models learned, where the values themselves are no accuracy.
    """
    if baseline not in values or not any(value is not None for series in values.values() for value in series):
        return None
    reached = {arm: sum(value is not None for value in series) for arm, series in values.items()}
    counts: Counts = {}
    differences, sentences = {}, []
    for arm, series in values.items():
        if arm == baseline:
            continue
        both = zip(series, values[baseline], strict=True)
        paired = [a - b for a, b in both if a is not None and b is not None]
        pair = {name: values[name] for name in (baseline, arm)}
        learned = None if threshold is None else _learned(pair, threshold, accuracies)
        whole = len(paired) == len(series)  # else the seeds that have a value are no fair sample
        found = None
        if learned is None and whole:
            found = seeds_interval(paired, _sample_of_difference(samples or {}, arm, baseline))
        differences[arm] = Difference(
            mean=statistics.fmean(paired) if paired and whole and learned is None else None,
            interval=None if found is None else metric.within(found), seeds=len(paired), values=paired,
            interval_is=None if found is None else found.basis,
        )  # fmt: skip
        if learned is None or threshold is None:
            sentences.append(_sentence(metric, arm, baseline, differences[arm], reached=reached, total=len(series)))
            continue
        counts.update(learned)
        sentences.append(
            split_sentence(metric.name, learned, threshold) if accuracies is None
            else following_sentence(metric.name, tuple(learned))
        )  # fmt: skip
    return ComparedMetric(
        metric=metric.name, unit=metric.unit, lower_is_better=metric.lower_is_better,
        arms={arm: Summary.of(series) for arm, series in values.items()}, differences=differences,
        learned=counts or None, line=threshold.at if counts and threshold is not None else None,
        sentence=" ".join(sentences),
    )  # fmt: skip


def _learned(pair: Values, threshold: LearnedThreshold, accuracies: Values | None) -> Counts | None:
    """How many seeds of two arms learned, where that tells more than a mean of the pair's values."""
    if accuracies is None:
        return threshold.counts(pair)
    if not any(follows(values, accuracies[arm], threshold) for arm, values in pair.items()):
        return None
    return threshold.counts({arm: accuracies[arm] for arm in pair})


def _sample_of_difference(samples: Mapping[str, Sample], arm: str, baseline: str) -> Sample | None:
    """The test sample behind paired differences; None where that of an arm is not known."""
    return samples[arm].minus(samples[baseline]) if {arm, baseline} <= samples.keys() else None


def _sentence(
    metric: Metric, arm: str, baseline: str, difference: Difference, *, reached: Mapping[str, int], total: int
) -> str:
    seeds, mean, interval, basis = difference.seeds, difference.mean, difference.interval, difference.interval_is
    subject = metric.name[0].upper() + metric.name[1:]
    if seeds < total or mean is None:
        # The seeds that have a value are not a fair sample: an arm that fails more often would look quick.
        counts = " and ".join(f"{name} in {reached[name]} of {total} seeds" for name in (arm, baseline))
        return f"{subject}: {counts}; where a seed has no value there is no paired difference, so no arm is ahead here."

    in_seeds = f"in {'this seed' if seeds == 1 else f'these {seeds} seeds'}"
    if float(metric.spoken(abs(mean)).replace(",", "")) == 0:
        text = f"{subject}: {arm} and {baseline} are level {in_seeds}"
    else:
        ahead = (mean < 0) == metric.lower_is_better
        leader, other = (arm, baseline) if ahead else (baseline, arm)
        text = f"{subject}: {leader} is ahead of {other} by {metric.spoken(abs(mean))} {metric.unit} {in_seeds}"
    if interval is None or basis is None:
        return f"{text}; one seed has no interval."
    low, high = (metric.spoken(value) for value in interval)
    includes = interval[0] <= 0 <= interval[1]
    meaning = "which includes 0" if includes else "which excludes 0"
    covered = basis.covers.replace("sample", "test sample")
    return (
        f"{text} (paired difference {arm} minus {baseline}: 95 % interval over {covered} {low} to {high}, {meaning})."
    )


def verdict(
    differences: Sequence[float],
    *,
    lower_is_better: bool,
    mean: float,
    floor: float | None = None,
    interval: Sequence[float] | None = None,
    own_scale: bool = False,
) -> str:
    """One of "reproduced", "contradicted", "not seen at this scale", "inconclusive", "not testable".

    The claim is that the arm beats the baseline.

    Args:
        differences: arm minus baseline, one for each seed.
        mean: of the measured share over both arms, where there is a floor; where both are on the floor or the ceiling,
            there is no room for a difference. A rule about the baseline alone would favour one arm.
        floor: the guess rate of an accuracy; None for a loss.
        interval: of the mean difference; None: Student's over seeds.
        own_scale: whether the models are as large and as long trained as those that the claim was made of.
    """
    if len(differences) < SEEDS_FOR_A_VERDICT:
        return "inconclusive"
    if floor is not None and not floor + FLOOR_MARGIN < mean < CEILING:
        return "not testable"
    if interval is None:
        found = seeds_interval(differences)
        assert found is not None
        interval = (found.low, found.high)
    low, high = (-interval[1], -interval[0]) if lower_is_better else interval
    return _word(better=low > 0, worse=high < 0, own_scale=own_scale)


def learned_verdict(
    values: Values, arm: str, baseline: str, threshold: LearnedThreshold, *, own_scale: bool = False
) -> tuple[str, float]:
    """The verdict on models that either learned or did not, and its p: McNemar's exact test over seeds.

    Fewer than six seeds in which one arm alone learned can never show a difference by it.
    """
    pairs = [(one or 0.0, two or 0.0) for one, two in zip(values[arm], values[baseline], strict=True)]
    better = sum(one > threshold.at >= two for one, two in pairs)
    worse = sum(two > threshold.at >= one for one, two in pairs)
    p = mcnemar(better, worse)
    clear = len(pairs) >= SEEDS_FOR_A_VERDICT and p < ALPHA
    return _word(better=clear and better > worse, worse=clear and worse > better, own_scale=own_scale), p


def _word(*, better: bool, worse: bool, own_scale: bool) -> str:
    return "reproduced" if better else "inconclusive" if not worse else "contradicted" if own_scale else NOT_SEEN


def in_family(tests: Sequence[tuple[str, float | None]]) -> list[InFamily]:
    """Correct the verdicts of one report, given as words and p. A verdict without p was no test and does not count."""
    places = [place for place, (_, p) in enumerate(tests) if p is not None]
    adjusted = dict(zip(places, holm([p for _, p in tests if p is not None]), strict=True))
    decided = ("reproduced", "contradicted", NOT_SEEN)
    return [
        InFamily(
            p, adjusted.get(place),
            "inconclusive" if word in decided and adjusted.get(place, 0.0) >= ALPHA else word,
        )
        for place, (word, p) in enumerate(tests)
    ]  # fmt: skip
