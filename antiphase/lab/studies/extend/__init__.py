"""Longer contexts for a trained model: ``antiphase extend``. Its records are those of ``train``."""

from __future__ import annotations

from dataclasses import dataclass

from antiphase.lab.settings.flags import argument, flag
from antiphase.lab.studies.settings import StudyTextSettings


@dataclass(frozen=True, kw_only=True)
class ExtendSettings(StudyTextSettings):
    """Continue training a finished run on longer sequences, with a raised RoPE base.

    Settings are those of MODEL's own training with a tenth of its steps, except what --set changes.
    Example: [bold]antiphase extend runs/text --length 1024 --validation novels --output runs/text-1024[/]
    """

    model: str = argument("MODEL", "Folder of a finished run.")
    length: int = flag("New context length in tokens.")
    rope_theta: float | None = flag(
        "RoPE base; default: raised so that the slowest channel turns as far over the new length as over the old.",
        default=None,
    )
    long_share: float | None = flag("Share of the sequences that are each cut from inside one document.", default=None)


SETTINGS = ExtendSettings
