"""Records → plain tables (``base/tables.py``), the same for the HTML page and the terminal.

A table without rows is None.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from antiphase.base.records import Record
from antiphase.base.tables import Column as Column
from antiphase.base.tables import Table as Table
from antiphase.base.tables import columns_of as columns_of
from antiphase.base.tables import format_value as format_value

Row = Mapping[str, Any]

OF_TRAINING = (
    "asked_together", "needle_share", "label_share", "repeat_share", "long_share", "vocabulary_size", "cache",
)  # fmt: skip
"""Settings of data that no measurement uses."""
OF_SYMBOLS = ("keys", "numbers", "fillers")
"""Settings of the synthetic language."""


def interval_text(interval: list[float] | None) -> str:
    """``2.31 to 2.54``."""
    return "–" if interval is None else f"{interval[0]:.3f} to {interval[1]:.3f}"


def percents_text(interval: Sequence[float] | None) -> str | None:
    """``75.8 to 100.0 %``."""
    return None if interval is None else f"{100 * interval[0]:.1f} to {100 * interval[1]:.1f} %"


def present(values: Iterable[float | None]) -> list[float]:
    """The values that are not null."""
    return [value for value in values if value is not None]


def mean_of_present(values: Iterable[float | None]) -> float | None:
    """The mean of the values that are not null; None without any."""
    known = present(values)
    return sum(known) / len(known) if known else None


def scalars(record: Record) -> Table | None:
    """The single numbers and words of any record, by dotted name."""
    rows = [[name, value] for name, value in flatten(record.values) if not isinstance(value, (list, dict))]
    return table_of("Values", columns_of("Name", "Value|number"), rows)


def lists(record: Record) -> list[Table | None]:
    """Every list of rows of any record as a table of its own, nested values left out."""
    tables = []
    for name, rows in flatten(record.values):
        if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
            continue
        nested = {key for row in rows for key, value in row.items() if isinstance(value, (list, dict))}
        keys = [key for key in dict.fromkeys(key for row in rows for key in row) if key not in nested]
        columns = [Column(readable(key).capitalize(), "number") for key in keys]
        tables.append(table_of(readable(name).capitalize(), columns, [[row.get(key) for key in keys] for row in rows]))
    return tables


def provenance(record: Record) -> Table:
    """What is needed to make the record again."""
    seeds = ", ".join(map(str, record.seeds)) or None
    rows: list[list[Any]] = [["Command", record.command], ["Created (UTC)", record.created], ["Seeds", seeds]]
    rows.append(["Wall-clock seconds", format_value(record.seconds)])
    rows += [["Weights", sentence] for sentence in record.origins()]
    return Table(title="How this record was made", columns=columns_of("What", "Value"), rows=rows)


def settings(record: Record) -> Table | None:
    """The resolved settings, by dotted name; those of a measurement without data settings that only training uses."""
    data = record.config.get("data")
    hidden: set[str] = set()
    if record.kind.startswith("evaluate-") and isinstance(data, Mapping):
        hidden = {*OF_TRAINING, *(() if "needles" in record.config else ("needles", "queries"))}
        hidden |= set(OF_SYMBOLS) if data.get("source") == "text" else set()
    rows = [list(item) for item in flatten(record.config) if item[0] not in {f"data.{name}" for name in hidden}]
    return table_of("Settings", columns_of("Setting", "Value"), rows)


def environment(record: Record) -> Table | None:
    """Versions and hardware."""
    rows = [list(item) for item in flatten(record.environment)]
    return table_of("Environment", columns_of("What", "Value"), rows)


def depth_text(depth: float | None) -> str:
    """Depth of the asked needle; null is a random one for each sequence."""
    return "anywhere" if depth is None else f"{depth:g}"


def readable(name: str) -> str:
    """``first_token`` as people write it."""
    return name.replace("_", " ")


def flatten(tree: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """``(dotted name, value)`` of every leaf; a list is a leaf."""
    for key, value in tree.items():
        if isinstance(value, Mapping) and value:
            yield from flatten(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def table_of(title: str, columns: Sequence[Column], rows: list[list[Any]], note: str = "") -> Table | None:
    """A table; None without rows."""
    return Table(title=title, columns=columns, rows=rows, note=note) if rows else None
