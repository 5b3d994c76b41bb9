"""Every evaluation of a study is a cell, a setting and each sample's scores, kept as soon as it is known.

So a study continues after a kill, and no setting is evaluated twice.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedModel

from antiphase.calibration.changes import Scores
from antiphase.folders.journal import append_line, read_lines
from antiphase.studies.calibrate.measuring import by_mode
from antiphase.tasks.samples import Task
from antiphase.tasks.task_scores import both_scores


@dataclass(frozen=True)
class Cell:
    """Scores of every sample in one setting."""

    metric: Scores
    log_probability: Scores

    def score(self, kind: str) -> Scores:
        """The score that chooses heads and is reported."""
        if kind == "metric":
            return self.metric
        return {name: values.exp() for name, values in self.log_probability.items()}


class Cells:
    """Evaluates settings, and remembers them in a file."""

    def __init__(self, path: Path, mode: str, say: Callable[[int], None]) -> None:
        self.path, self.scores, self.say = path, by_mode(both_scores, mode), say
        self.known = {line["key"]: line for line in read_lines(path, "key")}

    def evaluate(
        self,
        key: str,
        model: PreTrainedModel,
        tasks: Mapping[str, Task],
        setting: Callable[[], AbstractContextManager[None]],
    ) -> Cell:
        """The scores of all samples in a setting.

        Raises:
            ValueError: a score is not a number; it names the sample.
        """
        if key not in self.known:
            line: dict[str, Any] = {"key": key, "metric": {}, "log_probability": {}}
            for name, task in tasks.items():
                with torch.no_grad(), setting():
                    metric, log_probability = self.scores(model, task.samples)
                bad = (~(metric.isfinite() & log_probability.isfinite())).nonzero()[:, 0]
                if len(bad):
                    raise ValueError(f"the score of sample {int(bad[0])} of {name} (from 0) is not a number in {key}")
                line["metric"][name] = metric.tolist()
                line["log_probability"][name] = log_probability.tolist()
            append_line(self.path, line)
            self.known[key] = line
        self.say(len(self.known))
        line = self.known[key]
        return Cell(*({name: torch.tensor(values, dtype=torch.float64) for name, values in line[kind].items()}
                      for kind in ("metric", "log_probability")))  # fmt: skip


def part_of(scores: Scores, numbers: Mapping[str, Sequence[int]]) -> Scores:
    """The scores of some samples, by their numbers in each task."""
    return {name: values[torch.tensor(list(numbers[name]))] for name, values in scores.items()}
