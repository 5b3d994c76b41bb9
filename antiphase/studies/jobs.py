"""Training runs side by side, each in its own process, each resumable by itself."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from types import FrameType
from typing import Any

from antiphase.config import RunSettings, to_yaml
from antiphase.errors import DIVERGED, InputError, Interrupted
from antiphase.execution.executor import Command, Pool, Running
from antiphase.folders.contents import check_model, check_text
from antiphase.folders.ownership import is_in_use
from antiphase.records import write_atomically
from antiphase.training.run_folder import last_metrics

POLL_SECONDS = 0.5


@dataclass(frozen=True, eq=False)
class Job:
    """One training run of a study."""

    name: str
    """Its folder in the study's folder, for example ``softmax-seed0``."""
    arm: str
    seed: int
    settings: RunSettings


Report = Callable[[Job, int, dict[str, Any]], None]
"""Job, steps done, last line of its metrics."""


def run_jobs(jobs: Sequence[Job], output: Path, *, pool: Pool, report: Report) -> None:
    """Run every job that has no record yet, as many at a time as the pool has places.

    A run that diverges has a record, too, which says so (``RunResult.is_diverged``); the others continue.

    A run that a killed study left behind, and that is still going, counts as one of them; it is waited for.

    Raises:
        InputError: a run refused its settings; the message is its own. Or a finished run holds another model by now, or
            has read other text than the study.
        Interrupted: Ctrl-C or termination; every run has written its checkpoint.
        RuntimeError: a run broke; the message names its log.
    """
    waiting = list(jobs)
    running: dict[Job, Running] = {}
    with ExitStack() as stack:
        stack.callback(_stop, running)
        stack.enter_context(_terminated_like_ctrl_c())
        try:
            while waiting or running:
                left_behind = [job for job in waiting if is_in_use(output / job.name)]
                for job in [job for job in waiting if job not in left_behind]:
                    if (output / job.name / "record.json").is_file():
                        check_model(output / job.name)
                        _check_text(job, jobs[0], output)
                        waiting.remove(job)
                        _report(job, output, report, done=True)
                    elif len(running) + len(left_behind) < pool.slots:
                        waiting.remove(job)
                        running[job] = pool.start(command_of(job, output, pool.threads))
                if not waiting and not running:
                    break
                time.sleep(POLL_SECONDS)
                for job in left_behind:
                    _report(job, output, report)
                for job, process in list(running.items()):
                    code = process.poll()
                    if code is not None:
                        del running[job]
                        _check(job, code, output)
                        _check_text(job, jobs[0], output)
                    _report(job, output, report, done=code is not None)
        except KeyboardInterrupt:
            raise Interrupted("every run has written a checkpoint") from None


def _check_text(job: Job, first: Job, output: Path) -> None:
    """The study read the text of its first job; an arm's settings may name other data."""
    if job.settings.data == first.settings.data:
        check_text(output / job.name, output)


def _report(job: Job, output: Path, report: Report, *, done: bool = False) -> None:
    """Pass on the last line of a run's metrics; before step 1 there is none."""
    last = last_metrics(output / job.name) or {}
    report(job, job.settings.training.steps if done else last.get("step", 0), last)


def command_of(job: Job, output: Path, threads: int) -> Command:
    """``antiphase train`` on a settings file of its own, which is written here and which people can run by hand."""
    settings = job.settings
    if settings.training.threads is None:
        settings = replace(settings, training=replace(settings.training, threads=threads))
    logs = output / "logs"
    logs.mkdir(parents=True, exist_ok=True)
    path = logs / f"{job.name}.yaml"
    write_atomically(path, to_yaml(settings).encode())
    words = ["train", "--preset", str(path), "--output", str(output / job.name), "--resume"]
    return Command(job.name, words, output / job.name, logs / f"{job.name}.log")


def _check(job: Job, code: int, output: Path) -> None:
    if code in (0, DIVERGED):
        return
    log = output / "logs" / f"{job.name}.log"
    lines = [line.rstrip() for line in log.read_text(encoding="utf-8", errors="replace").split("\n") if line.strip()]
    last = lines[-1] if lines else "it printed nothing"
    if code == 2:
        raise InputError(last.removeprefix("antiphase: "))
    if code in (130, -signal.SIGTERM, -signal.SIGINT, 143):
        raise Interrupted(f"the run {job.name} was stopped")
    raise RuntimeError(f"the run {job.name} ended with code {code}: {last} (whole log: {log})")


@contextmanager
def _terminated_like_ctrl_c() -> Iterator[None]:
    """A termination signal stops the runs as Ctrl-C does; by itself it would end this process and leave them going."""
    if threading.current_thread() is not threading.main_thread():
        yield  # only the main thread may set signal handlers
        return

    def handle(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    previous = signal.signal(signal.SIGTERM, handle)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, previous)


def _stop(running: dict[Job, Running]) -> None:
    """Ask the running jobs to write a checkpoint and stop, and wait for them."""
    for process in running.values():
        process.stop()
    for process in running.values():
        process.wait()
