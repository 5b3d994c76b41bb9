"""Loss by position over long texts (2410.05258, section 3.2, figure 4): does a longer context help?"""

from __future__ import annotations

from dataclasses import dataclass

from antiphase.evaluations.result import Result
from antiphase.evaluations.settings import TextSettings


@dataclass(frozen=True, kw_only=True)
class LongContextSettings(TextSettings):
    """Loss by context length, and how much a window's own beginning lowers the loss at its end.

    Example: [bold]antiphase evaluate long-context MODEL --data book.txt --length 4096 --output runs/long[/]
    """


SETTINGS = LongContextSettings


@dataclass(frozen=True)
class Point:
    """Cumulative loss up to a position."""

    position: int
    loss: float
    """Mean of -log p in nats over positions up to there."""
    interval: list[float] | None = None
    """95 % over windows."""
    bits_per_byte: float | None = None


@dataclass(frozen=True)
class Tail:
    """The last eighth of each window with its own, with little, and with a foreign context."""

    tokens: int
    loss: float
    foreign_loss: float
    gain: float
    """Foreign minus own."""
    gain_interval: list[float] | None = None
    little_loss: float | None = None
    """Behind as many tokens of its own text and no more; older records have none."""
    context_gain: float | None = None
    """Little minus own."""
    context_gain_interval: list[float] | None = None
    context_gains: list[float] | None = None
    """Of each window."""


@dataclass(frozen=True)
class LongContext(Result):
    """What ``antiphase evaluate long-context`` finds."""

    windows: int
    length: int
    curve: list[Point]
    tail: Tail | None = None
    """None with one window, which lends no other one its beginning."""


RESULT = LongContext
