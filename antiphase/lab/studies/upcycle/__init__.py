"""Continued training of a softmax model in other forms: ``antiphase upcycle``. Its records are those of ``compare``."""

from __future__ import annotations

from dataclasses import dataclass

from antiphase.lab.settings.flags import argument, flag
from antiphase.lab.studies.settings import SeedsSettings, StudyTextSettings


@dataclass(frozen=True, kw_only=True)
class UpcycleSettings(SeedsSettings, StudyTextSettings):
    """Continue training a softmax model on the same tokens: as it is, as differential V2, and as V2's control.

    Settings are those of MODEL's own training, except what --set changes. A converted model has none: it takes those of
    the preset "continue", its own sizes and tokenizer, and text from --data.
    Example: [bold]antiphase upcycle runs/demo/softmax-seed0 --output runs/upcycle --set training.steps=500[/]
    """

    model: str = argument("MODEL", "Folder of a softmax model, trained here or converted.")
    dex: bool = flag("Add an arm with DEX, the differential extension.", default=False)
    v1: bool = flag(
        "Add two arms of V1: without head norm the same function at first, and with it, whose function changes.",
        default=False,
    )


SETTINGS = UpcycleSettings
