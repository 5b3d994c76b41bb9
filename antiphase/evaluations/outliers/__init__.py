"""Activation outliers (2410.05258, section 3.7, table 5): the largest attention logits and hidden states, and how heavy
their tails are.
"""

from __future__ import annotations

from dataclasses import dataclass

from antiphase.evaluations.result import Result
from antiphase.evaluations.settings import TextSettings


@dataclass(frozen=True, kw_only=True)
class OutlierSettings(TextSettings):
    """The largest attention logits and hidden states of every layer, with medians and kurtosis.

    Example: [bold]antiphase evaluate outliers MODEL --data book.txt --output runs/outliers[/]
    """


SETTINGS = OutlierSettings


@dataclass(frozen=True)
class Sizes:
    """Sizes of one kind in one layer, or in all of them."""

    what: str
    """``attention logits`` or ``hidden states``."""
    layer: str
    """Its number, or ``all``."""
    top: dict[str, float]
    """The largest by place, ``1`` the largest of all."""
    median: float
    """Within 1 %."""
    kurtosis: float | None = None
    """Fourth standardized moment of all values, with their signs: 3 of normal ones (2306.12929); in ``all`` the mean
    over layers."""
    channel_kurtosis: float | None = None
    """Of hidden states, E[s⁴] / E[s²]² over the d channels, s a channel's root mean square over tokens (2405.19279):
    1 where all are equal, d where there is one alone."""


@dataclass(frozen=True, kw_only=True)
class Outliers(Result):
    """What ``antiphase evaluate outliers`` finds."""

    sequences: int | None = None
    """Older records do not say."""
    rows: list[Sizes]


RESULT = Outliers
