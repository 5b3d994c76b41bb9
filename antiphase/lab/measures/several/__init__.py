"""Several measurements of several models, each a command of its own: ``antiphase evaluate several``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from antiphase.base.errors import InputError
from antiphase.lab.measures.result import Result
from antiphase.lab.settings.flags import DTYPE_HELP, DTYPES, argument, flag
from antiphase.lab.training.execution.settings import ExecutorSettings


@dataclass(frozen=True, kw_only=True)
class SeveralSettings(ExecutorSettings):
    """Measure several models in several ways, side by side, here or on a cluster.

    Example: [bold]antiphase evaluate several runs/a runs/b --measure perplexity,outliers --output runs/night[/]
    """

    counted = "measurements"

    models: Sequence[str] = argument("MODEL...", "Local folders, GGUF files or Hub names of causal language models.")
    measurements: Sequence[str] = flag(
        "Names of the commands under evaluate but harness, or probe; several by commas.", name="--measure",
        default=("perplexity",), separated=True,
    )  # fmt: skip
    paths: Sequence[str] = flag(
        "File, folder or Hub dataset with text, for all that take one. Repeatable.", name="--data", default=()
    )
    changes: Sequence[str] = flag(
        "MEASUREMENT.FLAG=VALUE, e.g. needles.samples=20. Repeatable.", name="--set", default=()
    )
    at_once: int | None = flag(
        "How many at a time; default: 1 here, and all that have room on a cluster.", default=None, least=1, places=True
    )
    device: str = flag("Device: auto, cpu, cuda or cuda:0.", default="auto")
    dtype: str | None = flag(DTYPE_HELP, default=None, choices=DTYPES)

    def check(self) -> None:
        super().check()
        if len(set(self.models)) < len(self.models):
            raise InputError(f"MODEL must not repeat a value, got {', '.join(self.models)}")


SETTINGS = SeveralSettings


@dataclass(frozen=True, kw_only=True)
class FinishedMeasurement:
    """A finished measurement."""

    model: str
    measurement: str
    folder: str
    """Holds its record, in the folder of all."""
    seconds: float


@dataclass(frozen=True, kw_only=True)
class Several(Result):
    """Result of ``antiphase evaluate several``: where the records lie."""

    rows: list[FinishedMeasurement]


RESULT = Several
