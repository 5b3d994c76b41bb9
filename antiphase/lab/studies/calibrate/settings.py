"""Flags and parts of results that search, application and study share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from antiphase.base.errors import InputError
from antiphase.lab.measures.settings import TaskSettings
from antiphase.lab.settings.flags import flag


@dataclass(frozen=True, kw_only=True)
class SampleSettings(TaskSettings):
    """Settings of a command that asks a model samples of tasks."""

    samples: int = flag("Number of samples from each task.", default=200, least=2)
    shots: int | None = flag("Examples before each prompt; default: as in the task file.", default=None, least=0)

    def check(self) -> None:
        super().check()
        if len(set(self.tasks)) < len(self.tasks):
            raise InputError("--task must not name a file twice")


def score_flag(help: str) -> Any:
    """The field of the score that chooses heads."""
    return flag(help, default="metric", choices=("metric", "probability"))


@dataclass(frozen=True, kw_only=True)
class ChoiceSettings(SampleSettings):
    """Settings of a command that chooses heads; alpha, beta and mode are checked by the plan made from them."""

    layers: Sequence[int] | None = flag(
        "Layers to search, counted from 0, e.g. 2-9 or 2,4,6; default: all.",
        default=None, separated=True, ranges=True, allows_duplicates=True,
    )  # fmt: skip
    held_out: float = flag("Share of the samples held out to measure the gain.", default=0.5)
    alpha: float = flag("A key is a sink if it receives more than alpha / N of the attention.", default=5.0)
    beta: float = flag("Factor on weights on sinks.", default=0.4)
    mode: str = flag("Which queries determine the sinks: paper, prompt or running.", default="prompt")

    def check(self) -> None:
        if not self.tasks:
            raise InputError("--task is missing: a table with texts and labels, or a YAML file that names its columns")
        super().check()
        if not 0 < self.held_out < 1:
            raise InputError(f"--held-out must lie between 0 and 1, got {self.held_out}")


@dataclass(frozen=True, kw_only=True)
class Standing:
    """How a model does a task without calibration."""

    task: str
    metric: str
    samples: int
    score: float
    """Mean of the metric."""
    chance: float
    """The best of guessing, the commonest answer, the longest and the shortest."""
    above_chance: bool
    interval: list[float] | None = None
    """95 %, Wilson; None where chance is 0."""


@dataclass(frozen=True, kw_only=True)
class Measures:
    """A classification in one setting, by measures that a moved prior of the labels changes or does not change."""

    accuracy: float
    balanced_accuracy: float
    """Mean over labels of the share of their samples answered right."""
    auc: float | None
    """Area under the curve; of more than two labels the mean of each against the rest."""
    mean_centred_accuracy: float
    """Accuracy after each label's mean log score over the set is subtracted."""
    content_free_accuracy: float | None = None
    """Accuracy after division by the labels' probabilities in prompts without content."""


@dataclass(frozen=True, kw_only=True)
class ControlEffect:
    """What a setting gains on the samples that chose no head."""

    setting: str
    heads: int
    gain: float
    """Of the score that chose the heads."""
    gain_interval: list[float]
    """95 %, over samples; see ``calibration.changes.gain_interval``."""
    improved: int | None = None
    """Samples whose score rose."""
    worsened: int | None = None
    """Samples whose score fell."""
    p: float | None = None
    """That as many rise as fall: McNemar's exact test, or for scores that are no answers the sign test."""
    mean_centred_gain: float | None = None
    """Of the mean-centred accuracy, in the mean over classifications."""
