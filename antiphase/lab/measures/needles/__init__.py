"""Multi-needle retrieval (2410.05258, section 3.3; table 2, figure 5): questions about facts in a context."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from antiphase.lab.measures.result import Result
from antiphase.lab.measures.retrieval_results import Accuracy, CellScore, Crossing, Size
from antiphase.lab.measures.settings import ContextSettings, chat_flag


@dataclass(frozen=True, kw_only=True)
class NeedlesSettings(ContextSettings):
    """Hide numbers of cities in essays or books, ask for some of them, and score the first numbers of the output.

    Example: [bold]antiphase evaluate needles runs/one --data essays --needles 8 --length 512,1024 --output runs/n[/]
    """

    chat_template: bool = chat_flag()


SETTINGS = NeedlesSettings


@dataclass(frozen=True)
class AtLength:
    """Accuracy over the fixed depths at one length."""

    length: int
    accuracy: float
    """Mean."""
    spread: float
    """Largest minus smallest accuracy."""


@dataclass(frozen=True, kw_only=True)
class Trend:
    """How uniform a model's accuracy is over depths, and how it changes with length."""

    arm: str
    needles: int
    queries: int
    lengths: list[AtLength]
    median_spread: float
    slope: float | None
    """Change of accuracy per doubling of the length, by least squares over fixed depths; None for one length."""
    slope_interval: list[float | None] | None
    """95 % interval."""


@dataclass(frozen=True, kw_only=True)
class PairedDifference(Size):
    """Paired difference between a model and the first one on the same contexts."""

    arm: str
    baseline: str
    depth: Literal["fixed"] | float | None
    """``fixed`` means all fixed depths together."""
    samples: int
    better: int
    """Number of contexts that only this model answered correctly."""
    worse: int
    """Number of contexts that only the first model answered correctly."""
    difference: float
    interval: list[float]
    """95 % interval of Bonett and Price."""


@dataclass(frozen=True, kw_only=True)
class Needles(Result):
    """Result of ``antiphase evaluate needles``."""

    models: list[str] = field(default_factory=list)
    """Names of the models; the others are compared with the first."""
    task: str | None = None
    """``text`` or ``symbols``."""
    guess_rate: float
    """Guess rate in the first cell."""
    cells: list[CellScore]
    summary: list[Accuracy]
    crossings: list[Crossing] = field(default_factory=list)
    trends: list[Trend] = field(default_factory=list)
    paired: list[PairedDifference] = field(default_factory=list)


RESULT = Needles
