"""Downstream tasks of EleutherAI's lm-eval, run by its own code on our models."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from antiphase.base.errors import InputError, brief
from antiphase.base.files import one_line
from antiphase.lab.measures.result import Result
from antiphase.lab.measures.settings import DrawnSettings, chat_flag, seed_flag
from antiphase.lab.settings.flags import argument, flag

PAPER_TASKS = ("arc_challenge", "arc_easy", "boolq", "hellaswag", "openbookqa", "piqa", "winogrande")
"""The paper's seven tasks (2410.05258, table 1), by their names in lm-eval."""


@dataclass(frozen=True, kw_only=True)
class HarnessSettings(DrawnSettings):
    """Run downstream tasks with EleutherAI's lm-eval; needs pip install 'antiphase\\[harness]'.

    Example: [bold]antiphase evaluate harness MODEL OTHER --tasks piqa,arc_easy --limit 200 --output runs/tasks[/]
    """

    names: Sequence[str] = argument("MODEL", "Local folders, GGUF files or Hub names of causal language models.")
    tasks: Sequence[str] = flag(
        "Names in lm-eval, comma-separated; by default the paper's seven.", default=PAPER_TASKS, separated=True
    )
    num_fewshot: Sequence[int] = flag(
        "Numbers of examples before each prompt.", default=(0, 5), separated=True, alias="--num_fewshot"
    )
    limit: float | None = flag("Number of rows of each task, or a share below 1.", default=None)
    batch_size: str = flag("Batch size, or auto.", default="8", alias="--batch_size")
    include_path: str | None = flag("Folder with your own tasks.", default=None, alias="--include_path")
    metadata: str | None = flag(
        "A JSON object for tasks that are made for a length, such as RULER's: "
        '{"max_seq_lengths": [4096], "tokenizer": "MODEL"}.',
        default=None,
    )
    trust_task_code: bool = flag(
        "Run Python code that comes with tasks: functions, metrics, unsandboxed templates.", default=False
    )
    chat_template: bool = chat_flag()
    seed: int = seed_flag(1234)

    def check(self) -> None:
        for name, listed in (("MODEL", self.names), ("--tasks", self.tasks), ("--num-fewshot", self.num_fewshot)):
            if not listed or len(set(listed)) < len(listed):
                raise InputError(
                    f"{name} must name at least one, without repetition, got {', '.join(map(str, listed))}"
                )
        super().check()
        if min(self.num_fewshot) < 0:
            raise InputError(f"--num-fewshot must be at least 0, got {min(self.num_fewshot)}")
        if self.limit is not None and not (0 < self.limit < 1 or (self.limit >= 1 and float(self.limit).is_integer())):
            raise InputError(f"--limit must be a number of rows, or a share between 0 and 1, got {self.limit:g}")
        if self.batch_size != "auto" and not (self.batch_size.isdecimal() and int(self.batch_size) > 0):
            raise InputError(f"--batch-size must be a number from 1, or auto, got {self.batch_size!r}")
        if self.include_path is not None and not Path(self.include_path).is_dir():
            raise InputError(f"--include-path {self.include_path}: there is no such folder")
        self.given_metadata()
        if importlib.util.find_spec("lm_eval") is None:
            raise InputError("lm-eval is not installed; run pip install 'antiphase[harness]'")

    def given_metadata(self) -> dict[str, Any]:
        """What ``metadata`` says; empty if nothing is given.

        Raises:
            InputError: it is no JSON object.
        """
        try:
            found = json.loads(self.metadata or "{}")
        except (ValueError, RecursionError) as error:
            raise InputError(f"--metadata is no JSON ({one_line(error)}), got {brief(self.metadata)}") from None
        if not isinstance(found, dict):
            raise InputError(f"--metadata must be a JSON object, got {brief(self.metadata)}")
        return found


SETTINGS = HarnessSettings


@dataclass(frozen=True)
class TaskMetric:
    """One metric on one task."""

    value: float | None
    stderr: float | None = None
    """Standard error from lm-eval."""
    interval: list[float] | None = None
    """Wilson's 95 % interval, if all scores are 0 or 1."""


@dataclass(frozen=True, kw_only=True)
class MeasuredTask:
    """What one model reaches on one task with a given number of examples, with every sample, as it is kept."""

    task: str
    version: str | None
    shots: int
    samples: int
    cut: float
    metric: str | None
    metrics: dict[str, TaskMetric]
    scores: list[float]
    """The main metric of each sample."""
    guess_rate: float | None
    """None if there is nothing to choose from, as ``constant_rate``."""
    constant_rate: float | None


@dataclass(frozen=True)
class RowDifference:
    """Difference from the first model on the same rows."""

    value: float
    interval: list[float] | None = None
    """Student's 95 % interval."""


@dataclass(frozen=True)
class TaskScore:
    """Scores of one model on one task with a given number of examples."""

    model: str
    task: str
    shots: int
    samples: int
    """Number of rows."""
    metric: str | None
    """Name of the task's main metric."""
    metrics: dict[str, TaskMetric]
    guess_rate: float | None = None
    """Accuracy of a uniformly random choice."""
    constant_rate: float | None = None
    """Accuracy of always choosing the most common position among the choices."""
    cut: float = 0.0
    """Share of requests truncated at the beginning because they exceed the model's context."""
    version: str | None = None
    """Version of the task."""
    difference: RowDifference | None = None

    @property
    def value(self) -> float | None:
        """Value of the task's main metric."""
        return self.metrics[self.metric].value if self.metric is not None else None


@dataclass(frozen=True)
class Harness(Result):
    """Result of ``antiphase evaluate harness``."""

    models: list[str]
    lm_eval: str
    """Version of lm-eval."""
    rows: list[TaskScore]

    def shots(self) -> list[int]:
        """Numbers of examples, in the order of the command."""
        return list(dict.fromkeys(row.shots for row in self.rows))

    def tasks(self) -> list[str]:
        """Names of the tasks, in the order of the command."""
        return list(dict.fromkeys(row.task for row in self.rows))

    def short_names(self) -> list[str]:
        """Short names of the models: the last parts of their paths, if these are distinct."""
        last = [str(name).rstrip("/").rpartition("/")[2] for name in self.models]
        return last if len(set(last)) == len(last) else self.models


RESULT = Harness
