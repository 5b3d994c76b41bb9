"""Every evaluation is a cell, a setting and each sample's scores, kept as soon as it is known.

So work goes on after a kill, and no setting is evaluated twice.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from antiphase.base.folders.journal import append_line, read_lines
from antiphase.calibration.changes import Scores
from antiphase.lab.scoring.priors import label_measures, mean_centred, right
from antiphase.lab.scoring.task_scores import all_scores
from antiphase.lab.text.tasks.samples import Task


@dataclass(frozen=True)
class LabelScores:
    """Log scores of a classification's labels."""

    scores: Tensor
    """(samples, labels) float64."""
    free: Tensor
    """(prompts without content, labels) float64; there may be no such prompt."""
    targets: Tensor
    """(samples,) int64."""

    def part(self, numbers: Sequence[int]) -> LabelScores:
        """Those of some samples."""
        chosen = torch.tensor(list(numbers), dtype=torch.int64)
        return LabelScores(self.scores[chosen], self.free, self.targets[chosen])

    def centred(self) -> Tensor:
        """(samples,) float64: whether each is answered right after mean-centring over these samples."""
        return right(mean_centred(self.scores), self.targets)

    def measures(self) -> dict[str, float | None]:
        """As ``settings.Measures`` reads them."""
        return label_measures(self.scores, self.targets, self.free if len(self.free) else None)


@dataclass(frozen=True)
class Graded:
    """Scores of every sample in one setting."""

    metric: Scores
    log_probability: Scores
    labels: Mapping[str, LabelScores] = field(default_factory=dict)
    """Of classifications."""

    def score(self, kind: str) -> Scores:
        """The score that chooses heads and is told."""
        if kind == "metric":
            return self.metric
        return {name: values.exp() for name, values in self.log_probability.items()}

    def measures(self, numbers: Mapping[str, Sequence[int]] | None = None) -> dict[str, dict[str, float | None]]:
        """Of each classification, on some samples or all."""
        return {
            name: (found if numbers is None else found.part(numbers[name])).measures()
            for name, found in self.labels.items()
        }

    def centred_accuracy(self, numbers: Mapping[str, Sequence[int]] | None = None) -> float:
        """Mean-centred accuracy on some samples or all, in the mean over classifications."""
        parts = (found if numbers is None else found.part(numbers[name]) for name, found in self.labels.items())
        return fmean(float(part.centred().mean()) for part in parts)


def scored(model: PreTrainedModel, tasks: Mapping[str, Task], *, stepwise: bool, where: str) -> dict[str, Any]:
    """Scores of all samples by kind and task, as ``cell_of`` reads them.

    Raises:
        ValueError: a score is not a number; it names the sample, and ``where``.
    """
    found: dict[str, Any] = {"metric": {}, "log_probability": {}, "labels": {}, "content_free": {}}
    for name, task in tasks.items():
        scores = all_scores(model, task.samples, stepwise=stepwise)
        bad = (~(scores.metric.isfinite() & scores.log_probability.isfinite())).nonzero()[:, 0]
        if len(bad):
            raise ValueError(f"the score of sample {int(bad[0])} of {name} (from 0) is not a number in {where}")
        found["metric"][name] = scores.metric.tolist()
        found["log_probability"][name] = scores.log_probability.tolist()
        if task.labels:
            free = all_scores(model, task.content_free, stepwise=stepwise).options if task.content_free else []
            found["labels"][name] = [options.tolist() for options in scores.options]
            found["content_free"][name] = [options.tolist() for options in free]
    return found


def cell_of(found: Mapping[str, Any], tasks: Mapping[str, Task]) -> Graded:
    """What ``scored`` found, as tensors."""
    metric, log_probability = (
        {name: torch.tensor(values, dtype=torch.float64) for name, values in found[kind].items()}
        for kind in ("metric", "log_probability")
    )
    labels = {
        name: LabelScores(
            torch.tensor(values, dtype=torch.float64),
            torch.tensor(found["content_free"][name], dtype=torch.float64).view(-1, len(tasks[name].labels)),
            torch.tensor([sample.target for sample in tasks[name].samples]),
        )
        for name, values in found["labels"].items()
    }
    return Graded(metric, log_probability, labels)


class Cells:
    """Evaluates settings, and remembers them in a file."""

    def __init__(self, path: Path, mode: str, say: Callable[[int], None]) -> None:
        self.path, self.stepwise, self.say = path, mode == "paper", say
        self.known = {line["key"]: line for line in read_lines(path, "key")}

    def evaluate(
        self,
        key: str,
        model: PreTrainedModel,
        tasks: Mapping[str, Task],
        setting: Callable[[], AbstractContextManager[None]],
    ) -> Graded:
        """The scores of all samples in a setting.

        Raises:
            ValueError: a score is not a number; it names the sample.
        """
        if key not in self.known:
            with setting():
                found = scored(model, tasks, stepwise=self.stepwise, where=key)
            self.keep(key, found)
        self.say(len(self.known))
        return cell_of(self.known[key], tasks)

    def keep(self, key: str, found: Mapping[str, Any]) -> None:
        """Remember what ``scored`` found."""
        self.known[key] = {**found, "key": key}
        append_line(self.path, self.known[key])


def part_of(scores: Scores, numbers: Mapping[str, Sequence[int]]) -> Scores:
    """The scores of some samples, by their numbers in each task."""
    return {name: values[torch.tensor(list(numbers[name]))] for name, values in scores.items()}
