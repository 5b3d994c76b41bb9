"""Peak memory of one call beyond its inputs, measured in a process of its own."""

from __future__ import annotations

import multiprocessing
import sys
from dataclasses import replace
from pathlib import Path

import torch

from antiphase.benchmarks.schemes import Case, Scheme, work

WARM_UP_LENGTH = 256


def peak_extra_bytes(scheme: Scheme, case: Case, seed: int) -> int:
    """Bytes that the call adds to the process at its peak: output, gradients and everything in between.

    A short call of the same kind runs first, so that libraries have made their own buffers by then.
    """
    context = multiprocessing.get_context("spawn")  # a fork would share what the parent has allocated
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_measure, args=(sender, scheme, case, seed, torch.get_num_threads()))
    process.start()
    sender.close()
    try:
        found: int = receiver.recv()
    except EOFError:
        process.join()
        raise RuntimeError(f"measuring the memory of {scheme.name} ended with code {process.exitcode}") from None
    process.join()
    return found


def _measure(sender: object, scheme: Scheme, case: Case, seed: int, threads: int) -> None:
    torch.set_num_threads(threads)
    work(scheme, replace(case, length=WARM_UP_LENGTH), seed)()
    run = work(scheme, case, seed)
    before = _held(reset=True)
    run()
    sender.send(_held() - before)  # type: ignore[attr-defined]  # a Connection, whose class depends on the system


def _held(*, reset: bool = False) -> int:
    """Bytes that this process held at most, since the last reset where the system can forget (Linux).

    Linux carries ``ru_maxrss`` over from the process that started this one, so it is no use there.
    """
    if sys.platform != "linux":
        import resource  # which Windows has not

        size = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return size if sys.platform == "darwin" else 1024 * size
    if reset:
        Path("/proc/self/clear_refs").write_text("5")
    status = Path("/proc/self/status").read_text()
    return next(1024 * int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM"))
