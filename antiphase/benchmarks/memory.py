"""Peak memory of one call beyond its inputs: on a processor in a process of its own, on a GPU by torch's own count."""

from __future__ import annotations

import multiprocessing
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from antiphase.benchmarks.schemes import Case, Scheme, work

WARM_UP_LENGTH = 256
NO_LIMIT = 1 << 62


def peak_extra_bytes(scheme: Scheme, case: Case, seed: int) -> int:
    """Bytes that the call adds at its peak: output, gradients and everything in between."""
    if torch.device(case.device).type == "cuda":
        return peak_on_gpu(work(scheme, case, seed), case.device)
    return peak_of(_call, scheme, case, seed, what=scheme.name)


def peak_on_gpu(run: Callable[[], object], device: str) -> int:
    """Bytes that a call takes beyond what was there before, at most."""
    run()  # what libraries keep is theirs by now
    torch.cuda.synchronize(device)
    torch.cuda.reset_peak_memory_stats(device)
    before = torch.cuda.memory_allocated(device)
    run()
    return torch.cuda.max_memory_allocated(device) - before


def _call(length: int, scheme: Scheme, case: Case, seed: int) -> Callable[[], object]:
    return work(scheme, replace(case, length=min(length, case.length)), seed)


def peak_of(make: Callable[..., Callable[[], object]], *arguments: Any, what: str) -> int:
    """Bytes that ``make(length, *arguments)()`` adds to a process of its own at its peak, beyond what ``make`` holds.

    A short call runs first (``length`` 256, then without a limit), so that libraries have made their own buffers by
    then.
    """
    context = multiprocessing.get_context("spawn")  # a fork would share what the parent has allocated
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_measure, args=(sender, torch.get_num_threads(), make, *arguments))
    process.start()
    sender.close()
    try:
        found: int = receiver.recv()
    except EOFError:
        process.join()
        raise RuntimeError(f"measuring the memory of {what} ended with code {process.exitcode}") from None
    process.join()
    return found


def _measure(sender: Any, threads: int, make: Callable[..., Callable[[], object]], *arguments: Any) -> None:
    torch.set_num_threads(threads)
    make(WARM_UP_LENGTH, *arguments)()
    run = make(NO_LIMIT, *arguments)
    before = _held(reset=True)
    run()
    sender.send(_held() - before)


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
