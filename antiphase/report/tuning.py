"""Records of ``antiphase tune`` → every arm at every learning rate, as a table."""

from __future__ import annotations

from typing import Any

from antiphase.outcomes import Line
from antiphase.records import Record
from antiphase.report.tables import Column, Table


def rates_of(record: Record) -> list[dict[str, Any]]:
    """One row for each arm and rate."""
    return list(record.values.get("rates") or []) if record.kind == "tune" else []


def end_of(record: Record, row: dict[str, Any]) -> tuple[Any, Any]:
    """Accuracy and loss at the end: medians, or counts and the range where some seeds learned and others did not."""
    runs = [
        run for run in record.values.get("runs") or []
        if (run["arm"], run["learning_rate"]) == (row["arm"], row["learning_rate"])
    ]  # fmt: skip
    threshold = (record.config.get("compare") or {}).get("threshold")
    line = Line.of(0.0, threshold)  # the record has no guess rate; without one the gap must be wider
    counts = line.counts({"": [run["accuracy"] for run in runs]})
    if counts is None:
        return row["accuracy"], row["loss"]
    low, high = row["loss_range"]
    return "{} of {} learned".format(*counts[""]), f"{low:.3f}–{high:.3f}"


def rates(record: Record) -> Table | None:
    """What every arm reached with every rate."""
    rows = rates_of(record)
    if not rows:
        return None
    chosen = record.values["chosen"]
    diverged = any(row.get("diverged") for row in rows)
    cells = [
        [row["arm"], row["learning_rate"], row["seeds"], *end_of(record, row), row["passed"], row.get("spikes"),
         *([row.get("diverged")] if diverged else []), chosen[row["arm"]] == row["learning_rate"]]
        for row in rows
    ]  # fmt: skip
    columns = [Column("Arm"), Column("Learning rate", "number"), Column("Seeds", "integer"),
               Column("Accuracy", "percent"), Column("Loss", "loss"), Column("Passed", "integer"),
               Column("Gradient spikes", "integer"), *([Column("Diverged", "integer")] if diverged else []),
               Column("Best")]  # fmt: skip
    note = (
        "Accuracy and loss: median at the end of training over the seeds that did not diverge; where some seeds "
        "learned and others did not, how many did, and from which to which loss. Passed: runs whose accuracy crossed "
        "the threshold. Gradient spikes: logged norms above five times the median of the ten before, over all runs."
    )
    return Table(title="Learning rates", columns=columns, rows=cells, note=note)
