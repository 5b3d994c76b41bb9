"""Losses over sizes and steps: ``antiphase scaling``."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from antiphase.lab.measures.result import Result
from antiphase.lab.settings.flags import flag
from antiphase.lab.studies.settings import StudySettings, preset_flag
from antiphase.lab.training.divergence import Divergence


@dataclass(frozen=True, kw_only=True)
class ScalingSettings(StudySettings):
    """Train every arm at several sizes and numbers of steps, and fit scaling laws to the losses.

    Example: [bold]antiphase scaling --data book.txt --widths 64,96,128,192 --output runs/scaling[/]
    """

    widths: Sequence[int] = flag(
        "Hidden sizes, e.g. 64,96,128,192.", default=(), separated=True, allows_duplicates=True
    )
    steps: Sequence[int] = flag(
        "Numbers of steps, e.g. 200,400,800,1600.", default=(), separated=True, allows_duplicates=True
    )
    preset: str = preset_flag("half-hour")


SETTINGS = ScalingSettings
LARGEST_LOG = 100.0
"""The largest size that is accepted."""


@dataclass(frozen=True, kw_only=True)
class ScaledRun:
    """A run of some size and number of steps."""

    arm: str
    seed: int
    width: int
    layers: int
    steps: int
    parameters: int
    non_embedding_parameters: int
    tokens: int
    loss: float | None
    """At the end, nats per held-out token; None of a run that diverged."""
    accuracy: float | None
    diverged: Divergence | None = None


@dataclass(frozen=True)
class Law:
    """L(x) = floor + scale · x^(-exponent)."""

    floor: float
    scale: float
    exponent: float

    def __call__(self, x: float) -> float:
        """Loss at x."""
        return self.floor + self.scale * x**-self.exponent

    def inverse(self, loss: float) -> float | None:
        """The x that has this loss; None where the law never gets so low."""
        if loss <= self.floor:
            return None
        log = math.log(self.scale / (loss - self.floor)) / self.exponent
        return math.exp(log) if log < LARGEST_LOG else None


@dataclass(frozen=True)
class FittedLaw(Law):
    """Through all seeds of an arm."""

    intervals: dict[str, list[float] | None] = field(default_factory=dict)
    """95 % of floor and exponent over the laws of single seeds; None for one seed."""


@dataclass(frozen=True)
class EqualLoss:
    """What an arm needs for the loss that the baseline has at its largest size."""

    loss: float
    baseline: float
    """The baseline's largest x."""
    needed: float | None
    """The arm's x for the same loss; None where a seed's law never gets so low, or is none."""
    ratio: float | None
    """Needed / baseline; below 1 the arm needs less."""
    interval: list[float] | None
    """95 % of the ratio over seeds; None for one seed."""


@dataclass(frozen=True)
class Point:
    """Losses of an arm's seeds at one x."""

    arm: str
    x: float
    losses: list[float | None]


@dataclass(frozen=True, kw_only=True)
class Ladder:
    """Losses over one axis, and what they say."""

    axis: str
    points: list[Point]
    laws: dict[str, FittedLaw] = field(default_factory=dict)
    equal_loss: dict[str, EqualLoss] = field(default_factory=dict)
    """What each arm but the first needs for the first one's best loss."""
    why_no_law: str | None = None
    why_no_equal_loss: str | None = None


@dataclass(frozen=True)
class Scaling(Result):
    """What ``antiphase scaling`` finds."""

    arms: list[str]
    runs: list[ScaledRun]
    ladders: list[Ladder]


RESULT = Scaling
