"""Presentation of records of ``antiphase evaluate several``: the records that it lists."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from antiphase.base.records import Record
from antiphase.lab.measures.several import Several
from antiphase.lab.pages.presentation import Presentation
from antiphase.lab.pages.tables import Column, Table


@Several.from_record
def listed(found: Several) -> Table:
    """Where each record lies."""
    rows = [[row.model, row.measurement, row.folder, f"{row.seconds:.0f} s"] for row in found.rows]
    columns = [Column("Model"), Column("Measurement"), Column("Folder"), Column("Time")]
    return Table(title="Measurements", columns=columns, rows=rows)


def _records(record: Record, output: Path) -> Sequence[Record]:
    return [Record.load(output / row.folder) for row in Several.of(record).rows]


PRESENTATION = Presentation(
    introduction="Each measurement of each model is a command of its own, with its record in a folder below this one.",
    tables=lambda record: [listed(record)],
    further=_records,
    headings=lambda record: [row.folder for row in Several.of(record).rows],
)
