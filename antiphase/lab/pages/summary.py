"""How a record is shown, by its kind, and what to read of it first."""

from __future__ import annotations

import importlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import fields, replace

from antiphase.base.records import DEQUANTIZED, Record
from antiphase.lab.catalog import measurement_of
from antiphase.lab.pages import tables
from antiphase.lab.pages.presentation import Presentation, by_model, short_names
from antiphase.lab.pages.tables import Column, Table

PRESENTATIONS = {
    "benchmark-attention": "benchmarks.ATTENTION",
    "benchmark-model": "benchmarks.MODEL",
    "benchmark-calibration": "benchmarks.CALIBRATION",
    "benchmark-kernels": "benchmarks.KERNELS",
    "benchmark-evaluation": "benchmarks.EVALUATION",
}
"""Where kinds of records without a folder of their own are presented."""
OF_A_MODEL = ("name", "against", "device", "dtype", "device_map", "opening", "measured", DEQUANTIZED)
"""Settings that may differ between models measured in the same way."""
OF_TEXT = ("source", "sequence_length", "paths", "validation", "validation_share", "text_field")
"""Settings of data that say on what a model was measured."""
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
    """The tables to read first; those of a record that compares models have a column for the model."""
    if len(records := by_model(record)) > 1:
        return _joined(records)
    return [table for table in presentation_of(record.kind).tables(record) if table is not None]


def side_by_side(records: Sequence[Record]) -> list[Table]:
    """Tables of different models measured in the same way as one table, whose first column is the model."""
    return [
        replace(table, title=f"{table.title}: side by side")
        for own in _of_several_models(records)
        for table in _joined(dict(zip(short_names(own).values(), own.values(), strict=True)))
    ]


def compared(records: Sequence[Record]) -> list[Record]:
    """Records of different models measured in the same way as one record, where the kind has such records."""
    found = []
    for own in _of_several_models(records):
        first = next(iter(own.values()))
        measurement = measurement_of(first.kind)
        if measurement is None or "against" not in {item.name for item in fields(measurement.result)}:
            continue
        against = {
            name: {key: value for key, value in record.values.items() if key not in ("model", "against")}
            for name, record in list(own.items())[1:]
        }
        found.append(replace(first, values={**first.values, "against": against}))
    return found


def _of_several_models(records: Sequence[Record]) -> list[dict[str, Record]]:
    """Records by model, for every kind of which there is one of each model, and every way of measuring several."""
    found = []
    for kind in dict.fromkeys(record.kind for record in records):
        own = {str(record.values.get("model")): record for record in records if record.kind == kind}
        if len(own) < sum(record.kind == kind for record in records):
            continue
        ways = {name: _way(record) for name, record in own.items()}
        for way in dict.fromkeys(ways.values()):
            same = {name: record for name, record in own.items() if ways[name] == way}
            found += [same] if len(same) > 1 else []
    return found


def _way(record: Record) -> str:
    """The settings and the data with which a model was measured."""
    config, names = record.config, OF_TEXT
    if "needles" in config:
        has_sizes = all(config.get(name) for name in ("paths", "lengths", "needles"))
        names = ("one_token_numbers", *(() if has_sizes else (*OF_TEXT, "needles", "queries")))
    data = config.get("data") or {}
    if isinstance(data, Mapping) and data.get("source") != "synthetic":
        data = {name: data.get(name) or None for name in names}
        if data.get("validation"):  # the texts themselves: no share of a run's own is cut off
            data.pop("validation_share", None)
        if data.get("sequence_length"):
            config = {**config, "length": None}
    # settings that are not there were added later, with a default
    own = {name: value for name, value in config.items() if value and name not in OF_A_MODEL}
    return json.dumps({**own, "data": data}, sort_keys=True)


def _joined(records: Mapping[str, Record]) -> list[Table]:
    """Tables that all records have, each as one table, whose first column is the model."""
    shown = {name: {table.title: table for table in main_tables(record)} for name, record in records.items()}
    joint = []
    for title, first in next(iter(shown.values())).items():
        own = {name: found[title] for name, found in shown.items() if title in found}
        if len(own) < len(shown) or any(table.columns != first.columns for table in own.values()):
            continue
        has_model = first.columns[0].name == "Model"
        rows = [
            [name, *row[has_model:]] if not has_model or row[0] == table.rows[0][0] else row
            for name, table in own.items()
            for row in table.rows
        ]
        columns = first.columns if has_model else [Column("Model"), *first.columns]
        notes = {name: table.note for name, table in own.items() if table.note}
        is_same = len(own) == len(notes) and len(set(notes.values())) == 1
        note = first.note if is_same else " ".join(f"{name}: {note}" for name, note in notes.items())
        joint.append(replace(first, columns=columns, rows=rows, note=note))
    return joint
