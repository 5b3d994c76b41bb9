"""How a record is shown, by its kind, and what to read of it first."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from antiphase.base.records import Record
from antiphase.lab.catalog import measurement_of
from antiphase.lab.pages import tables
from antiphase.lab.pages.presentation import Presentation
from antiphase.lab.pages.tables import Column, Table

PRESENTATIONS = {
    "benchmark-attention": "benchmarks.ATTENTION",
    "benchmark-model": "benchmarks.MODEL",
    "benchmark-calibration": "benchmarks.CALIBRATION",
    "benchmark-kernels": "benchmarks.KERNELS",
    "benchmark-evaluation": "benchmarks.EVALUATION",
}
"""Where kinds of records without a folder of their own are presented."""
UNKNOWN = Presentation(
    introduction=lambda record: (
        f"Records of kind “{record.kind}” have no layout of their own: here are their single values."
    ),
    tables=lambda record: [*tables.lists(record), tables.scalars(record)],
)


def presentation_of(kind: str) -> Presentation:
    """Tables, figures and words for records of a kind; an unknown kind shows its lists and single values."""
    measurement = measurement_of(kind)
    if measurement is not None:
        own: Presentation = measurement.presentation
        return own
    if kind not in PRESENTATIONS:
        return UNKNOWN
    module, _, name = PRESENTATIONS[kind].partition(".")
    found: Presentation = getattr(importlib.import_module(f"antiphase.lab.pages.{module}"), name)
    return found


def main_tables(record: Record) -> list[Table]:
    """The tables to read first."""
    return [table for table in presentation_of(record.kind).tables(record) if table is not None]


def side_by_side(records: Sequence[Record]) -> list[Table]:
    """Tables of records of one kind and of different models as one table, whose first column is the model."""
    joint = []
    for kind in dict.fromkeys(record.kind for record in records):
        of_kind = {str(record.values.get("model")): record for record in records if record.kind == kind}
        if len(of_kind) < 2 or len(of_kind) < sum(record.kind == kind for record in records):
            continue
        short = {name: Path(name).name for name in of_kind}
        names = short if len(set(short.values())) == len(short) else {name: name for name in short}
        shown = {name: {table.title: table for table in main_tables(record)} for name, record in of_kind.items()}
        for title, first in next(iter(shown.values())).items():
            own = [(names[name], found[title]) for name, found in shown.items() if title in found]
            if len(own) < len(shown) or any(table.columns != first.columns for _, table in own):
                continue
            has_model = first.columns[0].name == "Model"
            rows = [row if has_model else [name, *row] for name, table in own for row in table.rows]
            columns = first.columns if has_model else [Column("Model"), *first.columns]
            note = first.note if len({table.note for _, table in own}) == 1 else ""
            joint.append(replace(first, title=f"{title}: side by side", columns=columns, rows=rows, note=note))
    return joint
