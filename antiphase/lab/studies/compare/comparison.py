"""Finished runs compared over paired seeds: numbers, sentences, and a word on the primary contrast."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from antiphase.lab.settings.presets import CompareSettings, Preset
from antiphase.lab.statistics.survival import detectable_ratio
from antiphase.lab.statistics.verdicts import Verdict, verdict
from antiphase.lab.studies.claims import LOSS_SPREAD, Claim
from antiphase.lab.studies.compare import ComparedRun, Numbers
from antiphase.lab.studies.metrics import (
    NATS,
    ComparedMetric,
    Metric,
    Values,
    compare_metric,
    compare_passing,
    ratio_words,
)
from antiphase.lab.studies.outcomes import LearnedThreshold

ACCURACY = Metric("first-query accuracy", "points", lower_is_better=False, digits=1, is_share=True)
LOSS = Metric("held-out loss", NATS, lower_is_better=True, digits=4)
PAPER_LOSS = 3.062 - 3.087
"""V1 minus softmax at 1.4B parameters (2410.05258, table 6), nats a token."""


def steps_metric(settings: CompareSettings) -> Metric:
    """How soon the threshold was passed."""
    percent = f"{settings.threshold * 100:g} %"
    return Metric(f"steps to {percent} accuracy", "steps", lower_is_better=True, digits=0)


def claim_of(preset: Preset) -> Claim:
    """The question of a comparison: the second arm against the first.

    It is about the loss on text, and on the synthetic task, which is nothing but retrieval, about the steps until it is
    learned.
    """
    settings = preset.compare
    baseline, arm, *_ = settings.arms
    seeds = len(settings.seeds)
    if preset.run.data.source == "text":
        return Claim.of_blocks(
            f"Is the loss of {arm} on held-out text below that of {baseline}?", contrast_name(LOSS, arm, baseline),
            arms=len(settings.arms), blocks=seeds, spread=LOSS_SPREAD,
        )  # fmt: skip
    return Claim(
        question=f"Does {arm} learn to retrieve in fewer steps than {baseline}?",
        contrast=contrast_name(steps_metric(settings), arm, baseline), n=seeds, detectable=detectable_ratio(2 * seeds),
    )  # fmt: skip


def contrast_name(metric: Metric, arm: str, baseline: str) -> str:
    """For example ``held-out loss: differential - softmax``."""
    return f"{metric.name}: {arm} - {baseline}"


def compared(
    settings: CompareSettings, runs: Sequence[ComparedRun], *, guess_rate: float, claim: Claim | None
) -> Numbers:
    """What a record says of finished runs: comparison, further comparison, and a word on the primary contrast.

    Args:
        claim: what was written down before; None: nothing, so there is no word.
    """
    baseline = next(iter(settings.arms), "")
    threshold = LearnedThreshold.of(guess_rate, settings.threshold)
    by_key = {(run.arm, run.seed): run for run in runs}

    def of_runs(read: Callable[[ComparedRun], float | None]) -> dict[str, list[float | None]]:
        return {
            arm: [read(by_key.get((arm, seed), ComparedRun(arm=arm))) for seed in settings.seeds]
            for arm in settings.arms
        }

    accuracies, losses = of_runs(lambda run: run.final.accuracy), of_runs(lambda run: run.final.loss)
    passes = of_runs(lambda run: run.passes)
    until = max((run.curve[-1].step for run in runs if run.curve), default=0)  # none where a run diverged at once

    def entries(first: str, others: Sequence[str] | None) -> list[ComparedMetric]:
        among = [first, *others] if others is not None else list(settings.arms)
        steps: Values = {arm: passes[arm] for arm in among}
        found = [
            compare_metric(ACCURACY, accuracies, first, others=others, threshold=threshold),
            compare_metric(LOSS, losses, first, others=others, threshold=threshold, accuracies=accuracies),
        ]
        if any(value != 0 for series in steps.values() for value in series):  # else every run began above it
            found.append(compare_passing(steps_metric(settings), steps, first, until))
        return [entry for entry in found if entry is not None]

    whole = entries(baseline, None)
    return Numbers(
        comparison=whole,
        further_comparison=[entry for arm, other in settings.also.items() for entry in entries(other, [arm])],
        verdict=verdict_words(settings, whole, claim),
    )


def verdict_words(settings: CompareSettings, found: Sequence[ComparedMetric], claim: Claim | None) -> str:
    """Effect, interval, n, MDE and one of three words on the primary contrast, where it was written down before."""
    if claim is None:
        return "No verdict: the primary contrast was not written into the folder before the runs."
    baseline, *others = settings.arms
    for metric in (LOSS, ACCURACY, steps_metric(settings)):
        for arm in others:
            entry = next((entry for entry in found if entry.metric == metric.name), None)
            if contrast_name(metric, arm, baseline) == claim.contrast and entry is not None:
                return f"Primary contrast, {claim.contrast}: {_judged(metric, entry, arm, baseline)}."
    return f"Primary contrast, {claim.contrast}: n = {len(settings.seeds)} seeds: cannot tell (no seed has a value)."


def _judged(metric: Metric, entry: ComparedMetric, arm: str, baseline: str) -> str:
    seeds = f"n = {len(entry.arms[arm].values)} seeds"
    if entry.hazard_ratios is not None:
        ratio = entry.hazard_ratios[arm]
        if ratio is None:
            return f"{seeds}: {Verdict('cannot tell', 'the seeds do not differ')}"
        return f"{ratio_words(ratio)}, {seeds}, MDE {ratio.detectable:.2f}: {ratio.word()}"
    difference = entry.differences[arm]
    if difference.mean is None or difference.interval is None or difference.detectable is None:
        return f"{seeds}: {Verdict('cannot tell', 'there is no interval')}"
    paper = PAPER_LOSS if metric is LOSS and (arm, baseline) == ("differential", "softmax") else None
    low, high = difference.interval
    word = verdict(
        (low, high), lower_is_better=metric.lower_is_better, detectable=difference.detectable, paper=paper
    )  # fmt: skip
    effect, *ends = (metric.spoken(value, signed=True) for value in (difference.mean, low, high))
    beside = "" if paper is None else f", the paper {metric.spoken(paper, signed=True)} (1.4B)"
    return (
        f"{effect} {metric.unit} (95 % {' to '.join(ends)}), {seeds}, MDE {metric.spoken(difference.detectable)}"
        f"{beside}: {word}"
    )
