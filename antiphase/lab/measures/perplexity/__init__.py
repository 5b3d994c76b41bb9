"""Held-out loss and perplexity."""

from __future__ import annotations

from dataclasses import dataclass

from antiphase.lab.measures.result import ComparedResult
from antiphase.lab.measures.settings import ComparedSettings, TextSettings


@dataclass(frozen=True, kw_only=True)
class PerplexitySettings(ComparedSettings, TextSettings):
    """Loss and perplexity on held-out text.

    Example: [bold]antiphase evaluate perplexity runs/demo/softmax-seed0 --output runs/perplexity[/]
    """


SETTINGS = PerplexitySettings


@dataclass(frozen=True)
class HeldOutLoss:
    """Loss on some sequences."""

    sequences: int
    loss: float
    """Nats per predicted token."""
    perplexity: float
    tokens: int
    """Number of predicted tokens."""


@dataclass(frozen=True)
class Perplexity(ComparedResult):
    """Result of ``antiphase evaluate perplexity``."""

    rows: list[HeldOutLoss]


RESULT = Perplexity
