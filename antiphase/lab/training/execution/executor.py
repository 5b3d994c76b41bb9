"""What runs the processes of jobs: two protocols, and what is started.

A job is a command of antiphase that a person can repeat; its folder, log, settings and record are the same wherever it
runs.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol


@dataclass(frozen=True, eq=False)
class Command:
    """A command of antiphase in a process of its own."""

    name: str
    """Of the job, in messages."""
    words: Sequence[str]
    """Arguments of ``antiphase``."""
    folder: Path
    """Folder that the process locks."""
    log: Path
    """File to which everything that the process prints is appended."""

    def line(self) -> list[str]:
        """The command line, with the Python that runs this."""
        return [sys.executable, "-m", "antiphase", *self.words]


class Running(Protocol):
    """A process that was started."""

    def poll(self) -> int | None:
        """Its exit code, negative for a signal; None while it runs, waits for a place, or is started again."""

    def stop(self) -> None:
        """Ask it to write a checkpoint and end; returns at once."""

    def wait(self) -> int:
        """Wait for its end; the exit code."""


class Pool(Protocol):
    """Places for processes."""

    @property
    def slots(self) -> int:
        """How many processes may be started before one ends."""

    @property
    def threads(self) -> int:
        """CPU threads of each process."""

    def start(self, command: Command) -> Running:
        """Start a process, or queue it."""


class Executor(Protocol):
    """Runs the jobs of a study."""

    def check(self, folder: Path, paths: Sequence[str], say: Callable[[str], None]) -> None:
        """Before anything is trained: whether jobs with this output folder, which exists, can run.

        Args:
            paths: files and folders that they read.
            say: called with what a user has to know, such as where the cluster shows its state.

        Raises:
            InputError: they cannot; the message names the flag.
        """

    def pool(self, devices: Sequence[str], wanted: int | None, say: Callable[[str], None]) -> Pool:
        """Places for jobs.

        Args:
            devices: the device setting of each job.
            wanted: how many may run at a time; None: as many as there is room for.
            say: called when a job has to be started again.
        """

    def close(self) -> None:
        """After the last job."""
