"""Accuracy against dependency length: ``antiphase study dependency``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from antiphase.base.errors import InputError
from antiphase.lab.lineage.names import (
    MOST_SAMPLES,
    PHRASE,
    check_seeds,
    device_flag,
    models_flag,
    seeds_flag,
    settings_flag,
)
from antiphase.lab.lineage.results import Epoch
from antiphase.lab.measures.result import Result
from antiphase.lab.settings.flags import Settings, flag

LONGEST = 512
"""Longest distance in words."""
DEVELOPMENT = 10
"""Number of training sentences per sentence of the development part."""


@dataclass(frozen=True, kw_only=True)
class DependencySettings(Settings):
    """Accuracy by dependency length: predict the number of a verb whose subject is some clauses away.

    Example: [bold]antiphase study dependency --models rnn,lstm,transformer,differential --output runs/dependency[/]
    """

    counted = "runs"
    quick: ClassVar[Mapping[str, Any]] = {
        "held_out": (12, 32, 64), "tested": (4, 8, 24), "samples": 1680, "test_samples": 200, "epochs": 3, "seeds": (0,)
    }  # fmt: skip

    models: Sequence[str] = models_flag()
    lengths: Sequence[int] = flag(
        "Trained distances in words.", default=tuple(range(4, 25)), least=PHRASE, most=LONGEST, separated=True,
        ranges=True, default_text="4-24",
    )  # fmt: skip
    held_out: Sequence[int] = flag(
        "Distances that are only tested; left out of --lengths.", default=(6, 12, 20, 32, 48, 64, 96), least=PHRASE,
        most=LONGEST, separated=True, ranges=True,
    )  # fmt: skip
    tested: Sequence[int] = flag(
        "Trained distances that are tested too.", default=(4, 8, 16, 24), separated=True, ranges=True
    )
    depth: int = flag("Number of subjects in a sentence (nested clauses).", default=2, least=2, most=8)
    samples: int = flag("Training sentences, of all distances together.", default=6000, most=MOST_SAMPLES)
    test_samples: int = flag("Test sentences of each distance.", default=400, most=MOST_SAMPLES)
    epochs: int = flag("Number of epochs.", default=8, least=1)
    seeds: Sequence[int] = seeds_flag(0, 1, 2)
    settings: Sequence[str] = settings_flag("lstm.hidden_size=128")
    device: str = device_flag()

    def check(self) -> None:
        super().check()
        check_seeds(self.seeds)
        if not self.trained:
            raise InputError(
                "--lengths must contain a length that is not in --held-out, because otherwise nothing is trained"
            )
        unknown = [length for length in self.tested if length not in self.trained]
        if unknown:
            named = ", ".join(map(str, unknown))
            raise InputError(f"--tested must name different lengths of the training, got {named}")
        if not self.distances:
            raise InputError("--tested and --held-out name nothing to test")
        least = 2 * DEVELOPMENT * len(self.trained)
        if self.samples < least:
            raise InputError(f"--samples must be at least {least} for {len(self.trained)} lengths, got {self.samples}")
        if self.test_samples < 2 or self.test_samples % 2:
            raise InputError(
                f"--test-samples must be even and at least 2, because sentences come in pairs; got {self.test_samples}"
            )

    @property
    def trained(self) -> list[int]:
        """Distances of the training sentences."""
        return [length for length in self.lengths if length not in self.held_out]

    @property
    def distances(self) -> list[int]:
        """Distances of the test sentences."""
        return sorted({*self.tested, *self.held_out})


SETTINGS = DependencySettings


@dataclass(frozen=True, kw_only=True)
class Score:
    """Verbs given the right number."""

    samples: int
    correct: int
    accuracy: float | None
    interval: list[float]
    """Wilson's 95 % interval."""


@dataclass(frozen=True, kw_only=True)
class DistanceScore(Score):
    """Score of one model, before or after training, at one distance."""

    model: str
    seed: int
    trained: bool
    distance: int
    misled: Score
    """Score on the sentences whose nearest noun has the other number."""


@dataclass(frozen=True, kw_only=True)
class ShortcutScore:
    """Score of a system that needs no clauses, at one distance."""

    shortcut: str
    """Its name in ``data.agreement.SHORTCUTS``."""
    distance: int
    accuracy: float
    misled: float | None
    """On the sentences whose nearest noun has the other number."""


@dataclass(frozen=True, kw_only=True)
class Mean:
    """Mean over seeds."""

    accuracy: float | None
    interval: list[float] | None
    """95 % interval; None if some seeds learned and others did not."""
    learned: list[int] | None = None
    """How many seeds learned, and of how many, if some did and others did not."""


@dataclass(frozen=True, kw_only=True)
class DistanceMean(Mean):
    """Mean of one model, before or after training, at one distance."""

    model: str
    trained: bool
    distance: int
    held_out: bool
    seeds: int
    interval_is: str
    misled: Mean

    @property
    def parts(self) -> tuple[Mean, Mean]:
        """All sentences, and those whose nearest noun has the other number."""
        return self, self.misled


@dataclass(frozen=True, kw_only=True)
class DependencyRun:
    """Training of one model with one seed."""

    model: str
    seed: int
    parameters: int
    development_accuracy: float
    best_epoch: int
    curve: list[Epoch]
    seconds: float


@dataclass(frozen=True, kw_only=True)
class Dependency(Result):
    """Result of ``antiphase study dependency``."""

    guess_rate: float
    trained_distances: list[int]
    models: list[str]
    summary: list[DistanceMean]
    rows: list[DistanceScore]
    runs: list[DependencyRun]
    shortcuts: list[ShortcutScore]


RESULT = Dependency
