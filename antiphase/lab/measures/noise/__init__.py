"""Attention noise by cause: what irrelevant tokens, and the second maps of heads, do to the answer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from antiphase.lab.measures.result import Result
from antiphase.lab.measures.retrieval_results import MapAllocation, Size
from antiphase.lab.measures.settings import ContextSettings
from antiphase.lab.settings.flags import flag

FORMS = ("removed", "exchanged")
"""Changes of second maps: λ = 0, or the two maps of each head in each other's place."""


@dataclass(frozen=True, kw_only=True)
class NoiseSettings(ContextSettings):
    """Measure how much the answer depends on irrelevant tokens, and on the second map of each head.

    Example: [bold]antiphase evaluate noise runs/demo/differential-seed0 --output runs/noise[/]
    """

    times: Sequence[int] = flag(
        "Lengths of the contexts, as multiples of --length.", default=(1, 2, 4), least=1, separated=True
    )
    depths: Sequence[float] = flag(
        "Depths of the asked needle, 0 to 1, besides random ones.", default=(), least=0, most=1, separated=True
    )
    resamples: int = flag("How often the filler, and the other facts, are drawn again.", default=16, least=2)
    second_map: Sequence[str] = flag(
        "What is done to second maps, which MODEL must then have; default: both, in models that have them.",
        default=(), choices=FORMS, separated=True,
    )  # fmt: skip

    def lengths_from(self, usual: int) -> Sequence[int]:
        base = self.lengths[0] if self.lengths else usual
        return [times * base for times in self.times]

    def check(self) -> None:
        super().check()
        self.check_single("needles", "queries", "lengths")


SETTINGS = NoiseSettings


@dataclass(frozen=True)
class Estimate:
    """A number with its 95 % interval over contexts."""

    value: float
    interval: list[float] | None


@dataclass(frozen=True, kw_only=True)
class Measured(Size):
    """A model and a set of contexts."""

    arm: str = "model"
    """Short name of the model."""
    trained: bool = True
    depth: float | None
    """Depth of the answer; None means a random one."""
    contexts: int


@dataclass(frozen=True, kw_only=True)
class Resampled(Measured):
    """The right answer's log-odds, log p - log(1 - p), when a part of its context is drawn again."""

    part: Literal["filler", "other_needles"]
    copies: int
    """Number of draws for each context."""
    accuracy: float
    """Share of draws with the right answer."""
    log_odds: Estimate
    """Mean over contexts and draws; its interval is Student's."""
    sd: Estimate
    """Root of the mean over contexts of the variance over draws; its interval is the jackknife's."""
    ratio: Estimate | None
    """``log_odds`` / ``sd``, whose interval is the jackknife's; None if nothing changes, so that there is no noise."""


@dataclass(frozen=True, kw_only=True)
class Changed(Measured):
    """The right answer when attention is changed, minus that with attention as it is, on the same contexts."""

    change: Literal["hidden", "removed", "exchanged"]
    """Keys hidden from the tokens that predict the answer, or second maps changed for all tokens (``FORMS``)."""
    part: Literal["filler", "other_needles"] | None
    """The keys; None for second maps."""
    layers: list[int] | None
    """The layers in which this is done: one for a second map; those that retrieve for hidden keys; None: all.

    A layer retrieves if hiding the answer in it alone lowers the answer's log-probability (``scoring.noise``).
    """
    accuracy_before: float
    accuracy: float
    accuracy_change: Estimate
    """Its interval is Bonett and Price's, those of the others are Student's."""
    log_probability: Estimate
    """Change in nats."""
    log_odds: Estimate


@dataclass(frozen=True, kw_only=True)
class Noise(Result):
    """Result of ``antiphase evaluate noise``."""

    models: list[str] = field(default_factory=list)
    task: str | None = None
    """``text`` or ``symbols``."""
    guess_rate: float | None = None
    resampled: list[Resampled]
    changed: list[Changed]
    allocation: list[MapAllocation]
    """Where attention goes, as in ``antiphase evaluate allocation``."""


RESULT = Noise
