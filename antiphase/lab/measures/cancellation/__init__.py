"""Similarity of the two maps of a head, the share of their mass that subtraction removes, and sizes of heads."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from antiphase.lab.measures.result import Result
from antiphase.lab.measures.settings import RetrievalTextSettings
from antiphase.lab.settings.flags import flag


@dataclass(frozen=True, kw_only=True)
class CancellationSettings(RetrievalTextSettings):
    """Measure what the two maps of a head have in common, how much subtraction removes, and how large heads are.

    Example: [bold]antiphase evaluate cancellation runs/demo/differential-seed0 --output runs/cancellation[/]
    """

    samples: int = flag("Retrieval sequences.", default=100, least=1)


SETTINGS = CancellationSettings


@dataclass(frozen=True)
class HeadFigures:
    """Measurements of one head, means over sequences; None if a measure is undefined."""

    trained: bool
    """False for the same architecture with random weights."""
    layer: int
    head: int
    correlation: float | None = None
    """Pearson correlation of the two maps over the keys that a query sees."""
    cancelled: float | None = None
    """1 - Σ|A1 - λA2| / Σ(A1 + |λ|A2), the share of mass that subtraction removes."""
    negative_share: float | None = None
    """Share of the remaining mass that is negative."""
    output_rms: float | None = None
    """Root mean square of the head's output before any norm."""
    output_to_value: float | None = None
    """The same divided by the root mean square of its values."""


@dataclass(frozen=True)
class MapFigures:
    """Measurements of one kind of map in a layer, means over heads and sequences."""

    effective_keys: float | None = None
    """exp of the entropy of |A| / Σ|A|."""
    near_zero: float | None = None
    """Share of weights below a hundredth of their row's largest weight."""
    noise: float | None = None
    """Share of Σ|A| on other needles and filler, for the last token of the prompt."""
    answer: float | None = None


@dataclass(frozen=True)
class LayerFigures:
    """Measurements of one layer, or the mean over layers."""

    trained: bool
    layer: Any
    """The layer's number, or "all"."""
    correlation: float | None = None
    cancelled: float | None = None
    negative_share: float | None = None
    output_rms: float | None = None
    output_to_value: float | None = None
    maps: dict[str, MapFigures] = field(default_factory=dict)
    """Maps by name: ``softmax``, or ``first``, ``second`` and ``difference``."""


@dataclass(frozen=True)
class Cancellation(Result):
    """Result of ``antiphase evaluate cancellation``; in models without pairs, neighbouring maps are compared."""

    attention_type: str | None
    samples: int
    length: int
    heads: list[HeadFigures]
    layers: list[LayerFigures]


RESULT = Cancellation
