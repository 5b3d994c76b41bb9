"""Memory of this process: its peak, as the operating system counts it, and what becomes of freed blocks."""

from __future__ import annotations

import ctypes
import resource
import sys
from pathlib import Path

STATUS = Path("/proc/self/status")
TRIM_THRESHOLD, MMAP_THRESHOLD = -1, -3
"""Parameters of glibc's ``mallopt``."""
LARGEST_KEPT = 32 << 20
"""Bytes of a block; with larger ones kept, a trial's peak was a sixth to a third higher."""


def peak_memory() -> int | None:
    """Largest resident set of this process so far, in bytes; None where the system does not count it.

    On Linux ``ru_maxrss`` includes the peak of the parent process, so it is not used there.
    """
    if sys.platform != "linux":
        size = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return size if sys.platform == "darwin" else 1024 * size
    found = (line.split()[1] for line in STATUS.read_text().splitlines() if line.startswith("VmHWM"))
    return next((1024 * int(kibibytes) for kibibytes in found), None)


def restart_peak() -> None:
    """Let ``peak_memory`` begin anew with what is resident now; on Linux only."""
    if sys.platform == "linux":
        Path("/proc/self/clear_refs").write_text("5")


def give_back_freed_memory() -> None:
    """Let glibc give freed blocks of 64 KiB or more back at once, so that a peak is of what was in use together."""
    _set_malloc(MMAP_THRESHOLD, 1 << 16)


def keep_freed_memory() -> None:
    """Let glibc keep freed memory for later tensors; other C libraries have no such switch.

    The system clears each page that it gives out, and a training step frees and takes the same sizes again: by a trial,
    5 to 10 % of its time. Blocks of more than ``LARGEST_KEPT`` go back to the system all the same.
    """
    _set_malloc(TRIM_THRESHOLD, -1)
    _set_malloc(MMAP_THRESHOLD, LARGEST_KEPT)


def _set_malloc(parameter: int, value: int) -> None:
    if sys.platform == "linux" and hasattr(libc := ctypes.CDLL(None), "mallopt"):
        libc.mallopt(parameter, value)
