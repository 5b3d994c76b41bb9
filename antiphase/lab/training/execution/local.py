"""Jobs as processes of this machine, which share its cores and GPUs."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch

from antiphase.lab.text.workers import cores as usable_cores
from antiphase.lab.training.device import choose_device
from antiphase.lab.training.execution.executor import Command


@dataclass(frozen=True)
class LocalExecutor:
    """Runs jobs beside each other on this machine."""

    def check(self, folder: Path, paths: Sequence[str], say: Callable[[str], None]) -> None:
        """Nothing can be missing here that the jobs' own checks would not find."""

    def pool(self, devices: Sequence[str], wanted: int | None, say: Callable[[str], None]) -> LocalPool:
        """One place for each core, or for each GPU that jobs may be shared out over."""
        cores = usable_cores()
        slots = parallel_jobs(devices, wanted, cores)
        return LocalPool(slots, max(1, cores // slots), gpus_for(devices))

    def close(self) -> None:
        """Nothing is open."""


@dataclass
class LocalPool:
    """Places on this machine."""

    slots: int
    threads: int
    gpus: Sequence[str] = ()
    """The machine's GPUs, shared out over the processes; none: each process uses what its settings say."""
    taken: list[tuple[LocalProcess, str]] = field(default_factory=list)
    """Processes with the GPU that each was given."""

    def start(self, command: Command) -> LocalProcess:
        """A process that sees only one of the GPUs, that with the fewest processes."""
        gpu = None
        if self.gpus:
            self.taken = [(process, one) for process, one in self.taken if process.poll() is None]
            used = [one for _, one in self.taken]
            gpu = min(self.gpus, key=used.count)
        process = start_process(command, self.threads, gpu)
        if gpu is not None:
            self.taken.append((process, gpu))
        return process


class LocalProcess(subprocess.Popen[bytes]):
    """A process of this machine."""

    def stop(self) -> None:
        """Ask it to write a checkpoint and end."""
        if self.poll() is None:
            self.terminate()


def start_process(command: Command, threads: int, gpu: str | None) -> LocalProcess:
    """The command's process, its output appended to the log.

    Args:
        threads: CPU threads, unless the user has told OpenMP of another number.
        gpu: the only one that it sees; None: all of them.
    """
    environment = {"OMP_NUM_THREADS": str(threads), **os.environ}  # noqa: TID251 – OpenMP's own
    if gpu is not None:
        environment["CUDA_VISIBLE_DEVICES"] = gpu
    with open(command.log, "ab") as log:
        return LocalProcess(command.line(), stdout=log, stderr=log, stdin=subprocess.DEVNULL, env=environment)


def parallel_jobs(devices: Sequence[str], wanted: int | None, cores: int) -> int:
    """How many jobs run at a time: one for each core, or one for each GPU that they may be shared out over."""
    if wanted is not None:
        return max(1, min(wanted, len(devices)))
    on_gpu = any(choose_device(device).type == "cuda" for device in devices)
    return max(1, min(len(gpus_for(devices)) if on_gpu else cores, len(devices)))


def gpus_for(devices: Sequence[str]) -> list[str]:
    """The machine's GPUs as CUDA_VISIBLE_DEVICES names them; none where jobs ask for a certain device."""
    chosen = [choose_device(device) for device in devices]
    if any(device.type != "cuda" or device.index is not None for device in chosen):
        return []
    named = os.environ.get("CUDA_VISIBLE_DEVICES")  # noqa: TID251 – CUDA's own
    return named.split(",") if named else [str(index) for index in range(torch.cuda.device_count())]


LOCAL = LocalExecutor()
"""Where jobs run unless something else is asked for."""
