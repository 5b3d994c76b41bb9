"""Timing under other conditions: another thread count, or a busy process that occupies a core."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch


@dataclass(frozen=True)
class Condition:
    """A condition under which calls are timed on a CPU."""

    threads: int
    is_busy: bool
    """Whether another process computes all the time, on one core."""

    @property
    def words(self) -> str:
        """For example ``2 threads beside a busy process``."""
        return f"{self.threads} thread{'s' * (self.threads > 1)}{' beside a busy process' * self.is_busy}"

    @contextmanager
    def holds(self) -> Iterator[None]:
        """Apply the condition within the block."""
        before = torch.get_num_threads()
        torch.set_num_threads(self.threads)
        try:
            with busy_process() if self.is_busy else nullcontext():
                yield
        finally:
            torch.set_num_threads(before)

    def described(self) -> dict[str, Any]:
        """Values for a record's row."""
        return {"threads": self.threads, "beside_busy_process": self.is_busy}


@contextmanager
def busy_process() -> Iterator[None]:
    """Another process that is busy all the time; it ends with the block."""
    process = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        yield
    finally:
        process.kill()
        process.wait()


def conditions() -> list[Condition]:
    """One thread, all threads, and all threads with a busy process."""
    threads = torch.get_num_threads()
    found = [Condition(1, False), Condition(threads, False), Condition(threads, True)]
    return list(dict.fromkeys(found))
