"""What the records of a reproduction keep of the test samples behind the values of each claim."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import PurePath
from typing import Any

from antiphase.records import Record
from antiphase.studies.reproduce.readings import (
    ARM,
    BASELINE,
    Series,
    by_seed,
    by_task,
    cell_of,
    most_shots,
    pooled,
    right_in,
    scored,
    seeds_of,
    telling_cells,
    untrue,
)
from antiphase.uncertainty.seeds import Sample

Samples = dict[str, Sample]
"""Arm to what is known of the test sample behind its series."""


def loss_samples(records: Sequence[Record]) -> Samples:
    """Held-out sequences, the same for all seeds; older records keep none."""
    runs = records[0].values.get("runs") or []
    scores = {arm: [run.get("by_sequence") for run in runs if run["arm"] == arm] for arm in (BASELINE, ARM)}
    return of_rows(scores, shared=True)


def gain_samples(records: Sequence[Record]) -> Samples:
    """Windows, the same for all seeds."""
    by_model = {(record.values["arm"], record.values["seed"]): record.values["tail"] for record in records}
    scores = {
        arm: [by_model.get((arm, seed), {}).get("context_gains") for seed in seeds_of(records)]
        for arm in (BASELINE, ARM)
    }
    return of_rows(scores, shared=True)


def of_rows(scores: Mapping[str, Sequence[Sequence[float | None] | None]], *, shared: bool) -> Samples:
    """Arm to numbers by seed and sample; nothing where a seed has none, or not as many as the first."""
    found: Samples = {}
    for arm, rows in scores.items():
        known = [[value for value in row or () if value is not None] for row in rows]
        if known and len(known[0]) > 1 and len({len(row) for row in known}) == 1:
            found[arm] = Sample.of_scores(known, shared=shared)
    return found


def needle_samples(records: Sequence[Record]) -> Samples:
    """Contexts of the cells that count; every seed draws its own. Where they are not kept one by one, counts."""
    telling = telling_cells(records)
    floor = pooled(telling.values())
    series = right_in(records, telling)

    def bits(record: Record, arm: str) -> list[float]:
        return [
            float(bit)
            for row in record.values.get("cells") or ()
            if row["depth"] is None and row["trained"] and cell_of(row) in telling
            and row["arm"].startswith(f"{arm}-seed")
            for bit in row.get("right") or ()
        ]  # fmt: skip

    kept = of_rows({arm: [bits(record, arm) for record in records] for arm in (BASELINE, ARM)}, shared=False)
    if floor is None or kept:
        return kept
    return of_shares(series, floor.answers, shared=False)


def of_shares(series: Series, answers: int, *, shared: bool) -> Samples:
    """Counts of right answers; nothing where a seed has no value."""
    return {
        arm: Sample.of_counts([value for value in values if value is not None], answers, shared=shared)
        for arm, values in series.items()
        if None not in values
    }


def shot_samples(records: Sequence[Record]) -> Samples:
    """Tasks, the same for all seeds, as answers to one task are not independent; of one task, its answers."""
    by_model = {(record.values["arm"], record.values["seed"]): record for record in records}
    seeds = seeds_of(records)
    if not all((arm, seed) in by_model for arm in (BASELINE, ARM) for seed in seeds):
        return {}
    scores = {
        arm: [[task["rows"][-1]["accuracy"] for task in by_model[arm, seed].values["tasks"].values()] for seed in seeds]
        for arm in (BASELINE, ARM)
    }
    if len(records[0].values["tasks"]) > 1:
        return of_rows(scores, shared=True)
    (task,) = records[0].values["tasks"].values()
    return of_shares(by_seed(records, most_shots), task["samples"], shared=True)


def flip_samples(records: Sequence[Record]) -> Samples:
    """Tasks, the same for all seeds, each with its part in the quotient (its linear part, as for a ratio estimator)."""

    def parts(record: Record | None) -> list[float] | None:
        table = None if record is None else by_task(record)
        if table is None:
            return None
        flipped, accuracy = table.mean(0)
        expected = 2 * accuracy * (1 - accuracy)
        if not expected:
            return None
        slope = flipped * 2 * (1 - 2 * accuracy) / expected**2
        changes = (table[:, 0] - flipped) / expected - slope * (table[:, 1] - accuracy)
        return list(flipped / expected + changes)

    by_model = {(record.values["arm"], record.values["seed"]): record for record in records}
    scores = {arm: [parts(by_model.get((arm, seed))) for seed in seeds_of(records)] for arm in (BASELINE, ARM)}
    return of_rows(scores, shared=True)


def downstream_samples(records: Sequence[Record]) -> Samples:
    """Rows of the tasks, the same for all seeds: lm-eval's standard errors, else those of counts."""

    def error(record: Record, arm: str) -> float:
        rows = [row for row in scored(record) if PurePath(row["model"]).name.startswith(f"{arm}-seed")]
        return math.hypot(*map(error_of_task, rows)) / max(1, len(rows))

    size = min((row["samples"] for row in scored(records[0])), default=1)
    return {
        arm: Sample.of_errors([error(record, arm) for record in records], size, shared=True) for arm in (BASELINE, ARM)
    }


def error_of_task(row: Mapping[str, Any]) -> float:
    """Standard error of a task's metric."""
    found = row["metrics"][row["metric"]]
    known = found.get("stderr")
    if known:
        return float(known)
    return math.sqrt(Sample.of_counts([found["value"]], row["samples"], shared=True).variances[0])


def faithful_samples(records: Sequence[Record]) -> Samples:
    """Texts of the data sets, the same for all seeds."""

    def error(record: Record) -> float:
        rows = [row for task in record.values["tasks"].values() for row in task["systems"] if row["system"] == "model"]
        parts = [Sample.of_counts([row["accuracy"]], row["samples"], shared=True).variances[0] for row in rows]
        return math.sqrt(sum(parts)) / len(parts)

    series, floor = by_seed(records, error), untrue(records)
    return {
        arm: Sample.of_errors([value for value in values if value is not None], floor.answers, shared=True)
        for arm, values in series.items()
        if floor is not None and None not in values
    }
