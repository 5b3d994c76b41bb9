"""How much a model repeats itself when it continues a text greedily (seq-rep-n, Welleck et al., 1908.04319)."""

from __future__ import annotations

from dataclasses import dataclass

from antiphase.base.errors import InputError
from antiphase.lab.measures.result import Result
from antiphase.lab.measures.settings import TextSettings

LONGEST = 4
"""The longest sequence of tokens that is counted."""


@dataclass(frozen=True, kw_only=True)
class RepetitionSettings(TextSettings):
    """Measure how much a model repeats itself when it continues the first halves of held-out windows.

    Example: [bold]antiphase evaluate repetition MODEL --data book.txt --length 256 --output runs/repetition[/]
    """

    counted = "texts"

    def check(self) -> None:
        super().check()
        if self.length is not None and self.length < 2 * LONGEST:
            raise InputError(
                f"--length must be at least {2 * LONGEST}, a beginning and what follows, got {self.length}"
            )


SETTINGS = RepetitionSettings


@dataclass(frozen=True, kw_only=True)
class Repeated:
    """Repetition in continuations of one kind."""

    of: str
    """``model``, or ``text`` for the true second halves."""
    texts: int
    tokens: float
    """Mean length of a continuation; the model's end with its end-of-text token."""
    shares: dict[str, float | None]
    """By n, 1 to 4: the mean over continuations of n tokens or more of 1 - distinct n-grams / n-grams."""
    interval: list[float] | None
    """Student's 95 % interval of the share of the largest n, over continuations."""


@dataclass(frozen=True)
class Repetition(Result):
    """Result of ``antiphase evaluate repetition``."""

    rows: list[Repeated]


RESULT = Repetition
