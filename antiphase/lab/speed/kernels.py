"""Speed of the native kernels as a share of what the machine reaches in a large product, or in reading memory."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

import torch

from antiphase.base.errors import InputError
from antiphase.base.records import Record
from antiphase.lab.speed.conditions import Condition
from antiphase.lab.speed.schemes import OURS, Case, work
from antiphase.lab.speed.timing import dtype_name, paired_times, product_rate
from antiphase.ops.native.library import KERNELS, LOOPS, kernels, run_loop, why_not_built
from antiphase.ops.shapes import has_bf16_instructions

HEADS, WIDTH, LENGTH = 8, 64, 4096
EXPONENTIALS = LOOPS[-1]
LONGEST_CACHE = 16384
LOOP_SECONDS, CALL_SECONDS, SEVERAL = 0.05, 4.0, 7
"""Length of a loop's measurement, of a whole call's, and how many measurements their medians are of."""
READ_BYTES = 1 << 28
"""Size of the tensor whose sum measures how fast memory is read; larger than the caches."""
LOW_SHARE, LOW_SHARE_OF_TILES = 0.6, 0.4
"""Below these shares of the machine's own rate, a row is marked."""
TILES = KERNELS[-1]


def benchmark_kernels(
    *, quick: bool = False, seed: int = 0, say: Callable[[str], None] = lambda message: None
) -> Record:
    """Measure each inner loop, and whole calls, with one thread and with all.

    Raises:
        InputError: the native kernels are not built.
    """
    if (reason := why_not_built()) is not None:
        raise InputError(f"benchmark kernels measures the native kernels: {reason}")
    started = time.perf_counter()
    rows = []
    for threads in dict.fromkeys((1, torch.get_num_threads())):
        with Condition(threads, is_busy=False).holds():
            for dtype in (torch.float32, torch.bfloat16):
                name = dtype_name(dtype)
                say(f"measuring {name}, {threads} thread{'s' * (threads > 1)}")
                rows += [{**row, "dtype": name, "threads": threads} for row in _rows(dtype, seed, quick=quick)]
    return Record(
        kind="benchmark-kernels",
        values={"rows": rows, "kernels": kernels()},
        config={"heads": HEADS, "width": WIDTH, "length": LENGTH, "cache": LONGEST_CACHE, "quick": quick},
        seeds=[seed],
        seconds=time.perf_counter() - started,
    )


def _rows(dtype: torch.dtype, seed: int, *, quick: bool) -> list[dict[str, Any]]:
    """Loops and whole calls in one dtype, in the current number of threads."""
    # Where the processor has no products of bf16, PyTorch's crawl, and kernels multiply in fp32.
    multiplied = torch.float32 if dtype == torch.bfloat16 and not has_bf16_instructions() else dtype
    product, read = product_rate(multiplied) / 1e9, reading_rate() / 1e9
    low = LOW_SHARE_OF_TILES if dtype == torch.bfloat16 and kernels().startswith(TILES) else LOW_SHARE
    found = []

    def row(what: str, rate: float, unit: str, of: float | None) -> None:
        share = None if of is None else rate / of
        found.append({
            "what": what, "rate": rate, "unit": unit, "machine": of, "share": share,
            "is_low": share is not None and share < low,
        })  # fmt: skip

    for loop in LOOPS:
        rate = loop_rate(loop, dtype) / 1e9
        row(loop, rate, *("a nanosecond", None) if loop == EXPONENTIALS else ("GFLOP/s", product))
    seconds = CALL_SECONDS / 4 if quick else CALL_SECONDS
    for task in ("forward", "forward + backward", "decode"):
        case = Case(LONGEST_CACHE if task == "decode" else LENGTH, HEADS, WIDTH, dtype, task)
        call = work(OURS, case, seed)
        times = paired_times({task: call}, rounds=200 if case.decodes else 15, seconds=seconds)[task]
        if case.decodes:
            row(task, OURS.least_bytes(case) / statistics.median(times) / 1e9, "GB/s", read)
        else:
            row(task, OURS.flops(case) / statistics.median(times) / 1e9, "GFLOP/s", product)
    return found


def loop_rate(loop: str, dtype: torch.dtype) -> float:
    """Operations a second of an inner loop on data in the first cache, over all threads: a median."""
    threads, rounds = torch.get_num_threads(), 1
    rates: list[float] = []
    while len(rates) < SEVERAL:
        began = time.perf_counter()
        operations = run_loop(loop, dtype, rounds, threads)
        seconds = time.perf_counter() - began
        if seconds < LOOP_SECONDS / 2:
            rounds *= 2
        else:
            rates.append(operations / seconds)
    return statistics.median(rates)


def reading_rate() -> float:
    """Bytes a second of a sum over a tensor larger than the caches: a median."""
    tensor = torch.ones(READ_BYTES // 4)
    return READ_BYTES / statistics.median(paired_times({"sum": tensor.sum}, rounds=SEVERAL)["sum"])
