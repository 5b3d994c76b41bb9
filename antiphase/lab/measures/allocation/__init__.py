"""Attention allocation at the end of a question, and its effects (2410.05258, section 3.3, table 3)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from antiphase.lab.measures.result import Result
from antiphase.lab.measures.retrieval_results import MapAllocation
from antiphase.lab.measures.settings import ContextSettings


@dataclass(frozen=True, kw_only=True)
class AllocationSettings(ContextSettings):
    """Measure where attention goes at the end of the question (answer, other needles, filler), by depth of the answer.

    Example: [bold]antiphase evaluate allocation runs/one --data essays --needles 8 --output runs/allocation[/]
    """

    def check(self) -> None:
        super().check()
        self.check_single("needles", "queries", "lengths")


SETTINGS = AllocationSettings


@dataclass(frozen=True, kw_only=True)
class Allocation(Result):
    """Result of ``antiphase evaluate allocation``."""

    models: list[str] = field(default_factory=list)
    task: str | None = None
    """``text`` or ``symbols``."""
    guess_rate: float | None = None
    rows: list[MapAllocation]

    def last(self) -> Iterable[MapAllocation]:
        """Means over layers of the maps that multiply the values."""
        return [row for row in self.rows if row.is_last]


RESULT = Allocation
