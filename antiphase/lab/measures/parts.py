"""Parts of a measurement: progress is reported after each, and its result is stored, so that it survives a kill."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from antiphase.base.folders.journal import Journal

Value = TypeVar("Value")


def silent(done: float, count: int) -> None:
    """A report that does nothing."""


@dataclass(frozen=True)
class Parts:
    """What a measurement does with its parts."""

    report: Callable[[float, int], None] = silent
    """Called with the number of finished parts and the total."""
    journal: Journal | None = None
    """Where results are stored."""
    model: Sequence[str] = ()
    """The model to which the parts belong, if it is not the first."""

    def within(self, before: int, whole: int, *model: str) -> Parts:
        """Parts of one of ``whole`` equal tasks, ``before`` of which are finished."""
        if whole == 1:
            return self

        def report(done: float, count: int) -> None:
            self.report(before + done / count, whole)

        return replace(self, report=report, model=model or self.model)

    def stored(self, *part: Any, compute: Callable[[], Value]) -> Value:
        """The stored result of a part; one that is not stored is computed and then stored.

        Args:
            part: plain JSON values that name it.
            compute: returns the result: lists, dictionaries and finite numbers, which JSON returns unchanged.
        """
        if self.journal is None:
            return compute()
        key = self.journal.key(*part, *self.model)
        if key not in self.journal.known:
            self.journal.add(key, compute())
        known: Value = self.journal.known[key]
        return known


UNSTORED = Parts()
"""Parts that are neither reported nor stored."""
