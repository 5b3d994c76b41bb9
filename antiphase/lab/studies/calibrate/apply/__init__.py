"""A model with and without a calibration plan."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from antiphase.base.errors import InputError
from antiphase.lab.measures.result import Result
from antiphase.lab.settings.flags import flag
from antiphase.lab.studies.calibrate.settings import Measures, SampleSettings, Standing


@dataclass(frozen=True, kw_only=True)
class ApplySettings(SampleSettings):
    """Evaluate tasks or continue texts, with and without a plan.

    Example: [bold]antiphase calibrate apply MODEL --plan runs/search/plan.json --task sst-5.yaml --output runs/apply[/]
    """

    folder = "new"
    counted = "tasks and texts"

    plan: str = flag("plan.json written by a search.")
    texts: Sequence[str] = flag("Text to continue. Repeatable.", name="--text", default=())
    max_new_tokens: int = flag("Number of tokens to generate after a text.", default=64, least=1)

    def check(self) -> None:
        if not self.tasks and not self.texts:
            raise InputError("--task or --text is missing: give what the plan should be applied to")
        super().check()


SETTINGS = ApplySettings


@dataclass(frozen=True, kw_only=True)
class AppliedPlan:
    """The plan without what its search found."""

    heads: dict[str, list[int]]
    """Calibrated heads by layer."""
    alpha: float
    beta: float
    mode: str
    fingerprint: dict[str, Any] | None = None
    """The fingerprint of the model for which it was made."""


@dataclass(frozen=True, kw_only=True)
class Compared(Standing):
    """A task with and without the plan, on samples that chose no head."""

    left_out: int
    """Samples that chose the plan's heads, and copies of others."""
    calibrated: float
    """The score with the plan."""
    gain: float
    gain_interval: list[float]
    """95 %, over samples; see ``calibration.changes.gain_interval``."""
    improved: int
    """Samples whose score rose."""
    worsened: int
    """Samples whose score fell."""
    p: float | None = None
    """That as many rise as fall: McNemar's exact test, or for scores that are no answers the sign test."""
    measures: Measures | None = None
    """Of a classification without the plan."""
    measures_calibrated: Measures | None = None


@dataclass(frozen=True)
class Continued:
    """A text, and what the model writes after it."""

    text: str
    plain: str
    calibrated: str


@dataclass(frozen=True, kw_only=True)
class Apply(Result):
    """What ``antiphase calibrate apply`` finds."""

    plan: AppliedPlan
    tasks: list[Compared]
    texts: list[Continued]


RESULT = Apply
