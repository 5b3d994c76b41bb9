"""Many-shot in-context learning and its robustness to order (2410.05258, sections 3.4 and 3.5; figures 6 and 7)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from antiphase.errors import InputError
from antiphase.evaluations.result import Result
from antiphase.evaluations.settings import ModelSettings
from antiphase.flags import flag


@dataclass(frozen=True, kw_only=True)
class ManyShotSettings(ModelSettings):
    """In-context learning: accuracy by number of labelled examples, and over orders of the examples.

    Example: [bold]antiphase evaluate many-shot MODEL --task trec.yaml --shots 1,4,16 --output runs/shots[/]
    """

    tasks: Sequence[str] = flag("YAML file of a task. Repeatable.", name="--task", default=())
    shots: Sequence[int] = flag(
        "Numbers of examples.", default=(1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024), separated=True
    )
    orders: int = flag("Number of random orders of the examples.", default=10)
    samples: int = flag("Number of rows asked.", default=200, least=1)

    def check(self) -> None:
        if not self.tasks:
            raise InputError("--task is missing: a YAML file, for example with 'template: trec' and 'data: FILE'")
        if not self.shots or min(self.shots) < 0 or len(set(self.shots)) < len(self.shots):
            raise InputError(f"--shots must be different whole numbers from 0, got {', '.join(map(str, self.shots))}")
        if self.orders < 0 or self.orders == 1:
            raise InputError(f"--orders must be 0 or at least 2, got {self.orders}")
        super().check()


SETTINGS = ManyShotSettings


@dataclass(frozen=True)
class AtShots:
    """Accuracy behind so many examples."""

    shots: int
    accuracy: float
    interval: list[float]
    """95 %, Wilson."""
    tokens: int
    """Of the median prompt."""
    answers_given: int | None = None
    """Different ones."""


@dataclass(frozen=True)
class OverOrders:
    """The same examples in several orders."""

    shots: int
    accuracies: list[float]
    """Of each order."""
    mean_accuracy: float
    margin: float
    """Best minus worst."""
    flip_share: float
    """Of rows, those whose answer is not the same in every order; a constant predictor has none."""
    pair_flips: float | None = None
    """Of rows, those that one of two different orders gets right and the other wrong; older records have none."""


@dataclass(frozen=True, kw_only=True)
class TaskShots:
    """Of one task."""

    samples: int
    """Rows that were asked."""
    labels: int | None = None
    guess_rate: float
    majority_rate: float
    """What always naming the commonest label scores."""
    left_out: list[int] = field(default_factory=list)
    """Numbers of examples that are longer than the model reads."""
    rows: list[AtShots]
    orders: dict[str, OverOrders] = field(default_factory=dict)
    """By kind: ``random``, and ``alternating`` between the classes."""
    too_few_rows: list[int] = field(default_factory=list)
    """Numbers of examples that the task has no rows for."""


@dataclass(frozen=True)
class ManyShot(Result):
    """What ``antiphase evaluate many-shot`` finds."""

    tasks: dict[str, TaskShots]


RESULT = ManyShot
