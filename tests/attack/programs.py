"""Runs of the command line that can be killed or made to fail: forked from a warm process, or started cold."""

from __future__ import annotations

import ctypes
import os
import resource
import signal
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

SOURCE = Path(__file__).with_name("shim.c")
TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2")
LONGEST = 600.0
"""Seconds after which a run counts as hanging."""


def build_shim(folder: Path) -> Path | None:
    """Compile the library that makes calls fail; None without a compiler."""
    library = folder / "shim.so"
    try:
        subprocess.run(["cc", "-shared", "-fPIC", "-O1", "-o", str(library), str(SOURCE), "-ldl"], check=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    return library


def warm_up() -> None:
    """Import what commands import, so that forked runs begin at once."""
    import matplotlib.pyplot
    import peft
    import torch
    import transformers

    from antiphase import cli
    from antiphase.lab.lineage import classifiers, translators
    from antiphase.lab.scoring import loading
    from antiphase.lab.studies import training_run

    torch.set_num_threads(1)
    return [matplotlib, peft, transformers, cli, classifiers, translators, loading, training_run].clear()


@dataclass
class Fault:
    """What befalls a run."""

    call: int = 0
    """Number of the call of the shim that fails; 0: none."""
    error: int = 0
    """Its errno; 0 kills the process."""
    lasting: bool = False
    """Whether all later calls fail too."""
    file_size: int | None = None
    """Largest size of a file in bytes."""

    @property
    def plan(self) -> str:
        return f"{self.call} {self.error} {int(self.lasting)}"


@dataclass
class Run:
    """A running or ended command, the leader of a group of processes."""

    pid: int
    place: Path
    """The folder where its output streams lie."""
    started: float = field(default_factory=time.monotonic)
    code: int | None = None
    seconds: float = 0.0

    def poll(self) -> bool:
        """Whether it has ended."""
        if self.code is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self.code, self.seconds = os.waitstatus_to_exitcode(status), time.monotonic() - self.started
        return self.code is not None

    def wait(self, until: float = LONGEST) -> bool:
        """Wait until it ends, or that many seconds after its start; whether it ended."""
        while not self.poll() and time.monotonic() - self.started < until:
            time.sleep(0.002)
        return self.code is not None

    def signal(self, number: int, *, whole: bool = True) -> None:
        """Send a signal to the group, or to the leader alone."""
        with suppress(ProcessLookupError):  # it has just ended
            (os.killpg if whole else os.kill)(self.pid, number)

    def end_group(self) -> None:
        """Kill what is left of the group and wait for the leader."""
        self.signal(signal.SIGKILL)
        self.wait()

    @property
    def said(self) -> str:
        """Its standard error."""
        return (self.place / "stderr").read_text(encoding="utf-8", errors="replace")

    @property
    def calls(self) -> int:
        """Calls that the shim counted; 0 if the run was killed."""
        path = self.place / "calls"
        return int(path.read_text()) if path.is_file() else 0


def _environment(here: Path, fault: Fault) -> dict[str, str]:
    return {
        **os.environ, "ATTACK_FOLDER": str(here), "ATTACK_FAULT": fault.plan, "OMP_NUM_THREADS": "1",
        "HF_HUB_OFFLINE": "1", "COLUMNS": "1000",
    }  # fmt: skip


def start_warm(words: list[str], here: Path, place: Path, fault: Fault | None = None) -> Run:
    """Fork a run of ``antiphase`` in the folder ``here``; its output goes to ``place``."""
    fault = fault or Fault()
    place.mkdir(parents=True, exist_ok=True)
    (place / "calls").unlink(missing_ok=True)
    if pid := os.fork():
        return Run(pid, place)
    code = 99
    try:
        os.setsid()
        os.chdir(here)
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        os.dup2(os.open(place / "stderr", os.O_WRONLY | os.O_CREAT | os.O_TRUNC), 2)
        sys.stdout, sys.stderr = os.fdopen(1, "w", closefd=False), os.fdopen(2, "w", closefd=False)
        os.environ.update(_environment(here, fault))
        signal.signal(signal.SIGINT, signal.default_int_handler)
        if fault.file_size is not None:
            resource.setrlimit(resource.RLIMIT_FSIZE, (fault.file_size, resource.RLIM_INFINITY))
        code = _command(words, place)
    finally:
        os._exit(code)


def _command(words: list[str], place: Path) -> int:
    import traceback

    from antiphase.cli import main

    shim = ctypes.CDLL(None)
    if hasattr(shim, "attack_arm"):
        shim.attack_arm()
    sys.argv = ["antiphase", *words]
    try:
        main()
        code = 0
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else 0
    except BaseException:  # noqa: BLE001 – what Python would show is what is looked for
        traceback.print_exc()
        code = 1
    sys.stdout.flush()
    sys.stderr.flush()
    if hasattr(shim, "attack_calls"):
        (place / "calls").write_text(str(shim.attack_calls()))
    return code


def start_cold(words: list[str], here: Path, place: Path, fault: Fault | None = None, *, processes: int = 1) -> Run:
    """Start a new interpreter with ``antiphase``, or ``torchrun`` with several of them."""
    place.mkdir(parents=True, exist_ok=True)
    launcher = ("-m",) if processes == 1 else (*TORCHRUN, "-m")
    with open(place / "stdout", "wb") as out, open(place / "stderr", "wb") as err:
        process = subprocess.Popen(
            [sys.executable, *launcher, "antiphase", *words], cwd=here, stdout=out, stderr=err,
            stdin=subprocess.DEVNULL, env=_environment(here, fault or Fault()), start_new_session=True,
        )  # fmt: skip
    process.returncode = 0  # Run waits for it
    return Run(process.pid, place)


def rank_of(pid: int) -> int | None:
    """The rank of a process of ``torchrun``; None for any other."""
    try:
        content = Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return None
    found = [part for part in content.split(b"\0") if part.startswith(b"RANK=")]
    return int(found[0][5:]) if found else None


def ranks(run: Run) -> dict[int, int]:
    """{rank: process id} of the group of ``torchrun``."""
    children = Path(f"/proc/{run.pid}/task/{run.pid}/children")
    try:
        listed = [int(pid) for pid in children.read_text().split()]
    except OSError:
        listed = []
    return {rank: pid for pid in listed if (rank := rank_of(pid)) is not None}
