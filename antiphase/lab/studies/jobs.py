"""Training runs side by side, each in its own process, each resumable by itself."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from antiphase.base.errors import DIVERGED, DivergedError
from antiphase.base.folders.contents import check_model, check_text
from antiphase.base.records import PAGE, Record, remove_leftovers, write_atomically
from antiphase.lab.settings.presets import RunSettings, to_yaml
from antiphase.lab.training.execution.executor import Command, Pool
from antiphase.lab.training.execution.queue import run_tasks
from antiphase.lab.training.run_folder import METRICS, last_metrics


@dataclass(frozen=True, eq=False)
class Job:
    """One training run of a study."""

    name: str
    """Its folder in the study's folder, for example ``softmax-seed0``."""
    arm: str
    seed: int
    settings: RunSettings

    @property
    def tokens(self) -> int:
        """Tokens that all of its steps read."""
        training = self.settings.training
        return training.steps * training.batch_size * self.settings.data.sequence_length


Report = Callable[[Job, int, dict[str, Any]], None]
"""Job, steps done, last line of its metrics."""


def run_jobs(jobs: Sequence[Job], output: Path, *, pool: Pool, report: Report) -> None:
    """Run every job that has no record yet, as many at a time as the pool has places.

    A run that diverges has a record, too, which says so (``RunResult.is_diverged``); the others continue.

    Raises:
        InputError: a run refused its settings; the message is its own. Or a finished run holds another model by now, or
            has read other text than the study.
        Interrupted: Ctrl-C or termination; every run has written its checkpoint.
        BrokenRunError: a run broke; the message names its log, and the others have written their checkpoints.
    """
    tasks = [_Training(job, jobs[0], output, report) for job in jobs]
    run_tasks(tasks, pool, stopped="every run has written a checkpoint")


def check_any_left(output: Path) -> None:
    """
    Raises:
        DivergedError: every training run below this folder of a finished study diverged.
    """
    runs = [Record.load(metrics.parent) for metrics in output.rglob(METRICS)]
    if runs and all(run.values.get("diverged") for run in runs):
        raise DivergedError(
            f"--output {output}: all {len(runs)} runs diverged, so the record has no trained model; a lower "
            "training.learning_rate or more training.warmup_steps may help, in another folder"
        )


@dataclass(frozen=True, eq=False)
class _Training:
    """A job as a task."""

    job: Job
    first: Job
    """Of the study, which read the text of its first job; an arm's settings may name other data."""
    output: Path
    reported: Report
    accepted = (0, DIVERGED)

    @property
    def name(self) -> str:
        return self.job.name

    @property
    def folder(self) -> Path:
        return self.output / self.job.name

    def command(self, threads: int) -> Command:
        """``antiphase train`` on a settings file of its own, which is written here and which people can run by hand."""
        settings = self.job.settings
        if settings.training.threads is None:
            settings = replace(settings, training=replace(settings.training, threads=threads))
        logs = self.output / "logs"
        logs.mkdir(parents=True, exist_ok=True)
        path = logs / f"{self.name}.yaml"
        remove_leftovers(path)
        write_atomically(path, to_yaml(settings).encode())
        words = ["train", "--preset", str(path), "--output", str(self.folder), "--resume"]
        return Command(self.name, words, self.folder, logs / f"{self.name}.log")

    def is_done(self) -> bool:
        """Whether there is a record with its page; without the page, the run was stopped after its last step."""
        if not (self.folder / "record.json").is_file():
            return False
        return (self.folder / PAGE).is_file() or Record.load(self.folder).values.get("diverged") is not None

    def check(self) -> None:
        check_model(self.folder)
        if self.job.settings.data == self.first.settings.data:
            check_text(self.folder, self.output)

    def report(self, *, done: bool) -> None:
        """Pass on the last line of the run's metrics; before step 1 there is none."""
        last = last_metrics(self.folder) or {}
        self.reported(self.job, self.job.settings.training.steps if done else last.get("step", 0), last)
