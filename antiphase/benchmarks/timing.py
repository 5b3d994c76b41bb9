"""Paired timing: the candidates take turns, so that a slow moment of the machine meets all of them."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from typing import Any

Work = Callable[[], object]


def paired_times(work: Mapping[str, Work], *, rounds: int, warm_up: int = 1) -> dict[str, list[float]]:
    """Seconds of each candidate in each round; in every round each runs once, in turn."""
    for _ in range(warm_up):
        for run in work.values():
            run()
    times: dict[str, list[float]] = {name: [] for name in work}
    for _ in range(rounds):
        for name, run in work.items():
            started = time.perf_counter()
            run()
            times[name].append(time.perf_counter() - started)
    return times


def ratios(times: Mapping[str, list[float]], subject: str, baseline: str) -> dict[str, Any]:
    """Median over rounds of subject / baseline within the round, and its quartiles. Below 1 the subject is faster."""
    paired = [a / b for a, b in zip(times[subject], times[baseline], strict=True)]
    low, middle, high = statistics.quantiles(paired, n=4) if len(paired) > 1 else [paired[0]] * 3
    return {
        "subject": subject,
        "baseline": baseline,
        "ratio": middle,
        "quartiles": [low, high],
        "rounds": len(paired),
        "subject_seconds": statistics.median(times[subject]),
        "baseline_seconds": statistics.median(times[baseline]),
    }
