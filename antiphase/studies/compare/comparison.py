"""Finished runs compared over paired seeds: numbers, sentences, and a verdict on each claim registered before."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from statistics import fmean
from typing import Any

from antiphase.config import CompareSettings, Preset
from antiphase.outcomes import ComparedMetric, InFamily, LearnedThreshold
from antiphase.report.tables import present
from antiphase.studies.compare import ComparedRun, Numbers
from antiphase.studies.registered_claims import UNREGISTERED, Registration
from antiphase.studies.verdicts import (
    SEEDS_FOR_A_VERDICT,
    Metric,
    Values,
    compare_metric,
    in_family,
    learned_verdict,
    verdict,
)
from antiphase.uncertainty.seeds import Sample
from antiphase.uncertainty.survival import log_rank, survival

Series = dict[str, list[float | None]]
ACCURACY = Metric("first-query accuracy", "points", lower_is_better=False, digits=1, is_share=True)
LOSS = Metric("held-out loss", "nats a token", lower_is_better=True, digits=4)


def steps_metric(settings: CompareSettings) -> Metric:
    """How soon the threshold was passed."""
    percent = f"{settings.threshold * 100:g} %"
    return Metric(f"steps to {percent} accuracy", "steps", lower_is_better=True, digits=0)


def claims_of(preset: Preset) -> list[dict[str, Any]]:
    """The claims that a comparison may judge, the primary measure first: each arm beats the first in each number.

    Primary is the loss on text, and on the synthetic task, which is nothing but retrieval, its accuracy.
    """
    baseline, *others = preset.compare.arms
    metrics = [LOSS, ACCURACY, steps_metric(preset.compare)]
    if preset.run.data.source != "text":
        metrics = [ACCURACY, LOSS, metrics[2]]
    return [
        {
            "name": claim_name(metric.name, arm), "metric": metric.name, "arm": arm, "baseline": baseline,
            "better": "lower" if metric.lower_is_better else "higher",
        }
        for metric in metrics
        for arm in others
    ]  # fmt: skip


def claim_name(metric: str, arm: str) -> str:
    """The name of a claim."""
    return f"{metric}, {arm}"


def compared(
    settings: CompareSettings,
    runs: Sequence[ComparedRun],
    *,
    guess_rate: float,
    curve_samples: int,
    registered: Registration | None,
) -> Numbers:
    """What a record says of finished runs: comparison, further comparison, verdicts, Holm's correction, and words.

    Args:
        curve_samples: sequences behind an accuracy, the same for all runs.
        registered: what was claimed before; None: nothing, so there is no verdict.
    """
    arms, seeds = list(settings.arms), settings.seeds
    threshold = LearnedThreshold.of(guess_rate, settings.threshold)
    measured = _measured(settings, runs, curve_samples)
    accuracies = next(series for metric, series, _ in measured if metric is ACCURACY)
    found: list[ComparedMetric] = []
    words = []
    for metric, series, samples in measured:
        entry = _entry(metric, series, arms[0], samples, threshold, accuracies)
        if entry is None:
            continue
        found.append(replace(entry, **_passing(series, settings, runs)) if metric.unit == "steps" else entry)
        for arm, difference in entry.differences.items():
            word, p = _verdict(metric, series, arm, arms[0], entry, threshold, guess_rate)
            if registered is None or claim_name(metric.name, arm) not in registered.claims:
                word, p = UNREGISTERED, None
            elif difference.seeds < len(seeds) and not entry.learned:
                word, p = "inconclusive", None  # a seed that never passed may have been the slowest: none is left out
            words.append((metric.name, arm, word, p))
    family = in_family([(word, p) for *_, word, p in words])
    verdicts: dict[str, dict[str, str]] = {}
    corrected: dict[str, dict[str, InFamily]] = {}
    for (metric_name, arm, word, _), row in zip(words, family, strict=True):
        verdicts.setdefault(metric_name, {})[arm] = word
        corrected.setdefault(metric_name, {})[arm] = row
    return Numbers(
        comparison=found,
        further_comparison=[
            entry
            for metric, series, samples in measured
            for arm, other in settings.also.items()
            if (
                entry := _entry(
                    metric, {name: series[name] for name in (arm, other)}, other, samples, threshold, accuracies
                )
            )
        ],
        verdicts=verdicts,
        holm=corrected,
        verdict=verdict_words(len(seeds), verdicts, corrected, is_registered=registered is not None),
    )


def _entry(
    metric: Metric,
    series: Series,
    baseline: str,
    samples: Mapping[str, Sample],
    threshold: LearnedThreshold,
    accuracies: Values,
) -> ComparedMetric | None:
    return compare_metric(
        metric, series, baseline, samples=samples, threshold=None if metric.unit == "steps" else threshold,
        accuracies=None if metric is ACCURACY else accuracies,
    )  # fmt: skip


def _verdict(
    metric: Metric,
    series: Series,
    arm: str,
    baseline: str,
    entry: ComparedMetric,
    threshold: LearnedThreshold,
    guess_rate: float,
) -> tuple[str, float | None]:
    """The word, and p where there was a test."""
    difference = entry.differences[arm]
    if metric is ACCURACY and difference.mean is None and difference.seeds == len(series[arm]):
        return learned_verdict(series, arm, baseline, threshold)
    if difference.interval_is is None or difference.seeds < SEEDS_FOR_A_VERDICT:
        return "inconclusive", None
    word = verdict(
        difference.values, lower_is_better=metric.lower_is_better, interval=difference.interval,
        mean=fmean(entry.arms[one].mean or 0.0 for one in (baseline, arm)),
        floor=guess_rate if metric.is_share else None,
    )  # fmt: skip
    return word, None if word == "not testable" else difference.interval_is.p


def _passing(series: Series, settings: CompareSettings, runs: Sequence[ComparedRun]) -> dict[str, Any]:
    """How many seeds of each arm passed and when, those that never did censored at the end of training."""
    until = max(run.curve[-1].step for run in runs if run.curve)  # it is empty where a run diverged at once
    steps = {arm: [None if value is None else int(value) for value in values] for arm, values in series.items()}
    baseline = next(iter(settings.arms))
    return {
        "survival": {arm: survival(passed, until) for arm, passed in steps.items()},
        "log_rank_p": {arm: log_rank(steps[arm], steps[baseline], until) for arm in steps if arm != baseline},
    }


def _measured(
    settings: CompareSettings, runs: Sequence[ComparedRun], curve_samples: int
) -> list[tuple[Metric, Series, dict[str, Sample]]]:
    """What is compared: arm → one value for each seed, and what is known of its sample.

    A threshold above which every run began distinguishes nothing.
    """
    by_key = {(run.arm, run.seed): run for run in runs}

    def of_runs(read: Callable[[ComparedRun], float | None]) -> Series:
        return {arm: [read(by_key[arm, seed]) for seed in settings.seeds] for arm in settings.arms}

    accuracies, losses = of_runs(lambda run: run.final.accuracy), of_runs(lambda run: run.final.loss)
    passes = of_runs(lambda run: run.passes)
    counted = {
        arm: Sample.of_counts([value for value in values if value is not None], curve_samples, shared=True)
        for arm, values in accuracies.items()
        if None not in values
    }
    sequences = {}
    for arm, values in losses.items():
        scores = [present(by_key[arm, seed].by_sequence or []) for seed in settings.seeds]
        if None not in values and len(scores[0]) > 1 and len(set(map(len, scores))) == 1:
            sequences[arm] = Sample.of_scores(scores, shared=True)
    found: list[tuple[Metric, Series, dict[str, Sample]]] = [(ACCURACY, accuracies, counted), (LOSS, losses, sequences)]
    if not all(value == 0 for values in passes.values() for value in values):
        found.append((steps_metric(settings), passes, {}))
    return found


def verdict_words(
    seeds: int,
    verdicts: Mapping[str, Mapping[str, str]],
    corrected: Mapping[str, Mapping[str, InFamily]],
    *,
    is_registered: bool = True,
) -> str:
    """All verdicts in one sentence, each with p, and with the verdict that would hold under Holm's correction."""
    if seeds < SEEDS_FOR_A_VERDICT:
        return (
            f"{'One seed is' if seeds == 1 else f'{seeds} seeds are'} no verdict: a claim rests on at least "
            f"{SEEDS_FOR_A_VERDICT} paired seeds. Read this as an observation about these runs."
        )
    if not is_registered:
        return "No verdict: the claims were not written into the folder before the runs."
    parts = []
    for metric, arms in verdicts.items():
        for arm, word in arms.items():
            row = corrected[metric][arm]
            holm = "" if row.p is None else f" (p = {row.p:.2g}; by Holm {row.p_holm:.2g}: {row.verdict_holm})"
            parts.append(f"{claim_name(metric, arm)}: {word}{holm}")
    return "Verdicts on the claim that the arm beats the baseline. " + "; ".join(parts) + "."
