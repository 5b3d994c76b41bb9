"""Measures without and with the chosen heads, with intervals and tests over the samples that judge."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from statistics import fmean
from typing import Any

import torch
from torch import Tensor

from antiphase.calibration.changes import RESAMPLES, Scores, gain_interval, mean_of
from antiphase.lab.scoring.priors import (
    area_under_curve,
    balanced_accuracy,
    content_free_corrected,
    mean_centred,
    right,
)
from antiphase.lab.statistics.intervals import mcnemar, paired_interval
from antiphase.lab.studies.calibrate.cells import Graded, LabelScores
from antiphase.lab.studies.calibrate.confirm import PRIMARY

ACCURACY, AUC = "accuracy", "AUC"
Pair = tuple[LabelScores, LabelScores]
"""Without and with the chosen heads."""
MEASURES: dict[str, Callable[[LabelScores], Tensor]] = {
    PRIMARY: LabelScores.centred,
    ACCURACY: lambda found: right(found.scores, found.targets),
    "content-free accuracy": lambda found: right(content_free_corrected(found.scores, found.free), found.targets),
}
"""Whether each sample is answered right."""
SETS: dict[str, Callable[[Tensor, Tensor], float | None]] = {
    "balanced accuracy": balanced_accuracy, AUC: area_under_curve,
}  # fmt: skip
"""Measures of a whole set."""


def centred_log_probabilities(cell: Graded) -> Scores:
    """Log probability of each sample's right label after mean-centring over its task, nats."""
    return {
        name: mean_centred(found.scores).log_softmax(-1).gather(1, found.targets[:, None])[:, 0]
        for name, found in cell.labels.items()
    }


def outcomes(
    pairs: Mapping[str, Pair], pooled: Sequence[str], *, seed: int
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """The primary outcome, the one that is tested, and all secondary ones, as ``Outcome`` reads them.

    Args:
        pairs: by task.
        pooled: tasks that the primary measure is about.
    """
    own = [pairs[name] for name in pooled]
    has_free = all(len(plain.free) for plain, _ in own)
    primary = _of_samples(PRIMARY, None, own)
    primary["p"] = mcnemar(primary["better"], primary["worse"])
    secondary = [
        _of_samples(name, None, own) for name in MEASURES if name != PRIMARY and (has_free or "free" not in name)
    ]
    for name in SETS:
        secondary += _of_sets(name, None, own, seed)
    for task, pair in pairs.items():
        secondary += [_of_samples(name, task, [pair]) for name in (PRIMARY, ACCURACY)]
        secondary += _of_sets(AUC, task, [pair], seed)
    return primary, secondary


def _of_samples(measure: str, task: str | None, pairs: Sequence[Pair]) -> dict[str, Any]:
    """A measure that each sample passes or not."""
    before, after = (torch.cat([MEASURES[measure](pair[place]) for pair in pairs]) for place in (0, 1))
    better, worse = int((after > before).sum()), int((after < before).sum())
    gain, interval = paired_interval(better, worse, len(before))
    return {
        "measure": measure, "task": task, "samples": len(before), "plain": float(before.mean()),
        "calibrated": float(after.mean()), "gain": gain, "gain_interval": list(interval), "better": better,
        "worse": worse,
    }  # fmt: skip


def _of_sets(measure: str, task: str | None, pairs: Sequence[Pair], seed: int) -> list[dict[str, Any]]:
    """A measure of a set, in the mean over tasks, with an interval by resampling samples; no row where no task has it.

    Tasks with one label alone do not count, nor samples drawn again in which a task has only one.
    """
    generator = torch.Generator().manual_seed(seed)
    of = SETS[measure]
    pairs = [pair for pair in pairs if all(of(one.scores, one.targets) is not None for one in pair)]
    if not pairs:
        return []
    everything = [torch.arange(len(first.targets)) for first, _ in pairs]
    plain, calibrated = (_mean_over_tasks(of, pairs, place, everything) for place in (0, 1))
    assert plain is not None
    assert calibrated is not None
    gains = []
    for _ in range(RESAMPLES):
        drawn = [torch.randint(len(first.targets), (len(first.targets),), generator=generator) for first, _ in pairs]
        before, after = (_mean_over_tasks(of, pairs, place, drawn) for place in (0, 1))
        if before is not None and after is not None:
            gains.append(after - before)
    gain = calibrated - plain
    low, high = (
        torch.tensor(gains, dtype=torch.float64).quantile(torch.tensor([0.025, 0.975], dtype=torch.float64)).tolist()
    )
    return [{
        "measure": measure, "task": task, "samples": sum(len(first.targets) for first, _ in pairs), "plain": plain,
        "calibrated": calibrated, "gain": gain, "gain_interval": [low, high],
    }]  # fmt: skip


def _mean_over_tasks(
    measure: Callable[[Tensor, Tensor], float | None], pairs: Sequence[Pair], place: int, rows: Sequence[Tensor]
) -> float | None:
    """Of these rows of each task; None if one has no value."""
    found = []
    for pair, chosen in zip(pairs, rows, strict=True):
        value = measure(pair[place].scores[chosen], pair[place].targets[chosen])
        if value is None:
            return None
        found.append(value)
    return fmean(found)


def likelihoods(kept: Scores | None, alone: Sequence[Scores], *, seed: int) -> list[dict[str, Any]]:
    """The rows of ``Likelihood``.

    Args:
        kept: changes with the kept heads, on samples that judge; None if there are none.
        alone: changes of every head alone, on samples that choose.
    """
    each = {name: torch.stack([changes[name] for changes in alone]).mean(0) for name in alone[0]}
    of = {**({"kept heads": kept} if kept else {}), "a head alone": each}
    rows: list[dict[str, Any]] = [
        {"of": name, "samples": _samples(changes), "value": mean_of(changes),
         "interval": list(gain_interval(changes, seed=seed))} for name, changes in of.items()
    ]  # fmt: skip
    share = fmean(mean_of(changes) > 0 for changes in alone)
    return [*rows, {"of": "share that gains", "samples": _samples(each), "value": share, "interval": None}]


def _samples(scores: Scores) -> int:
    return sum(map(len, scores.values()))


def pooled_centred(cell: Graded) -> float:
    """Mean-centred accuracy pooled over the samples of all tasks."""
    return float(torch.cat([found.centred() for found in cell.labels.values()]).mean())


def finding(
    primary: Mapping[str, Any], accuracy: Mapping[str, Any], p_random: float | None, heads: int, *, alpha: float = 0.05
) -> str:
    """What the primary outcome says, and beside a gain whether ``accuracy``, the plain one, falls."""
    if not heads:
        return "No head's calibration alone raised the score that chooses, so there is nothing to judge."
    low, high = (f"{100 * end:+.1f}" for end in primary["gain_interval"])
    words = (
        f"{heads} calibrated heads change the mean-centred accuracy by {100 * primary['gain']:+.2f} points "
        f"({low} to {high}, p = {primary['p']:.3g}, {primary['samples']:,} samples)"
    )
    if primary["p"] >= alpha:
        return f"No effect is shown: {words}."
    if primary["gain"] < 0:
        return f"Calibration harms: {words}."
    if accuracy["gain_interval"][1] < 0:
        low, high = (f"{100 * end:+.1f}" for end in accuracy["gain_interval"])
        words += f"; plain accuracy falls: {100 * accuracy['gain']:+.2f} points ({low} to {high})"
    if p_random is None or p_random >= alpha:
        return (
            f"The model reads better, but random heads are not shown to gain less, so the choice of heads is not shown "
            f"to matter: {words}."
        )
    return f"The model reads better, and random heads gain less: {words}."
