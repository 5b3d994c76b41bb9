"""Activation outliers (2410.05258, section 3.7, table 5): the largest attention logits and hidden states, and tails."""

from __future__ import annotations

from dataclasses import dataclass

from antiphase.lab.measures.result import Result
from antiphase.lab.measures.settings import TextSettings


@dataclass(frozen=True, kw_only=True)
class OutlierSettings(TextSettings):
    """The largest attention logits and hidden states of every layer, with medians and kurtosis.

    Example: [bold]antiphase evaluate outliers MODEL --data book.txt --output runs/outliers[/]
    """


SETTINGS = OutlierSettings


@dataclass(frozen=True)
class Sizes:
    """Magnitudes of one kind in one layer, or in all layers."""

    what: str
    """``attention logits`` or ``hidden states``."""
    layer: str
    """The layer's number, or ``all``."""
    top: dict[str, float]
    """The largest magnitudes by rank; ``1`` is the largest of all."""
    median: float
    """Median, within 1 %."""
    kurtosis: float | None = None
    """Fourth standardized moment, 3 for a normal distribution (2306.12929); for ``all``, the mean over layers."""
    channel_kurtosis: float | None = None
    """For hidden states, E[s⁴] / E[s²]² over the d channels, where s is a channel's root mean square over tokens
    (2405.19279): 1 if all are equal, d if only one is nonzero.
    """


@dataclass(frozen=True, kw_only=True)
class Outliers(Result):
    """Result of ``antiphase evaluate outliers``."""

    sequences: int
    rows: list[Sizes]


RESULT = Outliers
