"""Many-shot in-context learning and its robustness to order (2410.05258, sections 3.4 and 3.5; figures 6 and 7)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from antiphase.base.errors import InputError
from antiphase.lab.measures.result import ComparedResult
from antiphase.lab.measures.settings import ComparedSettings, TaskSettings
from antiphase.lab.settings.flags import flag


@dataclass(frozen=True, kw_only=True)
class ManyShotSettings(ComparedSettings, TaskSettings):
    """In-context learning: accuracy by number of labelled examples, and over orders of the examples.

    Example: [bold]antiphase evaluate many-shot MODEL --task trec.yaml --shots 1,4,16 --output runs/shots[/]
    """

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
    """Accuracy with a given number of examples."""

    shots: int
    accuracy: float
    interval: list[float]
    """Wilson's 95 % interval."""
    tokens: int
    """Number of tokens in the median prompt."""
    answers_given: int
    """Number of distinct answers."""
    label_shown: float
    """Share of the rows asked whose label is among the examples, whatever their order."""


@dataclass(frozen=True)
class OverOrders:
    """Accuracy over several orders of the same examples."""

    shots: int
    accuracies: list[float]
    """Accuracy of each order."""
    mean_accuracy: float
    margin: float
    """Best minus worst accuracy."""
    flip_share: float
    """Share of rows whose answer depends on the order; 0 for a constant predictor."""
    pair_flips: float
    """Share of rows that are correct in one of two orders and wrong in the other."""


@dataclass(frozen=True, kw_only=True)
class TaskShots:
    """Results on one task."""

    samples: int
    """Number of rows asked."""
    labels: int
    guess_rate: float
    majority_rate: float
    """Accuracy of always choosing the most common label."""
    left_out: list[int] = field(default_factory=list)
    """Numbers of examples that exceed the model's context."""
    rows: list[AtShots]
    orders: dict[str, OverOrders] = field(default_factory=dict)
    """By kind of order: ``random``, or ``alternating`` between the classes."""
    too_few_rows: list[int] = field(default_factory=list)
    """Numbers of examples for which the task has too few rows."""


@dataclass(frozen=True)
class ManyShot(ComparedResult):
    """Result of ``antiphase evaluate many-shot``."""

    tasks: dict[str, TaskShots]


RESULT = ManyShot
