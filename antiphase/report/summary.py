"""What to read first of a record: its main tables, by kind."""

from __future__ import annotations

from collections.abc import Callable

from antiphase.records import Record
from antiphase.registry import measurement_of
from antiphase.report import (
    ablations,
    benchmarks,
    calibration,
    compared,
    reproduction,
    scaling,
    tables,
    tuning,
)
from antiphase.report.tables import Table

TABLES: dict[str, Callable[[Record], list[Table | None]]] = {
    "reproduce": lambda record: [
        reproduction.claims(record),
        reproduction.published(record),
        reproduction.equal_loss(record),
    ],
    "budget": lambda record: [reproduction.budgets(record)],
    "compare": lambda record: [compared.headline(record)],
    "train": lambda record: [compared.headline(record)],
    "scaling": lambda record: [scaling.equal_loss(record), scaling.laws(record), scaling.losses(record)],
    "ablations": lambda record: [
        ablations.losses(record),
        ablations.slices(record),
        ablations.gradients(record),
        ablations.left_out(record),
    ],
    "tune": lambda record: [tuning.rates(record)],
    "benchmark-attention": lambda record: [
        benchmarks.ratios(record),
        benchmarks.conditions(record),
        benchmarks.memory(record),
    ],
    "benchmark-model": lambda record: [benchmarks.ratios(record), benchmarks.throughput(record)],
    "benchmark-calibration": lambda record: [benchmarks.ratios(record), benchmarks.memory(record)],
    "calibrate-search": lambda record: [calibration.standings(record), calibration.search_result(record)],
    "calibrate-apply": lambda record: [calibration.applied(record), calibration.continued(record)],
    "calibrate-study": lambda record: [
        calibration.standings(record),
        calibration.single_heads(record),
        calibration.screening(record),
        calibration.effects(record),
    ],
}
"""The tables to read first, by kind of record; any other kind shows its lists and single values."""


def main_tables(record: Record) -> list[Table]:
    """The tables to read first."""
    measurement = measurement_of(record.kind)
    if measurement is not None:
        found = measurement.presentation.tables(record)
    elif record.kind in TABLES:
        found = TABLES[record.kind](record)
    else:
        found = [*tables.lists(record), tables.scalars(record)]
    return [table for table in found if table is not None]
