"""Paired timing: the candidates alternate, so that a slow phase of the machine affects all of them."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch

Work = Callable[[], object]

FEWEST_ROUNDS = 3
RATE_SIZES = {"cpu": 1536, "cuda": 8192}
"""Rows and columns of the matrix product that measures the machine's peak rate, by kind of device."""


def dtype_name(dtype: torch.dtype) -> str:
    """As it stands in records, such as ``float32``."""
    return str(dtype).removeprefix("torch.")


def waiting(device: str) -> Callable[[], None]:
    """A function that waits until a device has finished its work; a CPU has when a call returns."""
    return partial(torch.cuda.synchronize, device) if torch.device(device).type == "cuda" else lambda: None


def paired_times(
    work: Mapping[str, Work], *, rounds: int, seconds: float = float("inf"), warm_up: int = 1, device: str = "cpu"
) -> dict[str, list[float]]:
    """Seconds of each candidate in each round; every candidate runs once per round.

    Args:
        work: candidates by name.
        rounds: largest number of rounds.
        seconds: time after which no round begins, except for the first three.
        warm_up: number of initial rounds that do not count.
        device: device of the work; the clock stops when it is finished.
    """
    wait = waiting(device)
    for _ in range(warm_up):
        for run in work.values():
            run()
    times: dict[str, list[float]] = {name: [] for name in work}
    began = time.perf_counter()
    for index in range(rounds):
        if index >= FEWEST_ROUNDS and time.perf_counter() - began > seconds:
            break
        for name, run in work.items():
            wait()
            started = time.perf_counter()
            run()
            wait()
            times[name].append(time.perf_counter() - started)
    return times


def ratios(times: Mapping[str, list[float]], subject: str, baseline: str) -> dict[str, Any]:
    """Median over rounds of subject / baseline within the round, and its quartiles. Below 1, the subject is faster."""
    paired = [a / b for a, b in zip(times[subject], times[baseline], strict=True)]
    low, middle, high = statistics.quantiles(paired, n=4, method="inclusive") if len(paired) > 1 else [paired[0]] * 3
    return {
        "subject": subject,
        "baseline": baseline,
        "ratio": middle,
        "quartiles": [low, high],
        "rounds": len(paired),
        "subject_seconds": statistics.median(times[subject]),
        "baseline_seconds": statistics.median(times[baseline]),
    }


def product_rate(dtype: torch.dtype, *, device: str = "cpu") -> float:
    """Measured FLOPs per second of this machine's own matrix product, the median of a few large ones."""
    size = RATE_SIZES[torch.device(device).type]
    left, right = (torch.randn(size, size, device=device).to(dtype) for _ in range(2))
    times = paired_times({"product": lambda: left @ right}, rounds=7, warm_up=2, device=device)["product"]
    return 2 * size**3 / statistics.median(times)
