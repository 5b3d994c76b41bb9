"""What the records of a reproduction keep of the test samples behind the values of each claim."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from antiphase.evaluations.hallucination import MODEL, Hallucination
from antiphase.evaluations.harness import Harness, TaskScore
from antiphase.evaluations.long_context import LongContext
from antiphase.evaluations.many_shot import ManyShot
from antiphase.evaluations.retrieval_results import CellScore
from antiphase.studies.reproduce.readings import (
    ARMS,
    Found,
    Series,
    at_most_shots,
    by_seed,
    by_task,
    cell_of,
    most_shots,
    of_system,
    pooled,
    right_in,
    rows_of,
    scored,
    telling_cells,
    untrue,
)
from antiphase.uncertainty.seeds import Sample

Samples = dict[str, Sample]
"""Arm to what is known of the test sample behind its series."""


def loss_samples(found: Found) -> Samples:
    """Held-out sequences, the same for all seeds; older records keep none."""
    runs = found.compare.runs if found.compare is not None else []
    return of_rows({arm: [run.by_sequence for run in runs if run.arm == arm] for arm in ARMS}, shared=True)


def gain_samples(found: Found) -> Samples:
    """Windows, the same for all seeds."""

    def gains(result: LongContext) -> Sequence[float] | None:
        return result.tail.context_gains if result.tail else None

    return of_rows(by_seed(found.long_context, gains), shared=True)


def of_rows(scores: Mapping[str, Sequence[Sequence[float | None] | None]], *, shared: bool) -> Samples:
    """Arm to numbers by seed and sample; nothing where a seed has none, or not as many as the first."""
    found: Samples = {}
    for arm, rows in scores.items():
        known = [[value for value in row or () if value is not None] for row in rows]
        if known and len(known[0]) > 1 and len({len(row) for row in known}) == 1:
            found[arm] = Sample.of_scores(known, shared=shared)
    return found


def needle_samples(found: Found) -> Samples:
    """Contexts of the cells that count; every seed draws its own. Where they are not kept one by one, counts."""
    telling = telling_cells(found)
    floor = pooled(telling.values())

    def bits(rows: list[CellScore]) -> list[float]:
        return [float(bit) for row in rows if cell_of(row) in telling for bit in row.right]

    kept = of_rows({arm: [bits(rows_of(one.cells, arm)) for one in found.needles] for arm in ARMS}, shared=False)
    if floor is None or kept:
        return kept
    return of_shares(right_in(found, telling), floor.answers, shared=False)


def of_shares(series: Series, answers: int, *, shared: bool) -> Samples:
    """Counts of right answers; nothing where a seed has no value."""
    return {
        arm: Sample.of_counts([value for value in values if value is not None], answers, shared=shared)
        for arm, values in series.items()
        if None not in values
    }


def shot_samples(found: Found) -> Samples:
    """Tasks, the same for all seeds, as answers to one task are not independent; of one task, its answers."""
    first, *others = found.many_shot[0].result.tasks.values()
    if others:
        return of_rows(by_seed(found.many_shot, at_most_shots), shared=True)
    return of_shares(most_shots(found), first.samples, shared=True)


def flip_samples(found: Found) -> Samples:
    """Tasks, the same for all seeds, each with its part in the quotient (its linear part, as for a ratio estimator)."""

    def parts(result: ManyShot) -> list[float] | None:
        table = by_task(result)
        if table is None:
            return None
        flipped, accuracy = table.mean(0)
        expected = 2 * accuracy * (1 - accuracy)
        if not expected:
            return None
        slope = flipped * 2 * (1 - 2 * accuracy) / expected**2
        changes = (table[:, 0] - flipped) / expected - slope * (table[:, 1] - accuracy)
        return list(flipped / expected + changes)

    return of_rows(by_seed(found.many_shot, parts), shared=True)


def downstream_samples(found: Found) -> Samples:
    """Rows of the tasks, the same for all seeds: lm-eval's standard errors, else those of counts.

    Scores of one task with several numbers of examples have the same rows, so their errors add up.
    """

    def error(result: Harness, arm: str) -> float:
        rows = scored(result, arm)
        by_task: dict[str, float] = {}
        for row in rows:
            by_task[row.task] = by_task.get(row.task, 0.0) + error_of_task(row)
        return math.hypot(*by_task.values()) / max(1, len(rows))

    size = min((row.samples for row in scored(found.harness[0], *ARMS)), default=1)
    return {arm: Sample.of_errors([error(one, arm) for one in found.harness], size, shared=True) for arm in ARMS}


def error_of_task(row: TaskScore) -> float:
    """Standard error of a task's metric; 0 where that is no number."""
    known = row.metrics[row.metric].stderr if row.metric is not None else None
    if known or row.value is None:
        return known or 0.0
    return math.sqrt(Sample.of_counts([row.value], row.samples, shared=True).variances[0])


def faithful_samples(found: Found) -> Samples:
    """Texts of the data sets, the same for all seeds."""

    def error(result: Hallucination) -> float:
        rows = of_system(result, MODEL)
        parts = [Sample.of_counts([row.accuracy], row.samples, shared=True).variances[0] for row in rows]
        return math.sqrt(sum(parts)) / len(parts)

    series, floor = by_seed(found.hallucination, error), untrue(found)
    return {
        arm: Sample.of_errors([value for value in values if value is not None], floor.answers, shared=True)
        for arm, values in series.items()
        if floor is not None and None not in values
    }
