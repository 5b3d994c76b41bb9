"""The learning rate of each arm: ``antiphase tune``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from antiphase.flags import flag
from antiphase.studies.settings import StudySettings


@dataclass(frozen=True, kw_only=True)
class TuneSettings(StudySettings):
    """Train both arms at every learning rate of one grid, so that neither is favoured by tuning.

    Example: [bold]antiphase tune --preset demo --learning-rates 1e-3,2e-3,4e-3,8e-3 --output runs/tune[/]
    """

    learning_rates: Sequence[float] = flag(
        "Learning rates, comma-separated, e.g. 1e-3,2e-3,4e-3.", separated=True, allows_duplicates=True
    )


SETTINGS = TuneSettings
