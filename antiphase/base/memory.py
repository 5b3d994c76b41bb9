"""Peak memory of this process, as its operating system counts it."""

from __future__ import annotations

import sys
from importlib.util import find_spec
from pathlib import Path

STATUS = Path("/proc/self/status")


def peak_memory() -> int | None:
    """Largest resident set of this process so far, in bytes; None where the system does not count it.

    On Linux ``ru_maxrss`` includes the peak of the parent process, so it is not used there.
    """
    if sys.platform != "linux":
        if find_spec("resource") is None:  # on Windows
            return None
        import resource

        size = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return size if sys.platform == "darwin" else 1024 * size
    found = (line.split()[1] for line in STATUS.read_text().splitlines() if line.startswith("VmHWM"))
    return next((1024 * int(kibibytes) for kibibytes in found), None)


def restart_peak() -> None:
    """Let ``peak_memory`` begin anew with what is resident now; on Linux only."""
    if sys.platform == "linux":
        Path("/proc/self/clear_refs").write_text("5")
