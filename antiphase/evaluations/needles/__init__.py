"""Multi-needle retrieval (2410.05258, section 3.3; table 2, figure 5): are facts in a context found when asked for?"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from antiphase.evaluations.result import Result
from antiphase.evaluations.settings import ContextSettings


@dataclass(frozen=True, kw_only=True)
class NeedlesSettings(ContextSettings):
    """Hide numbers of cities in essays or books, ask for some of them, and score the first numbers of the output.

    Example: [bold]antiphase evaluate needles runs/one --data essays --needles 8 --length 512,1024 --output runs/n[/]
    """


SETTINGS = NeedlesSettings


@dataclass(frozen=True, kw_only=True)
class Size:
    """Of a context."""

    needles: int
    queries: int = 0
    """Facts asked for; older records do not say."""
    length: int
    """Tokens."""


@dataclass(frozen=True, kw_only=True)
class Place(Size):
    """A size, and where the first asked needle lies, for one model."""

    arm: str = "model"
    """Short name of the model."""
    trained: bool = True
    depth: float | None
    """0 at the start, 1 at the end; None: anywhere."""
    samples: int
    """Contexts."""
    guess_rate: float
    """Of naming as many different numbers of the context."""


@dataclass(frozen=True)
class Example:
    """What was written after the first context of a cell."""

    output: str
    answers: list[str]
    """What was right."""


@dataclass(frozen=True, kw_only=True)
class CellScore(Place):
    """One cell of the grid."""

    correct: int
    """Contexts after which the whole answer was right; of symbols, the answer to the first question."""
    by_place: list[float]
    """Share of right answers at each place of the questions."""
    right: str = ""
    """0 or 1 for each context."""
    silent: int | None = None
    """Outputs without any number; None of symbols."""
    example: Example | None = None


@dataclass(frozen=True, kw_only=True)
class Accuracy(Place):
    """Share of right answers in a cell."""

    accuracy: float
    interval: list[float]
    interval_is: str = "Wilson 95 %"
    models: int = 1


@dataclass(frozen=True)
class AtLength:
    """Over the fixed depths at one length."""

    length: int
    accuracy: float
    """Mean."""
    spread: float
    """Largest minus smallest."""


@dataclass(frozen=True, kw_only=True)
class Trend:
    """How even a model's score is over depths, and how it changes with length."""

    arm: str
    needles: int
    queries: int
    lengths: list[AtLength]
    median_spread: float
    slope: float | None
    """Share per doubling of the length, least squares over all contexts at fixed depths; None for one length."""
    slope_interval: list[float | None] | None
    """95 %."""


@dataclass(frozen=True, kw_only=True)
class Pair(Size):
    """A model minus the first one on the same contexts."""

    arm: str
    baseline: str
    depth: Literal["fixed"] | float | None
    """``fixed``: all fixed depths together."""
    samples: int
    better: int
    """Contexts that only this model got right."""
    worse: int
    """Contexts that only the first one got right."""
    difference: float
    interval: list[float]
    """95 %, Bonett and Price's."""


@dataclass(frozen=True, kw_only=True)
class Needles(Result):
    """What ``antiphase evaluate needles`` finds."""

    models: list[str] = field(default_factory=list)
    """The first is what others are compared with."""
    task: str | None = None
    """``text`` or ``symbols``."""
    guess_rate: float
    """In the first cell."""
    cells: list[CellScore]
    summary: list[Accuracy]
    trends: list[Trend] = field(default_factory=list)
    paired: list[Pair] = field(default_factory=list)


RESULT = Needles
