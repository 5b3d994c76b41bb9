"""Numbers by arm and seed, compared with a baseline: values, differences with intervals, and sentences."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from antiphase.base.typed import OPTIONAL
from antiphase.lab.statistics.survival import HazardRatio, Survival, compare_steps, survival
from antiphase.lab.statistics.verdicts import MARGIN
from antiphase.lab.studies.outcomes import Counts, LearnedThreshold, following_sentence, follows, split_sentence

if TYPE_CHECKING:
    from antiphase.lab.statistics.blocks import Blocks  # needs numpy and scipy, which help and mistakes do not load

FLOOR_MARGIN, CEILING = 0.02, 0.99
NATS = "nats a token"
Values = Mapping[str, Sequence[float | None]]
"""Arm to one value for each seed."""


@dataclass(frozen=True)
class Metric:
    """A number by arm and seed, and how to put it into words."""

    name: str
    unit: str
    lower_is_better: bool
    digits: int
    is_share: bool = False
    """A share from 0 to 1, given in percentage points; it has a floor and a ceiling."""

    def spoken(self, value: float, *, signed: bool = False) -> str:
        """The value as it stands in a sentence, without its unit."""
        text = f"{value * (100 if self.is_share else 1):+,.{self.digits}f}"
        if not any(digit in text for digit in "123456789"):
            return text[1:]  # neither +0.0 nor -0.0
        return text if signed else text.removeprefix("+")


@dataclass(frozen=True)
class Summary:
    """Median, mean and range of one arm."""

    median: float | None = None
    mean: float | None = None
    minimum: float | None = None
    maximum: float | None = None
    values: list[float | None] = field(default_factory=list)
    """One for each seed."""

    @classmethod
    def of(cls, values: Sequence[float | None]) -> Summary:
        known = [value for value in values if value is not None]
        if not known:
            return cls(values=list(values))
        return cls(statistics.median(known), statistics.fmean(known), min(known), max(known), list(values))


@dataclass(frozen=True, kw_only=True)
class Difference:
    """An arm minus the baseline."""

    mean: float | None = None
    """None where a seed has no value, or models either learned or did not."""
    interval: list[float] | None = None
    """95 %, over seeds."""
    detectable: float | None = field(default=None, metadata=OPTIONAL)
    """The difference that is seen with a power of 80 % (MDE)."""
    is_equal: bool | None = field(default=None, metadata=OPTIONAL)
    """Of losses, whether two one-sided tests show less than ``MARGIN`` between them."""
    seeds: int = 0
    """Seeds with a value in both arms."""
    values: list[float] = field(default_factory=list)

    @classmethod
    def of(cls, metric: Metric, values: Values, arm: str, baseline: str, blocks: Blocks[str] | None) -> Difference:
        """
        Args:
            blocks: the values of all arms, which may share one residual variance.
        """
        both = zip(values[arm], values[baseline], strict=True)
        paired = [one - other for one, other in both if one is not None and other is not None]
        if len(paired) < len(values[arm]):  # the seeds that have a value are no fair sample
            return cls(seeds=len(paired), values=paired)
        found = None if blocks is None else blocks.difference(arm, baseline)
        if found is None:
            return cls(mean=statistics.fmean(paired) if paired else None, seeds=len(paired), values=paired)
        ends = [min(1.0, max(-1.0, end)) if metric.is_share else end for end in found.interval()]
        return cls(
            mean=found.estimate, interval=ends, detectable=found.detectable,
            is_equal=found.is_within(MARGIN) if metric.unit == NATS else None, seeds=found.blocks, values=paired,
        )  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class ComparedMetric:
    """One metric of several arms."""

    metric: str
    unit: str = ""
    lower_is_better: bool = False
    arms: dict[str, Summary]
    differences: dict[str, Difference] = field(default_factory=dict)
    """The difference of every other arm from the baseline; none of a number of steps."""
    spread: float | None = field(default=None, metadata=OPTIONAL)
    """Residual standard deviation of one value, over all arms."""
    is_pooled: bool | None = field(default=None, metadata=OPTIONAL)
    """Whether intervals rest on it (``statistics.blocks``)."""
    learned: Counts | None = None
    """How many seeds learned, of arms that only counts describe."""
    line: float | None = None
    """The value above which they have."""
    sentence: str = ""
    survival: dict[str, Survival] | None = field(default=None, metadata=OPTIONAL)
    """Of a number of steps, how many seeds of each arm passed, and when."""
    hazard_ratios: dict[str, HazardRatio | None] | None = field(default=None, metadata=OPTIONAL)
    """Of every other arm against the baseline."""


def compare_metric(
    metric: Metric,
    values: Values,
    baseline: str,
    *,
    others: Sequence[str] | None = None,
    threshold: LearnedThreshold | None = None,
    accuracies: Values | None = None,
) -> ComparedMetric | None:
    """Values (arm → one for each seed) against a baseline; None where nothing is known.

    Where a seed has no value in either arm, and where an arm's models either learned or did not, there is neither a
    mean difference nor an interval.

    Args:
        others: arms that are compared; all by default. Residuals are pooled over all arms all the same.
        threshold: above which a model has learned.
        accuracies: which show what models learned, where the values themselves are no accuracy.
    """
    from antiphase.lab.statistics.blocks import Blocks

    if baseline not in values or not any(value is not None for series in values.values() for value in series):
        return None
    others = [arm for arm in values if arm != baseline] if others is None else others
    learned: dict[str, Counts] = {}
    for arm in others:
        pair = {name: values[name] for name in (baseline, arm)}
        if threshold is not None and (counts := _learned(pair, threshold, accuracies)) is not None:
            learned[arm] = counts
    split = {name for counts in learned.values() for name in counts}
    blocks = Blocks.of({arm: series for arm, series in values.items() if arm not in split or arm == baseline})
    differences, sentences = {}, []
    for arm in others:
        differences[arm] = Difference.of(metric, values, arm, baseline, blocks)
        if arm in learned and threshold is not None:
            differences[arm] = Difference(seeds=differences[arm].seeds, values=differences[arm].values)
            sentences.append(
                split_sentence(metric.name, learned[arm], threshold) if accuracies is None
                else following_sentence(metric.name, tuple(learned[arm]))
            )  # fmt: skip
        else:
            sentences.append(_sentence(metric, values, arm, baseline, differences[arm]))
    counts = {arm: count for own in learned.values() for arm, count in own.items()}
    return ComparedMetric(
        metric=metric.name, unit=metric.unit, lower_is_better=metric.lower_is_better,
        arms={arm: Summary.of(values[arm]) for arm in (baseline, *others)}, differences=differences,
        spread=None if blocks is None or len(blocks.arms) < 2 else blocks.spread,
        is_pooled=None if blocks is None else blocks.is_pooled, learned=counts or None,
        line=threshold.at if counts and threshold is not None else None, sentence=" ".join(sentences),
    )  # fmt: skip


def compare_passing(metric: Metric, values: Values, baseline: str, until: int) -> ComparedMetric | None:
    """Steps at which each seed passed a threshold, those that never did censored; None where none did.

    Args:
        until: when all runs ended.
    """
    steps = {arm: [None if value is None else int(value) for value in series] for arm, series in values.items()}
    if not any(step is not None for series in steps.values() for step in series):
        return None
    found = {arm: survival(series, until) for arm, series in steps.items()}
    ratios = {arm: compare_steps(steps[arm], steps[baseline]) for arm in steps if arm != baseline}
    return ComparedMetric(
        metric=metric.name, unit=metric.unit, lower_is_better=metric.lower_is_better,
        arms={arm: Summary.of(series) for arm, series in values.items()}, survival=found, hazard_ratios=ratios,
        sentence=" ".join(_steps_sentence(metric, found, arm, baseline, ratio) for arm, ratio in ratios.items()),
    )  # fmt: skip


def _learned(pair: Values, threshold: LearnedThreshold, accuracies: Values | None) -> Counts | None:
    """How many seeds of two arms learned, where that tells more than a mean of the pair's values."""
    if accuracies is None:
        return threshold.counts(pair)
    if not any(follows(values, accuracies[arm], threshold) for arm, values in pair.items()):
        return None
    return threshold.counts({arm: accuracies[arm] for arm in pair})


def _sentence(metric: Metric, values: Values, arm: str, baseline: str, difference: Difference) -> str:
    subject, mean, interval = _subject(metric), difference.mean, difference.interval
    if mean is None:
        # The seeds that have a value are not a fair sample: an arm that fails more often would look quick.
        known = {name: sum(value is not None for value in values[name]) for name in (arm, baseline)}
        counts = " and ".join(f"{name} in {count} of {len(values[name])} seeds" for name, count in known.items())
        return f"{subject}: {counts}; where a seed has no value there is no paired difference, so no arm is ahead here."
    seeds = difference.seeds
    in_seeds = f"in {'this seed' if seeds == 1 else f'these {seeds} seeds'}"
    if not any(digit in metric.spoken(mean) for digit in "123456789"):
        text = f"{subject}: {arm} and {baseline} are level {in_seeds}"
    else:
        ahead = (mean < 0) == metric.lower_is_better
        leader, other = (arm, baseline) if ahead else (baseline, arm)
        text = f"{subject}: {leader} is ahead of {other} by {metric.spoken(abs(mean))} {metric.unit} {in_seeds}"
    if interval is None or difference.detectable is None:
        return f"{text}; one seed has no interval."
    low, high = (metric.spoken(value) for value in interval)
    includes = "includes" if interval[0] <= 0 <= interval[1] else "excludes"
    equal = f"; no difference beyond ±{MARGIN:g}" if difference.is_equal else ""
    return (
        f"{text} (paired difference {arm} minus {baseline}: 95 % interval over seeds {low} to {high}, which {includes} "
        f"0{equal}; MDE {metric.spoken(difference.detectable)})."
    )


def _steps_sentence(
    metric: Metric, found: Mapping[str, Survival], arm: str, baseline: str, ratio: HazardRatio | None
) -> str:
    counts = " and ".join(
        f"{name} {'never' if found[name].median is None else f'{found[name].median:,}'} "
        f"({found[name].passed} of {found[name].seeds} seeds)"
        for name in (arm, baseline)
    )
    words = f"{_subject(metric)}, median: {counts}"
    return f"{words}; {ratio_words(ratio)}." if ratio is not None else f"{words}."


def ratio_words(ratio: HazardRatio) -> str:
    """``hazard ratio 3.20 (95 % 1.80 to 5.69), log-rank p = 0.001``."""
    low, high = ratio.interval
    return f"hazard ratio {ratio.ratio:.2f} (95 % {low:.2f} to {high:.2f}), log-rank p = {ratio.p:.2g}"


def _subject(metric: Metric) -> str:
    return metric.name[0].upper() + metric.name[1:]
