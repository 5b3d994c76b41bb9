"""How records of ``antiphase calibrate apply`` are shown."""

from __future__ import annotations

from antiphase.lab.pages.presentation import Presentation
from antiphase.lab.pages.tables import Column, Table
from antiphase.lab.studies.calibrate.apply import Apply
from antiphase.lab.studies.calibrate.presentation import EXACT, measures_table, signed, signed_interval


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
)
