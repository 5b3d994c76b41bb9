"""What a task of Ray does on a node: look whether it sees the storage, and run the process of a job.

It is imported by name on the node, so antiphase is installed there, too. Nothing here imports torch or Ray.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from platform import node

from antiphase.base.folders.holders import EXPIRES
from antiphase.base.folders.ownership import is_in_use

POLL_SECONDS = 0.2
COMPARED = ("antiphase", "torch", "transformers")
"""Packages whose versions change results."""
BOUND = (
    "import ctypes, os, signal, sys\n"
    "ctypes.CDLL(None).prctl(1, signal.SIGTERM)\n"  # PR_SET_PDEATHSIG, which exec keeps
    "if os.getppid() == int(sys.argv[1]): os.execv(sys.executable, [sys.executable, *sys.argv[2:]])\n"
)
"""Becomes another command, which is asked to end when its parent dies: the worker, and with it its node's Ray."""


@dataclass(frozen=True)
class Sight:
    """What a node sees."""

    host: str
    token: str | None
    """What the probe file holds there; None if there is none."""
    missing: list[str]
    """Paths that do not exist there."""
    versions: dict[str, str | None]


def versions() -> dict[str, str | None]:
    """Installed versions of what changes results."""
    found: dict[str, str | None] = {}
    for package in COMPARED:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            found[package] = None
    return found


def look(probe: str, answer: str, paths: Sequence[str]) -> Sight:
    """Read the file ``probe``, and write what it holds to ``answer`` beside it."""
    token = None
    if Path(probe).is_file():
        token = Path(probe).read_text()
        Path(answer).write_text(token)
    return Sight(node(), token, [path for path in paths if not Path(path).exists()], versions())


def execute(words: Sequence[str], folder: str, log: str, home: str) -> int:
    """Run a command of antiphase in a process of its own, and return its exit code, negative for a signal.

    It begins when nobody holds its folder any more: a run that was cut off from the cluster may still write its last
    checkpoint. A cancelled task asks the process to end, and waits for it. The process ends with the worker.

    Args:
        folder, log: absolute paths, because the worker has a working folder of its own.
        home: working folder, against which relative paths of the command are meant.
    """
    patience = time.monotonic() + 3 * EXPIRES
    process = None
    try:
        while is_in_use(Path(folder)) and time.monotonic() < patience:
            time.sleep(POLL_SECONDS)
        with open(log, "ab") as file:
            process = subprocess.Popen(
                _bound(["-m", "antiphase", *words]), cwd=home, stdout=file, stderr=file, stdin=subprocess.DEVNULL
            )
        while process.poll() is None:
            time.sleep(POLL_SECONDS)
    except KeyboardInterrupt:
        if process is None:
            return -signal.SIGTERM
        process.terminate()
        process.wait()
    return int(process.returncode)


def _bound(words: Sequence[str]) -> list[str]:
    """A command line of this Python, bound to the life of this process where the system can do that."""
    if sys.platform != "linux":
        return [sys.executable, *words]
    return [sys.executable, "-c", BOUND, str(os.getpid()), *words]
