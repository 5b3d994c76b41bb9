"""Losses over sizes and steps: ``antiphase scaling``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from antiphase.flags import flag
from antiphase.studies.settings import StudySettings, preset_flag


@dataclass(frozen=True, kw_only=True)
class ScalingSettings(StudySettings):
    """Train every arm at several sizes and numbers of steps, and fit scaling laws to the losses.

    Example: [bold]antiphase scaling --data book.txt --widths 64,96,128,192 --output runs/scaling[/]
    """

    widths: Sequence[int] = flag(
        "Hidden sizes, e.g. 64,96,128,192.", default=(), separated=True, allows_duplicates=True
    )
    steps: Sequence[int] = flag(
        "Numbers of steps, e.g. 200,400,800,1600.", default=(), separated=True, allows_duplicates=True
    )
    preset: str = preset_flag("half-hour")


SETTINGS = ScalingSettings
