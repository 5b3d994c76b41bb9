"""Arms trained side by side: ``antiphase compare``."""

from __future__ import annotations

from dataclasses import dataclass

from antiphase.studies.settings import StudySettings


@dataclass(frozen=True, kw_only=True)
class ComparisonSettings(StudySettings):
    """Train softmax and differential models side by side, measure them, and show where they attend.

    Writes record.json, report.html and every model.
    Example: [bold]antiphase compare --preset demo --output runs/demo[/]
    """


SETTINGS = ComparisonSettings
