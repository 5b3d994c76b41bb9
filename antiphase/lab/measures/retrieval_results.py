"""Typed rows of retrieval: scores by cell of the grid of needles, and where attention went."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from antiphase.base.typed import OPTIONAL

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
    """The context's sizes, here and below; a comparison of arms does not repeat them."""
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
    seed: int | None = field(default=None, metadata=OPTIONAL)
    """Of the model, in a comparison of arms."""

    @property
    def is_last(self) -> bool:
        """Whether this is the mean over layers of the map that multiplies the values."""
        return self.layer == "all" and self.map in LAST_MAPS

    def on(self, name: str, measure: str) -> float | None:
        """``signed`` sum, ``share`` or ``contribution`` of the answer or the ``noise``; None if it was not measured."""
        parts = [getattr(self.spans[span], measure) for span in (NOISE if name == "noise" else (name,))]
        return None if None in parts else sum(parts)


@dataclass(frozen=True, kw_only=True)
class Size:
    """Size of a context."""

    needles: int
    queries: int
    """Number of facts asked for."""
    length: int
    """Length in tokens."""


@dataclass(frozen=True, kw_only=True)
class Place(Size):
    """A size, a model, and the depth of the first needle asked for."""

    arm: str = "model"
    """Short name of the model."""
    trained: bool = True
    depth: float | None
    """0 at the start, 1 at the end; None means a random depth."""
    samples: int
    """Number of contexts."""
    guess_rate: float
    """Score of naming as many different numbers of the context at random."""

    @property
    def guess(self) -> float | None:
        """The guess rate; None with one needle, where there is no other number to guess."""
        return None if self.needles == 1 else self.guess_rate


@dataclass(frozen=True)
class CellOutput:
    """The model's output after the first context of a cell."""

    output: str
    answers: list[str]
    """The correct answers."""


@dataclass(frozen=True, kw_only=True)
class CellScore(Place):
    """Scores in one cell of the grid."""

    correct: int
    """Number of contexts with an entirely correct answer; in the synthetic task, that to the first question."""
    by_place: list[float]
    """Share of correct answers by position of the question."""
    right: str = ""
    """0 or 1 for each context."""
    silent: int | None = None
    """Number of outputs without any number; None in the synthetic task."""
    example: CellOutput | None = None
    seed: int | None = field(default=None, metadata=OPTIONAL)
    """Of the model, in a comparison of arms."""


@dataclass(frozen=True, kw_only=True)
class Crossing:
    """Where the accuracy of one model falls to 50 %, needles being anywhere: N50 or L50."""

    arm: str = "model"
    trained: bool = True
    seed: int | None = field(default=None, metadata=OPTIONAL)
    """Of the model, in a comparison of arms."""
    over: Literal["needles", "length"]
    """What grows: the number of needles (N50) or of tokens (L50)."""
    at: int
    """The other one, which stays."""
    queries: int
    sizes: list[int]
    """Those that were measured."""
    samples: int
    """Contexts of all sizes together."""
    value: float | None
    """None if it lies outside the sizes."""
    beyond: Literal["below", "above"] | None
    """On which side."""
    interval: list[float | None]
    """95 % by profile likelihood; None for an end outside the sizes."""


@dataclass(frozen=True, kw_only=True)
class Accuracy(Place):
    """Accuracy in a cell."""

    accuracy: float
    interval: list[float]
    interval_is: str = "Wilson 95 %"
    models: int = 1
