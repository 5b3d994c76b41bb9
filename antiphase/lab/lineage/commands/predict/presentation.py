"""Presentation of records of ``antiphase predict``."""

from __future__ import annotations

from antiphase.base.errors import brief
from antiphase.base.records import Record
from antiphase.lab.pages.presentation import Presentation
from antiphase.lab.pages.tables import Column, Table, format_value

MOST_COLUMNS = 8
"""Largest number of labels with a column each; with more, one cell lists the probabilities."""


def predictions(record: Record) -> Table | None:
    """Label and probabilities of each text, or its translation."""
    rows = record.values["rows"]
    unknown = {row["text"]: words for row in rows if (words := row.get("unknown"))}
    note = " ".join(f"Unknown to the model in {brief(text)}: {', '.join(words)}." for text, words in unknown.items())
    if "translation" in rows[0]:
        columns, cells = [Column("Text"), Column("Translation")], [[row["text"], row["translation"]] for row in rows]
        return Table(title="Translations", columns=columns, rows=cells, note=note)
    labels = list(rows[0]["probabilities"])
    if len(labels) <= MOST_COLUMNS:
        columns = [Column("Text"), Column("Label"), *(Column(label, "percent") for label in labels)]
        cells = [[row["text"], row["label"], *row["probabilities"].values()] for row in rows]
    else:
        columns = [Column("Text"), Column("Label"), Column("Probabilities")]
        cells = [[row["text"], row["label"], _listed(row["probabilities"])] for row in rows]
    return Table(title="Predictions", columns=columns, rows=cells, note=note, is_matrix=True)


def _listed(shares: dict[str, float]) -> str:
    ordered = sorted(shares.items(), key=lambda entry: -entry[1])
    return ", ".join(f"{label} {format_value(share, 'percent')}" for label, share in ordered)


PRESENTATION = Presentation(
    introduction="The probability that a trained classifier gives each label, or what a trained translator writes.",
    tables=lambda record: [predictions(record)],
)
