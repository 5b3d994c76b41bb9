"""How a record is shown, by its kind, and what to read of it first."""

from __future__ import annotations

import importlib

from antiphase.base.records import Record
from antiphase.lab.catalog import measurement_of
from antiphase.lab.pages import tables
from antiphase.lab.pages.presentation import Presentation
from antiphase.lab.pages.tables import Table

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
