"""Training runs side by side, each in its own process, each resumable by itself."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from antiphase.config import RunSettings, to_yaml
from antiphase.errors import InputError, Interrupted
from antiphase.records import write_atomically
from antiphase.training.loop import choose_device
from antiphase.training.run_folder import read_metrics

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


def parallel_runs(jobs: Sequence[Job], wanted: int | None, cores: int) -> int:
    """How many jobs run at a time: one for each core, one alone where they share a GPU."""
    if wanted is not None:
        return max(1, min(wanted, len(jobs)))
    on_gpu = any(choose_device(job.settings.training.device).type == "cuda" for job in jobs)
    return 1 if on_gpu else max(1, min(cores, len(jobs)))


def run_jobs(jobs: Sequence[Job], output: Path, *, processes: int, cores: int, report: Report) -> None:
    """Run every job that has no record yet, ``processes`` at a time; cores are shared out among them.

    Raises:
        InputError: a run refused its settings; the message is its own.
        Interrupted: Ctrl-C; every run has written its checkpoint.
        RuntimeError: a run broke; the message names its log.
    """
    threads = max(1, cores // processes)
    waiting = [job for job in jobs if not (output / job.name / "record.json").is_file()]
    for job in jobs:
        if job not in waiting:
            report(job, job.settings.training.steps, {})
    running: dict[Job, subprocess.Popen[bytes]] = {}
    with ExitStack() as stack:
        stack.callback(_stop, running)
        try:
            while waiting or running:
                while waiting and len(running) < processes:
                    job = waiting.pop(0)
                    running[job] = _start(job, output, threads)
                time.sleep(POLL_SECONDS)
                for job, process in list(running.items()):
                    lines = read_metrics(output / job.name)
                    if lines:
                        report(job, lines[-1]["step"], lines[-1])
                    if process.poll() is not None:
                        del running[job]
                        _check(job, process.returncode, output)
                        report(job, job.settings.training.steps, lines[-1] if lines else {})
        except KeyboardInterrupt:
            raise Interrupted("every run has written a checkpoint") from None


def _start(job: Job, output: Path, threads: int) -> subprocess.Popen[bytes]:
    """``antiphase train`` on a settings file of its own, which a person can run again by hand."""
    settings = job.settings
    if settings.training.threads is None:
        settings = replace(settings, training=replace(settings.training, threads=threads))
    logs = output / "logs"
    logs.mkdir(parents=True, exist_ok=True)
    path = logs / f"{job.name}.yaml"
    write_atomically(path, to_yaml(settings).encode())
    command = [sys.executable, "-m", "antiphase", "train", "--preset", str(path), "--output", str(output / job.name)]
    with open(logs / f"{job.name}.log", "ab") as log:
        return subprocess.Popen([*command, "--resume"], stdout=log, stderr=log, stdin=subprocess.DEVNULL)


def _check(job: Job, code: int, output: Path) -> None:
    if code == 0:
        return
    log = output / "logs" / f"{job.name}.log"
    lines = [line for line in log.read_text(encoding="utf-8", errors="replace").split("\n") if line.strip()]
    last = lines[-1] if lines else "it said nothing"
    if code == 2:
        raise InputError(last.removeprefix("antiphase: "))
    if code in (130, -signal.SIGTERM, -signal.SIGINT, 143):
        raise Interrupted(f"the run {job.name} was stopped")
    raise RuntimeError(f"the run {job.name} ended with code {code}: {last} (whole log: {log})")


def _stop(running: dict[Job, subprocess.Popen[bytes]]) -> None:
    """Ask what still runs to write its checkpoint and end, and wait for it."""
    for process in running.values():
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
    for process in running.values():
        process.wait()
