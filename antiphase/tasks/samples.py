"""One prompt and what is right after it: what every task is made of."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Sample:
    """One prompt and what is right after it."""

    prompt: tuple[int, ...]
    """Token ids."""
    options: tuple[tuple[int, ...], ...]
    """Token ids of what may follow; of an open answer, the first right one."""
    target: int
    """The right one of the options."""
    lengths: tuple[float, ...]
    """What each option's log-likelihood is divided by."""
    answers: tuple[str, ...]
    """Right answers of an open question; empty where there are options."""
    metric: str
    """``accuracy``: the right option is the likeliest; ``greedy``: the model would write the option by itself;
    ``exact_match`` and ``f1`` (SQuAD's): of a text that it writes."""
    longest: int
    """Tokens to generate for an open answer."""
    decode: Any = field(repr=False, compare=False)
    """Token ids to text."""
    stop: tuple[int, ...] = field(default=(), repr=False)
    """Tokens that end an answer."""
    spans: tuple[tuple[str, int, int], ...] = ()
    """(name, start, stop) of parts of the prompt: ``question``, ``demonstrations``, ``choices``."""
    row: int = 0
    """Which row of the data it is."""


@dataclass(frozen=True)
class Task:
    """Samples of one data set."""

    name: str
    samples: list[Sample]
    chance: float
    """Best score of systems that do not read the prompt: guessing, always the commonest label or place, always the
    longest or shortest choice, always the same answer."""
    metric: str
