"""Stages of a run in which the length of retrieval sequences grows (``data.lengths``)."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Stage:
    """Steps with retrieval sequences of one length."""

    length: int
    """Tokens of a retrieval sequence."""
    step: int
    """Number of steps that were finished when it began."""
