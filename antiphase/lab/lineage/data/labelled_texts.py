"""Labelled texts for a classifier: columns, labels, stratified parts, duplicates.

Files are those of ``labelled.py``: ``label text`` or ``COARSE:fine text`` lines, CSV and TSV with a header, JSON Lines,
Parquet, ``.json`` (``FILE@PART`` selects one of its parts), and datasets of the Hub.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from antiphase.base.errors import InputError, named, nearest
from antiphase.base.randomness import keyed_generator
from antiphase.lab.lineage.results import Duplicates
from antiphase.lab.text.files import kind_of, sources
from antiphase.lab.text.labelled import (
    TEXT_NAMES,
    Row,
    columns,
    labelled_rows,
    text_and_label,
    text_lines,
    usual_column,
    warn_of_empty,
)  # fmt: skip


@dataclass(frozen=True)
class Example:
    """A text and its label."""

    place: str
    """File and line, for messages."""
    text: str
    label: str


def read_examples(
    paths: Sequence[str],
    *,
    labels: str = "coarse",
    text_field: str | None = None,
    label_field: str | None = None,
    field: str = "train",
) -> list[Example]:
    """All labelled texts of the files, in their order; empty texts are kept, with a warning.

    Args:
        paths: files, folders or Hub datasets.
        labels: if every label has a colon, as in ``HUM:ind``: ``coarse`` for the part before it, ``fine`` for the whole
            label.
        text_field, label_field: columns of tables; None means a usual name, or the only other column if one has a usual
            name.

    Raises:
        InputError: there is no data, a row has no label, or columns are missing or ambiguous.
    """
    if not paths:
        raise InputError(f"{named(field)} is missing: a file with labelled texts")
    found: list[Example] = []
    empty: list[str] = []
    for given in paths:
        path, split = file_and_part(given)
        rows = labelled_rows(path, split=split, field=field)
        is_plain = Path(path).is_file() and kind_of(Path(path)) == ".txt"  # its reader has warned already
        text_column, label_column = text_and_label(rows, text_field, label_field)
        for row in rows:
            text = _text(row, text_column)
            if not text.strip() and not is_plain:
                empty.append(row.place)
            found.append(Example(row.place, text, _label(row, label_column)))
    warn_of_empty(empty)
    return coarse(found) if labels == "coarse" and all_divided(found) else found


def all_divided(examples: Sequence[Example]) -> bool:
    """Whether every label has a fine part, after a colon."""
    return all(":" in example.label for example in examples)


def coarse(examples: Sequence[Example]) -> list[Example]:
    """The examples with what stands before the colon as label."""
    return [Example(e.place, e.text, e.label.partition(":")[0]) for e in examples]


def file_and_part(given: str) -> tuple[str, str | None]:
    """``FILE.json@PART`` as file and part."""
    path, at, split = given.rpartition("@")
    is_part = at and not Path(given).exists() and Path(path).is_file()
    return (path, split) if is_part else (given, None)


def _text(row: Row, column: str) -> str:
    if column not in row.values:
        raise InputError(f"{row.place}: there is no column '{column}' (columns: {', '.join(map(str, row.values))})")
    text = row.values[column]
    if not isinstance(text, str):
        raise InputError(
            f"{row.place}: the column '{column}' holds {type(text).__name__} instead of text; name the right one with "
            "--text-field"
        )
    return text


def _label(row: Row, column: str) -> str:
    value: Any = row.values.get(column, "")
    label = str(value).strip()
    if not label:
        raise InputError(f"{row.place}: there is no label; write one in the column '{column}' or remove the row")
    if isinstance(value, (float, list, dict)):
        raise InputError(
            f"{row.place}: the column '{column}' holds {type(value).__name__} instead of a label; name the right one "
            "with --label-field"
        )
    return label


def check_labels(train: Sequence[Example], test: Sequence[Example], *, field: str = "train") -> list[str]:
    """The training labels in alphabetical order (numbers by value).

    Raises:
        InputError: there is only one, or the test part has a label that does not occur in training.
    """
    known = sorted({example.label for example in train}, key=_order)
    if len(known) < 2:
        raise InputError(
            f"{named(field)}: every row has the label '{known[0]}'; a classifier needs at least two labels (for "
            "COARSE:fine labels, --labels fine uses the full label)"
        )
    for example in test:
        if example.label not in known:
            raise InputError(
                f"{example.place}: the label '{example.label}' does not occur in "
                f"training{nearest(example.label, known[:12])}"
            )
    return known


def _order(label: str) -> tuple[int, str]:
    is_number = label.isascii() and label.isdigit() and len(label) < 10
    return (int(label), label) if is_number else (2**31, label)


def stratified_parts(labels: Sequence[str], count: int, *key: object) -> list[list[int]]:
    """Stratified split of row indices into ``count`` parts; each label, and the parts' sizes, are as even as possible.

    The order within a label is random, given ``key``. A label's row is in no part if it is the label's only row.
    """
    by_label: dict[str, list[int]] = {}
    for row, label in enumerate(labels):
        by_label.setdefault(label, []).append(row)
    parts: list[list[int]] = [[] for _ in range(count)]
    dealt = 0
    for label in sorted(by_label):
        rows = by_label[label]
        if len(rows) < 2:
            continue
        for index in torch.randperm(len(rows), generator=keyed_generator(*key, label)).tolist():
            parts[dealt % count].append(rows[index])
            dealt += 1
    return [sorted(part) for part in parts]


def held_out_tenth(examples: Sequence[Example], *key: object) -> tuple[list[Example], list[Example]]:
    """Split off a stratified tenth of the examples; returns the rest and the tenth.

    Raises:
        InputError: no label has two rows, so none can be held out.
    """
    chosen = set(stratified_parts([example.label for example in examples], 10, *key)[0])
    if not chosen:
        raise InputError(f"{examples[0].place}: every label has only one row, so none can be held out; add rows")
    rest = [example for row, example in enumerate(examples) if row not in chosen]
    return rest, [examples[row] for row in sorted(chosen)]


def normal_form(text: str) -> str:
    """Normal form of a text for finding duplicates: lower case, without differences in white space."""
    return " ".join(text.split()).casefold()


def duplicates(examples: Sequence[Example]) -> Duplicates:
    """Count the repeated texts."""
    texts = Counter(normal_form(example.text) for example in examples)
    pairs = {(normal_form(example.text), example.label) for example in examples}
    several = Counter(text for text, _ in pairs)
    return Duplicates(
        rows=len(examples), texts=len(texts), repeated_rows=len(examples) - len(texts),
        texts_with_several_labels=sum(count > 1 for count in several.values()),
    )  # fmt: skip


def read_texts(given: str, *, text_field: str | None = None, field: str = "file") -> list[tuple[str, str]]:
    """Place and text of each line of a plain text file, or of each row of a table.

    Raises:
        InputError: there is no data, a line is empty, or the column is ambiguous; the message names file and line.
    """
    path = Path(given).expanduser()
    if path.is_file() and kind_of(path) == ".txt":
        sources([given], field)  # raises an error for an empty file
        return list(text_lines(path, field))
    path_or_name, split = file_and_part(given)
    rows = labelled_rows(path_or_name, split=split, field=field)
    names = columns(rows)
    column = text_field or usual_column(names, TEXT_NAMES, None) or (names[0] if len(names) == 1 else None)
    if column is None or column not in names:
        raise InputError(
            f"{rows[0].place}: which column holds the text cannot be determined (columns: {', '.join(names)}); name it "
            "with --text-field"
        )
    found = [(row.place, _text(row, column)) for row in rows]
    warn_of_empty([place for place, text in found if not text.strip()])
    return found
