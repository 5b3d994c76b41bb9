"""What two subtracted maps have in common, how much of it subtraction takes away, and how large heads are."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from antiphase.evaluations.result import Result
from antiphase.evaluations.settings import RetrievalTextSettings
from antiphase.flags import flag


@dataclass(frozen=True, kw_only=True)
class CancellationSettings(RetrievalTextSettings):
    """Measure what the two maps of a head have in common, how much subtraction removes, and how large heads are.

    Example: [bold]antiphase evaluate cancellation runs/demo/differential-seed0 --output runs/cancellation[/]
    """

    samples: int = flag("Retrieval sequences.", default=100, least=1)


SETTINGS = CancellationSettings


@dataclass(frozen=True)
class HeadFigures:
    """Of one head, means over sequences; None where a figure does not exist."""

    trained: bool
    """False: of the same architecture with fresh weights."""
    layer: int
    head: int
    correlation: float | None = None
    """Pearson's, of the two maps over the keys that a query sees."""
    cancelled: float | None = None
    """1 - Σ|A1 - λA2| / Σ(A1 + λA2), the share of mass that subtraction takes away."""
    negative_share: float | None = None
    """Of the mass that is left, what is negative."""
    output_rms: float | None = None
    """Root mean square of the head's output before any norm."""
    output_to_value: float | None = None
    """The same over that of its values."""


@dataclass(frozen=True)
class MapFigures:
    """Of one kind of map in a layer, means over heads and sequences."""

    effective_keys: float | None = None
    """exp of the entropy of |A| / Σ|A|."""
    near_zero: float | None = None
    """Share of weights below a hundredth of their row's largest."""
    noise: float | None = None
    """Share of Σ|A| on other needles and filler, seen from the last token of the prompt."""
    answer: float | None = None


@dataclass(frozen=True)
class LayerFigures:
    """Of one layer, or the mean over layers."""

    trained: bool
    layer: Any
    """Its number, or "all"."""
    correlation: float | None = None
    cancelled: float | None = None
    negative_share: float | None = None
    output_rms: float | None = None
    output_to_value: float | None = None
    maps: dict[str, MapFigures] = field(default_factory=dict)
    """Of ``softmax``, or of ``first``, ``second`` and ``difference``."""


@dataclass(frozen=True)
class Cancellation(Result):
    """What ``antiphase evaluate cancellation`` finds; models without pairs have neighbouring maps compared."""

    attention_type: str | None
    samples: int
    length: int
    heads: list[HeadFigures]
    layers: list[LayerFigures]


RESULT = Cancellation
