"""The learning rate of each arm: ``antiphase tune``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from antiphase.lab.measures.result import Result
from antiphase.lab.settings.flags import flag
from antiphase.lab.studies.settings import StudySettings
from antiphase.lab.training.divergence import Divergence


@dataclass(frozen=True, kw_only=True)
class TuneSettings(StudySettings):
    """Train both arms at every learning rate of one grid, so that neither is favoured by tuning.

    Choose with other seeds, and on other held-out text, than those with which you compare.

    Example: [bold]antiphase tune --preset demo --learning-rates 2e-3,4e-3,8e-3 --seeds 100,101 --output runs/tune[/]
    """

    learning_rates: Sequence[float] = flag(
        "Learning rates, comma-separated, e.g. 4e-3,8e-3,1.6e-2.", separated=True, allows_duplicates=True
    )


SETTINGS = TuneSettings


@dataclass(frozen=True, kw_only=True)
class TunedRun:
    """The result of one run."""

    arm: str
    seed: int
    learning_rate: float
    accuracy: float | None
    """At the end, of first questions; ``loss`` likewise, in nats per held-out token."""
    loss: float | None
    best_accuracy: float | None
    passes: int | None
    """Step of the first evaluation above the threshold."""
    spikes: int | None = None
    """Gradient norms far above those before them; None: not counted."""
    diverged: Divergence | None
    seconds: float | None


@dataclass(frozen=True, kw_only=True)
class Rate:
    """The results of an arm at one learning rate, over its seeds: medians and ranges of the runs that have a loss."""

    arm: str
    learning_rate: float
    seeds: int
    accuracy: float | None
    accuracy_range: list[float] | None
    loss: float | None
    loss_range: list[float] | None
    passed: int
    spikes: int | None = None
    diverged: int

    def spread(self, measure: str) -> tuple[float, float, float] | None:
        """Median, smallest and largest ``loss`` or ``accuracy``."""
        middle, ends = getattr(self, measure), getattr(self, f"{measure}_range")
        return None if middle is None else (middle, *ends)


@dataclass(frozen=True, kw_only=True)
class Tune(Result):
    """What ``antiphase tune`` finds."""

    runs: list[TunedRun]
    rates: list[Rate]
    chosen: dict[str, float]
    """The best rate of each arm."""


RESULT = Tune
