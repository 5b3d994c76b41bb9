"""Timing beside other work: another thread count, and a busy process that takes a core."""

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
    """Under which calls are timed on a processor."""

    threads: int
    is_busy: bool
    """Whether another process computes all the while, on one core."""

    @property
    def words(self) -> str:
        """``2 threads beside a busy process``."""
        return f"{self.threads} thread{'s' * (self.threads > 1)}{' beside a busy process' * self.is_busy}"

    @contextmanager
    def holds(self) -> Iterator[None]:
        """The condition, until the block ends."""
        before = torch.get_num_threads()
        torch.set_num_threads(self.threads)
        try:
            with busy_process() if self.is_busy else nullcontext():
                yield
        finally:
            torch.set_num_threads(before)

    def described(self) -> dict[str, Any]:
        """For a record's row."""
        return {"threads": self.threads, "beside_busy_process": self.is_busy}


@contextmanager
def busy_process() -> Iterator[None]:
    """Another process that never waits; it ends with the block."""
    process = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        yield
    finally:
        process.kill()
        process.wait()


def conditions() -> list[Condition]:
    """One thread, all threads, and all threads beside a busy process."""
    threads = torch.get_num_threads()
    found = [Condition(1, False), Condition(threads, False), Condition(threads, True)]
    return list(dict.fromkeys(found))
