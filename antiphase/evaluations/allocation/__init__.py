"""Attention allocation at the end of a question, and its effects (2410.05258, section 3.3, table 3)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Literal

from antiphase.errors import InputError
from antiphase.evaluations.result import Result
from antiphase.evaluations.settings import ContextSettings
from antiphase.flags import flags_of


@dataclass(frozen=True, kw_only=True)
class AllocationSettings(ContextSettings):
    """Measure where attention goes at the end of the question (answer, other needles, filler), by depth of the answer.

    Example: [bold]antiphase evaluate allocation runs/one --data essays --needles 8 --output runs/allocation[/]
    """

    def check(self) -> None:
        super().check()
        for name in ("needles", "queries", "lengths"):
            if len(listed := getattr(self, name)) > 1:
                flag = flags_of(self)[name].name
                raise InputError(f"{flag} takes one number for allocation, got {', '.join(map(str, listed))}")


SETTINGS = AllocationSettings

NOISE = ("other_needles", "filler")
LAST_MAPS = ("softmax", "difference")
"""Maps that multiply the values."""


@dataclass(frozen=True, kw_only=True)
class OnSpan:
    """Attention to one span of the context, and its contribution."""

    share: float
    """Share of Σ|A| of a row of attention."""
    signed: float
    """Sum of the weights."""
    contribution: float | None = None
    """Share of the layer's output, projected on the whole; None for a map whose weights multiply no values."""
    contribution_norm: float | None = None


@dataclass(frozen=True, kw_only=True)
class AnswerToNoise:
    """Ratios of the means; None if there is no noise."""

    share: float | None
    signed: float | None


@dataclass(frozen=True)
class Knockout:
    """Change of the log-probability of the correct answer, in nats, if some tokens are hidden."""

    change: float
    interval: list[float] | None
    """Student's 95 % interval over sequences."""


@dataclass(frozen=True, kw_only=True)
class MapAllocation:
    """Allocation of one map of one layer, mean over heads and sequences."""

    arm: str = "model"
    """Short name of the model."""
    trained: bool = True
    needles: int | None = None
    """The context's sizes, here and below; older records of the synthetic task lack them."""
    queries: int | None = None
    length: int | None = None
    depth: float | None = None
    """Depth of the answer; None means a random depth."""
    samples: int | None = None
    layer: Literal["all"] | int = "all"
    """``all`` means the mean over layers."""
    map: str
    """``softmax``; or ``first``, ``second`` and ``difference``, which multiplies the values."""
    spans: dict[str, OnSpan]
    answer_to_noise: AnswerToNoise | None = None
    knockout: dict[str, Knockout | None] | None = None
    """Without the ``answer``, or as many ``filler`` tokens; None for a map whose weights multiply no values."""

    @property
    def is_last(self) -> bool:
        """Whether this is the mean over layers of the map that multiplies the values."""
        return self.layer == "all" and self.map in LAST_MAPS

    def on(self, name: str, measure: str) -> float | None:
        """``signed`` sum, ``share`` or ``contribution`` of the answer or the ``noise``; None if it was not measured."""
        parts = [getattr(self.spans[span], measure) for span in (NOISE if name == "noise" else (name,))]
        return None if None in parts else sum(parts)


@dataclass(frozen=True, kw_only=True)
class Allocation(Result):
    """Result of ``antiphase evaluate allocation``."""

    models: list[str] = field(default_factory=list)
    task: str | None = None
    """``text`` or ``symbols``."""
    guess_rate: float | None = None
    rows: list[MapAllocation]

    def last(self) -> Iterable[MapAllocation]:
        """Means over layers of the maps that multiply the values."""
        return [row for row in self.rows if row.is_last]


RESULT = Allocation
