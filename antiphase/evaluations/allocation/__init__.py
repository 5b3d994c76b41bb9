"""Where attention goes at the end of a question, and what it does there (2410.05258, section 3.3, table 3)."""

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
"""What multiplies the values."""


@dataclass(frozen=True, kw_only=True)
class OnSpan:
    """What goes to one span of the context."""

    share: float
    """Of Σ|A| of a row of attention."""
    signed: float
    """Sum of the weights."""
    contribution: float | None = None
    """Share of the layer's output along the whole of it; None for a map whose weights multiply no values."""
    contribution_norm: float | None = None


@dataclass(frozen=True, kw_only=True)
class AnswerToNoise:
    """Ratios of the means; None without noise."""

    share: float | None
    signed: float | None


@dataclass(frozen=True)
class Knockout:
    """Change of the log-probability of the right answer, in nats, once some tokens are hidden."""

    change: float
    interval: list[float] | None
    """95 %, Student's, over sequences."""


@dataclass(frozen=True, kw_only=True)
class MapAllocation:
    """Of one map of one layer, mean over heads and sequences."""

    arm: str = "model"
    """Short name of the model."""
    trained: bool = True
    needles: int | None = None
    """Sizes are those of the context; older records of symbols do not have them."""
    queries: int | None = None
    length: int | None = None
    depth: float | None = None
    """Of the answer; None: anywhere."""
    samples: int | None = None
    layer: Literal["all"] | int = "all"
    """``all``: the mean over layers."""
    map: str
    """``softmax``; ``difference``, which multiplies the values, ``first`` and ``second``."""
    spans: dict[str, OnSpan]
    answer_to_noise: AnswerToNoise | None = None
    knockout: dict[str, Knockout | None] | None = None
    """Without the ``answer``, or as many tokens of ``filler``; None for a map whose weights multiply no values."""

    @property
    def is_last(self) -> bool:
        """Whether this is the mean over layers of what multiplies the values."""
        return self.layer == "all" and self.map in LAST_MAPS

    def on(self, name: str, measure: str) -> float | None:
        """``signed`` sum, ``share`` or ``contribution`` of the answer or the ``noise``; None: it was not measured."""
        parts = [getattr(self.spans[span], measure) for span in (NOISE if name == "noise" else (name,))]
        return None if None in parts else sum(parts)


@dataclass(frozen=True, kw_only=True)
class Allocation(Result):
    """What ``antiphase evaluate allocation`` finds."""

    models: list[str] = field(default_factory=list)
    task: str | None = None
    """``text`` or ``symbols``."""
    guess_rate: float | None = None
    rows: list[MapAllocation]

    def last(self) -> Iterable[MapAllocation]:
        """Means over layers of what multiplies the values."""
        return [row for row in self.rows if row.is_last]


RESULT = Allocation
