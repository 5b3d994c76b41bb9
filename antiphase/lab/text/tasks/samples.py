"""Samples: a prompt and its correct answer, the unit of every task."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Sample:
    """One prompt and its correct answer."""

    prompt: tuple[int, ...]
    """Token ids."""
    options: tuple[tuple[int, ...], ...]
    """Token ids of the possible answers; for an open question, only the first correct one."""
    target: int
    """Index of the correct option."""
    lengths: tuple[float, ...]
    """Divisor of each option's log-likelihood."""
    answers: tuple[str, ...]
    """Correct answers of an open question; empty if there are options."""
    metric: str
    """``accuracy``: the correct option is the most likely; ``greedy``: greedy decoding would produce it;
    ``exact_match`` and ``f1`` (SQuAD's) apply to generated text.
    """
    longest: int
    """Number of tokens to generate for an open answer."""
    decode: Any = field(repr=False, compare=False)
    """Converts token ids to text."""
    stop: tuple[int, ...] = field(default=(), repr=False)
    """Tokens that end an answer."""
    spans: tuple[tuple[str, int, int], ...] = ()
    """(name, start, stop) of parts of the prompt: ``question``, ``demonstrations``, ``choices``."""
    row: int = 0
    """Index of the sample's row in the data."""


@dataclass(frozen=True)
class Task:
    """Samples of one data set."""

    name: str
    samples: list[Sample]
    chance: float
    """Best score of systems that do not read the prompt: guessing, always the most common label or position, always the
    longest or shortest choice, or always the same answer.
    """
    metric: str
    labels: tuple[str, ...] = ()
    """Labels of a classification, in the order of every sample's options."""
    content_free: tuple[Sample, ...] = ()
    """Its prompt about texts without content (Zhao et al. 2021)."""
