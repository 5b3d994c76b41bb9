"""Loss by position over long texts (2410.05258, section 3.2, figure 4), which shows whether longer contexts help."""

from __future__ import annotations

from dataclasses import dataclass

from antiphase.lab.measures.result import ComparedResult
from antiphase.lab.measures.settings import ComparedSettings, TextSettings


@dataclass(frozen=True, kw_only=True)
class LongContextSettings(ComparedSettings, TextSettings):
    """Loss by context length, and how much a window's own beginning lowers the loss at its end.

    Example: [bold]antiphase evaluate long-context MODEL --data book.txt --length 4096 --output runs/long[/]
    """


SETTINGS = LongContextSettings


@dataclass(frozen=True)
class LossAt:
    """Cumulative loss up to a position."""

    position: int
    loss: float
    """Mean -log p in nats over the positions up to this one."""
    interval: list[float] | None = None
    """95 % interval over windows."""
    bits_per_byte: float | None = None


@dataclass(frozen=True)
class Tail:
    """Loss on the last eighth of each window with its own context, a short context and another window's context."""

    tokens: int
    loss: float
    foreign_loss: float
    gain: float
    """Loss with another window's context minus loss with its own."""
    gain_interval: list[float] | None
    little_loss: float
    """Loss with as many tokens of its own context as the tail has."""
    context_gain: float
    """Loss with the short context minus loss with the full one."""
    context_gain_interval: list[float] | None
    context_gains: list[float]
    """The same for each window."""


@dataclass(frozen=True)
class LongContext(ComparedResult):
    """Result of ``antiphase evaluate long-context``."""

    windows: int
    length: int
    curve: list[LossAt]
    tail: Tail | None = None
    """None with a single window, because there is no other window's context."""


RESULT = LongContext
