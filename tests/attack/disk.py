"""Commands on a disk that fails or is full: one sentence, nothing half done, and the same result once it works."""

from __future__ import annotations

import errno
import os
import random
import re
import subprocess
from pathlib import Path

from attack.programs import Fault
from attack.stops import Outcome, Undisturbed, finish, start
from attack.targets import OUT, Target, fresh, leftovers

ERRORS = (errno.ENOSPC, errno.EIO, errno.EACCES)
SENTENCE = re.compile(r"antiphase: [^\n]{1,289}\n")
KIB = 1024


def failing_call(target: Target, whole: Undisturbed, folder: Path, draw: random.Random) -> Outcome:
    """One call of a run, or all from one on, fail."""
    error = draw.choice(ERRORS)
    fault = Fault(call=draw.randint(1, whole.calls), error=error, lasting=draw.random() < 0.5)
    how = f"{os.strerror(error)}{', for good' if fault.lasting else ''} at call {fault.call} of {whole.calls}"
    return _attempt(target, whole, fresh(folder / "here"), folder, fault, how)


def small_files(target: Target, whole: Undisturbed, folder: Path, draw: random.Random) -> Outcome:
    """No file may be larger than a random size, as under ``ulimit -f``."""
    fault = Fault(file_size=draw.choice((2, 4, 8, 16, 32, 64)) * KIB)
    return _attempt(target, whole, fresh(folder / "here"), folder, fault, f"files of at most {fault.file_size} bytes")


def can_mount(folder: Path) -> bool:
    """Whether a small file system can be mounted here."""
    place = fresh(folder / "probe")
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", place], capture_output=True).returncode:
        return False
    subprocess.run(["umount", place], check=True)
    return True


def small_disk(target: Target, whole: Undisturbed, folder: Path, draw: random.Random) -> Outcome:
    """The output lies on a file system that is full at some time, and then grows."""
    here, size = fresh(folder / "here"), draw.choice((8, 16, 32, 64, 128, 256))
    (here / OUT).mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}k", "tmpfs", here / OUT], check=True)
    try:
        outcome = _begin(target, here, folder, Fault(), f"{size} KiB of disk")
        subprocess.run(["mount", "-o", "remount,size=64m", here / OUT], check=True)
        finish(target, whole, here, folder, outcome)
    finally:
        subprocess.run(["umount", here / OUT], check=True)
    return outcome


def _attempt(target: Target, whole: Undisturbed, here: Path, folder: Path, fault: Fault, how: str) -> Outcome:
    outcome = _begin(target, here, folder, fault, how)
    finish(target, whole, here, folder, outcome)
    return outcome


def _begin(target: Target, here: Path, folder: Path, fault: Fault, how: str) -> Outcome:
    """Run the command into the fault, and judge how it ends."""
    outcome = Outcome(target.name)
    run = start(target, here, folder / "log", fault=fault)
    run.wait()
    if run.code is None:
        run.end_group()
        outcome.wrong.append(f"hangs, {how}")
    elif run.code not in (0, 2):
        outcome.wrong.append(f"code {run.code}, {how}: {run.said[-700:]}")
    elif run.code == 2:
        outcome.stops.append(how)
        if not SENTENCE.fullmatch(run.said):
            outcome.wrong.append(f"no single sentence, {how}: {run.said[-500:]}")
        if left := leftovers(here):
            outcome.wrong.append(f"leaves {', '.join(left[:4])}, {how}")
    return outcome
