"""Words that follow from numbers: who is ahead, by how much, and whether that proves a claim of the paper."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from antiphase.evals.statistics import mean_interval

SEEDS_FOR_A_VERDICT = 5
FLOOR_MARGIN, CEILING = 0.02, 0.99


@dataclass(frozen=True)
class Metric:
    """A number by arm and seed, and how to speak of it."""

    name: str
    unit: str
    lower_is_better: bool
    digits: int
    is_share: bool = False
    """A share from 0 to 1, spoken of in points of a hundred; it has a floor and a ceiling."""

    def spoken(self, value: float) -> str:
        """The value as it stands in a sentence, without its unit."""
        text = f"{value * (100 if self.is_share else 1):,.{self.digits}f}"
        return text.removeprefix("-") if float(text.replace(",", "")) == 0 else text  # never -0.0


def compare_metric(
    metric: Metric, values: Mapping[str, Sequence[float | None]], baseline: str
) -> dict[str, Any] | None:
    """The entry of a record's ``comparison`` for paired values (arm → one for each seed); None where nothing is known.

    A seed without a value in either arm (a threshold never passed) counts in neither, and the sentence says so.
    """
    if baseline not in values or not any(value is not None for series in values.values() for value in series):
        return None
    arms = {}
    for arm, series in values.items():
        known = [value for value in series if value is not None]
        arms[arm] = {
            "median": statistics.median(known) if known else None,
            "mean": statistics.fmean(known) if known else None,
            "minimum": min(known, default=None),
            "maximum": max(known, default=None),
            "values": list(series),
        }
    reached = {arm: sum(value is not None for value in series) for arm, series in values.items()}
    differences, sentences = {}, []
    for arm, series in values.items():
        if arm == baseline:
            continue
        pairs = [(a, b) for a, b in zip(series, values[baseline], strict=True) if a is not None and b is not None]
        paired = [a - b for a, b in pairs]
        interval = mean_interval(paired)
        differences[arm] = {
            "mean": statistics.fmean(paired) if paired else None,
            "interval": None if interval is None else list(interval),
            "seeds": len(paired),
            "values": paired,
        }
        sentences.append(_sentence(metric, arm, baseline, differences[arm], reached=reached, total=len(series)))
    return {
        "metric": metric.name,
        "unit": metric.unit,
        "lower_is_better": metric.lower_is_better,
        "arms": arms,
        "differences": differences,
        "sentence": " ".join(sentences),
    }


def _sentence(
    metric: Metric, arm: str, baseline: str, difference: dict[str, Any], *, reached: Mapping[str, int], total: int
) -> str:
    seeds, mean, interval = difference["seeds"], difference["mean"], difference["interval"]
    subject = metric.name[0].upper() + metric.name[1:]
    if seeds < total:
        # The seeds that have a value are not a fair sample: an arm that fails more often would look quick.
        counts = " and ".join(f"{name} in {reached[name]} of {total} seeds" for name in (arm, baseline))
        return f"{subject}: {counts}; where a seed has no value there is no paired difference, so no arm is ahead here."

    in_seeds = f"in {'this seed' if seeds == 1 else f'these {seeds} seeds'}"
    if float(metric.spoken(abs(mean)).replace(",", "")) == 0:
        text = f"{subject}: {arm} and {baseline} are level {in_seeds}"
    else:
        ahead = (mean < 0) == metric.lower_is_better
        leader, other = (arm, baseline) if ahead else (baseline, arm)
        text = f"{subject}: {leader} is ahead of {other} by {metric.spoken(abs(mean))} {metric.unit} {in_seeds}"
    if interval is None:
        return f"{text}; one seed has no interval."
    low, high = (metric.spoken(value) for value in interval)
    includes = interval[0] <= 0 <= interval[1]
    meaning = "which includes 0" if includes else "which excludes 0"
    return f"{text} (paired difference {arm} minus {baseline}: 95 % interval {low} to {high}, {meaning})."


def verdict(
    differences: Sequence[float], *, lower_is_better: bool, baseline_mean: float, floor: float | None = None
) -> str:
    """ "reproduced", "contradicted", "inconclusive" or "not testable" for a claim that the arm beats the baseline.

    Args:
        differences: arm minus baseline, one for each seed.
        baseline_mean: of the measured share, where there is a floor; a baseline on its floor or ceiling cannot show
            a difference.
        floor: the guess rate of an accuracy; None for a loss.
    """
    if len(differences) < SEEDS_FOR_A_VERDICT:
        return "inconclusive"
    if floor is not None and not floor + FLOOR_MARGIN < baseline_mean < CEILING:
        return "not testable"
    interval = mean_interval(differences)
    assert interval is not None
    low, high = (-interval[1], -interval[0]) if lower_is_better else interval
    return "reproduced" if low > 0 else "contradicted" if high < 0 else "inconclusive"
