"""What each part of differential attention is worth: ``antiphase ablations``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from antiphase.flags import flag
from antiphase.studies.settings import StudySettings


@dataclass(frozen=True, kw_only=True)
class AblationsSettings(StudySettings):
    """Train ablations of differential attention and rival methods, and split each loss into AR-hits and other tokens.

    Example: [bold]antiphase ablations --preset half-hour --data book.txt --seeds 0,1,2,3,4 --output runs/ablations[/]
    """

    rows: Sequence[str] = flag(
        "Variants to train, comma-separated, e.g. no-norm,gated.", default=(), separated=True, allows_duplicates=True
    )
    rivals: bool = flag("Also train V2, its ablations, and rival methods.", default=False)
    frequent: int = flag(
        "Pairs that occur more often than this in the training text do not count as AR-hits.", default=5, least=0
    )


SETTINGS = AblationsSettings
