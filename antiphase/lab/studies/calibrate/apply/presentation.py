"""How records of ``antiphase calibrate apply`` are shown."""

from __future__ import annotations

from pathlib import Path

from antiphase.base.records import Record
from antiphase.lab.pages.presentation import Presentation
from antiphase.lab.pages.tables import Column, Table
from antiphase.lab.studies.calibrate.apply import Apply, Compared
from antiphase.lab.studies.calibrate.presentation import (
    EXACT,
    format_share,
    judged,
    measures_table,
    next_command,
    signed,
    signed_interval,
)


def finding(record: Record) -> str:
    """What the plan changes in each task."""
    rows = Apply.of(record).tasks
    if not rows:
        return "No task was scored, and continued texts do not show whether the plan helps."
    return " ".join(
        f"{row.task}: {row.metric} {format_share(row.score)} without and {format_share(row.calibrated)} with the plan "
        f"on {row.samples:,} samples, {judged(row.gain, row.gain_interval, ())}{_of_reading(row)}."
        for row in rows
    )


def _of_reading(row: Compared) -> str:
    """What a gain is without the labels' prior."""
    if row.measures is None or row.measures_calibrated is None or row.gain_interval[0] <= 0:
        return ""
    centred = row.measures_calibrated.mean_centred_accuracy - row.measures.mean_centred_accuracy
    return f"; the mean-centred accuracy, which a moved prior leaves alone, gains {signed(centred)} points"


def closing(record: Record, output: Path) -> str:
    """A confirmatory study, which is for classifications; of texts alone, the plan with a task."""
    found = Apply.of(record)
    if not found.tasks:
        return next_command(record, output, "apply", "TASK.yaml", plan=Path(record.config["plan"]))
    return next_command(record, output, "confirm" if all(row.measures for row in found.tasks) else "study")


@Apply.from_record
def compared(found: Apply) -> Table | None:
    """Tasks with and without a plan."""
    if not found.tasks:
        return None
    rows = [
        [row.task, row.metric, row.samples, row.left_out, row.chance, row.score, row.calibrated,
         f"{signed(row.gain)} [{signed_interval(row.gain_interval)}]", f"{row.improved} / {row.worsened}",
         row.p]
        for row in found.tasks
    ]  # fmt: skip
    columns = [Column("Task"), Column("Metric"), Column("Samples", "integer"), Column("Left out", "integer"),
               Column("Chance", "percent"), Column("Plain", "percent"), Column("Calibrated", "percent"),
               Column("Gain in points, 95 %"), Column("Better / worse"),
               Column("p", "number")]  # fmt: skip
    note = f"Left out: samples that chose the plan's heads, if the plan says which, and copies. {EXACT}"
    return Table(title="With and without the plan", columns=columns, rows=rows, note=note)


@Apply.from_record
def measures(found: Apply) -> Table | None:
    """Whether more than the labels' prior moved."""
    plain = {row.task: row.measures for row in found.tasks if row.measures}
    after = {row.task: row.measures_calibrated for row in found.tasks if row.measures_calibrated}
    return measures_table(found.tasks, plain, after)


@Apply.from_record
def continued(found: Apply) -> Table | None:
    """Continued texts."""
    if not found.texts:
        return None
    columns = [Column("Text"), Column("Plain"), Column("Calibrated")]
    rows = [[row.text, row.plain, row.calibrated] for row in found.texts]
    return Table(title="Continued texts", columns=columns, rows=rows)


PRESENTATION = Presentation(
    introduction="The model as it is and with the plan's heads calibrated, on the same samples.",
    tables=lambda record: [compared(record), measures(record), continued(record)],
    finding=finding,
    closing=closing,
)
