"""Records of ``antiphase tune`` → every arm at every learning rate, as a table."""

from __future__ import annotations

from typing import Any

from antiphase.records import Record
from antiphase.report.tables import Column, Table


def rates_of(record: Record) -> list[dict[str, Any]]:
    """One row for each arm and rate."""
    return list(record.values.get("rates") or []) if record.kind == "tune" else []


def rates(record: Record) -> Table | None:
    """What every arm reached with every rate."""
    rows = rates_of(record)
    if not rows:
        return None
    chosen = record.values["chosen"]
    diverged = any(row.get("diverged") for row in rows)
    cells = [
        [row["arm"], row["learning_rate"], row["seeds"], row["accuracy"], row["loss"], row["passed"], row.get("spikes"),
         *([row.get("diverged")] if diverged else []), chosen[row["arm"]] == row["learning_rate"]]
        for row in rows
    ]  # fmt: skip
    columns = [Column("Arm"), Column("Learning rate", "number"), Column("Seeds", "integer"),
               Column("Accuracy", "percent"), Column("Loss", "loss"), Column("Passed", "integer"),
               Column("Gradient spikes", "integer"), *([Column("Diverged", "integer")] if diverged else []),
               Column("Best")]  # fmt: skip
    note = (
        "Median at the end of training over the seeds that did not diverge; passed: runs whose accuracy crossed the "
        "threshold. Gradient spikes: logged norms above five times the median of the ten before, over all runs."
    )
    return Table(title="Learning rates", columns=columns, rows=cells, note=note)
