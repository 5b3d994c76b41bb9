"""The one rule that turns an effect with its interval into a word beside the paper's effect."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Word = Literal["agrees", "disagrees", "cannot tell"]
CONFIDENCE = 0.95
"""Of every interval."""
POWER = 0.8
"""With which the smallest detectable effect (MDE) is seen."""
MARGIN = 0.015
"""Nats a token within which two losses count as equal."""


@dataclass(frozen=True)
class Verdict:
    """A word, and why nothing else can be said."""

    word: Word
    reason: str = ""

    def __str__(self) -> str:
        return f"{self.word} ({self.reason})" if self.reason else self.word


def verdict(
    interval: tuple[float, float], *, lower_is_better: bool, detectable: float | None, paper: float | None
) -> Verdict:
    """Whether an effect agrees with a claim that it is better than 0.

    It agrees if its 95 % interval lies beyond 0 on the better side. It disagrees if the interval lies beyond 0 on the
    other side, or does not reach the paper's effect although the study would have seen that. Otherwise the study cannot
    tell. So without an effect, and with the paper's own, the wrong word is said in at most 2.5 % of studies.

    Args:
        interval: 95 %, of arm minus baseline.
        detectable: the smallest difference that is seen with a power of 80 %, in the same unit.
        paper: the paper's effect, arm minus baseline; None: it has no number in this unit.
    """
    low, high = (-interval[1], -interval[0]) if lower_is_better else interval
    claimed = None if paper is None else abs(paper)
    if low > 0:
        return Verdict("agrees")
    if high < 0:
        return Verdict("disagrees")
    if claimed is None:
        return Verdict("cannot tell", "the interval holds 0")
    if detectable is None or detectable > claimed:
        return Verdict("cannot tell", "MDE > the paper's effect")
    if high < claimed:
        return Verdict("disagrees")
    return Verdict("cannot tell", "the interval holds 0 and the paper's effect")
