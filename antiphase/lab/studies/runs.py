"""The result of a training run, as in its record."""

from __future__ import annotations

from dataclasses import dataclass, field

from antiphase.base.records import Record
from antiphase.base.typed import OPTIONAL
from antiphase.lab.measures.result import result_in
from antiphase.lab.training.divergence import Divergence
from antiphase.lab.training.stages import Stage


@dataclass(frozen=True, kw_only=True)
class CurvePoint:
    """An evaluation during training."""

    step: int
    train_loss: float | None = None
    """Loss of the last step, nats per predicted token."""
    loss: float | None = None
    """Held-out loss, nats per predicted token."""
    accuracy: float | None = None
    """Share of first questions answered right."""
    page_length: int | None = field(default=None, metadata=OPTIONAL)
    """Tokens of a retrieval sequence until here, while it is shorter than a row."""
    page_accuracy: float | None = field(default=None, metadata=OPTIONAL)
    """``accuracy`` in sequences of this length."""


@dataclass(frozen=True, kw_only=True)
class Final:
    """Results at the end; None of a run that diverged."""

    loss: float | None = None
    accuracy: float | None = None


@dataclass(frozen=True, kw_only=True)
class Best:
    """The evaluation with the highest accuracy."""

    accuracy: float
    step: int


@dataclass(frozen=True, kw_only=True)
class RunResult:
    """The results of a run, at its end or so far."""

    folder: str | None = None
    seed: int | None = None
    learning_rate: float | None = None
    parameters: int = 0
    attention_only: int = 0
    """Parameters that a softmax model of this size lacks: λ, head norms, gates, sinks."""
    tokens: int = 0
    """Number of tokens trained on."""
    tokens_per_second: float | None = None
    seconds: float | None = None
    peak_memory: int | None = None
    """Largest resident set of the (first) process in bytes, from its start to the run's last checkpoint."""
    peak_gpu_memory: int | None = None
    """Largest number of bytes that torch allocated on the GPU of the (first) process."""
    precision: str | None = None
    """Dtype of matrix products."""
    final: Final = field(default_factory=Final)
    best: Best | None = None
    curve: list[CurvePoint] = field(default_factory=list)
    stages: list[Stage] = field(default_factory=list)
    """When retrieval sequences of each length began; empty without ``data.lengths``."""
    lambdas: list[float | None] | None = None
    """By layer; None where the attention has no λ."""
    gradient_norms: list[float | None] | None = None
    """By layer, at the last logged step."""
    diverged: Divergence | None = None

    @property
    def is_diverged(self) -> bool:
        """Whether the run reached numbers that are not finite: it has no model."""
        return self.final.loss is None

    def first_passing(self, threshold: float) -> int | None:
        """Step of the first evaluation whose accuracy is above the threshold; None where there is none."""
        passing = (point.step for point in self.curve if point.accuracy is not None and point.accuracy > threshold)
        return next(passing, None)


def run_of(record: Record) -> RunResult:
    """The run of a record of kind "train".

    Raises:
        InputError: invalid contents.
    """
    return result_in(record.values, RunResult)
