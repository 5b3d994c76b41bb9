"""Peak memory of one call beyond its inputs: in a separate process on a CPU, and by torch's own count on a GPU."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch

from antiphase.base.memory import give_back_freed_memory, peak_memory, restart_peak
from antiphase.lab.speed.schemes import Case, Scheme, work

WARM_UP_LENGTH = 256
NO_LIMIT = 1 << 62


def peak_extra_bytes(scheme: Scheme, case: Case, seed: int) -> int:
    """Bytes that the call adds at its peak: output, gradients and temporary tensors."""
    if torch.device(case.device).type == "cuda":
        return peak_on_gpu(work(scheme, case, seed), case.device)
    return peak_of(_call, scheme, case, seed, what=scheme.name)


def peak_on_gpu(run: Callable[[], object], device: str) -> int:
    """Largest number of bytes that a call allocates beyond those allocated before."""
    run()  # libraries have allocated their buffers after this
    torch.cuda.synchronize(device)
    torch.cuda.reset_peak_memory_stats(device)
    before = torch.cuda.memory_allocated(device)
    run()
    return torch.cuda.max_memory_allocated(device) - before


def _call(length: int, scheme: Scheme, case: Case, seed: int) -> Callable[[], object]:
    return work(scheme, replace(case, length=min(length, case.length)), seed)


def peak_of(make: Callable[..., Callable[[], object]], *arguments: Any, what: str) -> int:
    """Peak bytes that ``make(length, *arguments)()`` adds in a separate process, beyond those that ``make`` allocates.

    A short call runs first (``length`` 256, then without a limit), so that libraries have allocated their own buffers.
    """
    context = multiprocessing.get_context("spawn")  # a fork would share the parent's allocations
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
    give_back_freed_memory()  # or the call would use again, uncounted, what making it has freed
    make(WARM_UP_LENGTH, *arguments)()
    run = make(NO_LIMIT, *arguments)
    restart_peak()
    before = peak_memory()
    run()
    after = peak_memory()
    if before is None or after is None:
        raise RuntimeError("this system does not count the peak memory of a process")
    sender.send(after - before)
