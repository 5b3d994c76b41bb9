"""Parallel texts (a source and its translation): reading files, and splitting off a held-out part.

- ``source<TAB>target``, one pair per line, without header and quotes: ``.tsv``, ``.txt`` and other plain text
- JSON Lines, ``.json``, CSV, Parquet and datasets of the Hub: two columns, by name
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from antiphase.base.errors import InputError, named, nearest
from antiphase.base.randomness import keyed_generator
from antiphase.lab.lineage.data.labelled_texts import file_and_part, normal_form
from antiphase.lab.text.files import Files, kind_of, sources
from antiphase.lab.text.labelled import Row, labelled_rows, text_lines

LINES = (".txt", ".tsv")
"""Suffixes of files with one pair per line."""


@dataclass(frozen=True)
class Pair:
    """A text and its translation."""

    place: str
    """File and line, for messages."""
    source: str
    target: str
    alignment: tuple[int, ...] | None = None
    """For each word of the target, the 0-based index of its source word; None if unknown."""


def read_pairs(
    paths: Sequence[str], *, source_field: str = "source", target_field: str = "target", field: str = "train"
) -> list[Pair]:
    """All pairs of the files, in their order.

    Args:
        paths: files, folders or Hub datasets.
        source_field, target_field: columns of files with named columns.

    Raises:
        InputError: there is no data, a line is not a pair, a side is empty, or a column is missing.
    """
    if source_field == target_field:
        raise InputError(f"--source-field and --target-field name the same column, {source_field}")
    found = []
    parts = [file_and_part(given) for given in paths]
    for (given, split), one in zip(parts, sources([path for path, _ in parts], field), strict=True):
        entries = [path for _, path in one.entries] if isinstance(one, Files) else [Path(given)]
        for path in entries:
            if isinstance(one, Files) and kind_of(path) in LINES:
                found += list(_line_pairs(path, field))
            else:
                name = str(path) if isinstance(one, Files) else given
                rows = labelled_rows(name, split=split, field=field)
                found += [_named(row, source_field, target_field) for row in rows]
    for pair in found:
        for side, text in (("source", pair.source), ("target", pair.target)):
            if not text.strip():
                raise InputError(f"{pair.place}: the {side} is empty; write it or remove the pair")
    return found


def _line_pairs(path: Path, field: str) -> Iterator[Pair]:
    for place, line in text_lines(path, field):
        sides = line.split("\t")
        if len(sides) != 2:
            tabs = "no tab" if len(sides) == 1 else f"{len(sides) - 1} tabs"
            raise InputError(f"{place}: there is {tabs} in the line; write the source, one tab and the target")
        yield Pair(place, sides[0], sides[1])


def _named(row: Row, source_field: str, target_field: str) -> Pair:
    return Pair(row.place, _text(row, source_field, "--source-field"), _text(row, target_field, "--target-field"))


def _text(row: Row, field: str, flag: str) -> str:
    if field not in row.values:
        names = [str(name) for name in row.values]
        raise InputError(f"{row.place}: there is no column '{field}' of {flag}{nearest(field, names)}")
    value: Any = row.values[field]
    if not isinstance(value, str):
        kind = type(value).__name__
        raise InputError(f"{row.place}: the column '{field}' holds {kind} instead of text; name the right one")
    return value


def held_out_pairs(pairs: Sequence[Pair], seed: int, *, field: str = "train") -> tuple[list[Pair], list[Pair]]:
    """Split pairs, in order, into a training part and a test part with those of a random tenth of the sources.

    Pairs of one source text stay together, so that no source is in both parts; texts that differ only in case and white
    space count as one.

    Raises:
        InputError: there is only one source text.
    """
    texts = list(dict.fromkeys(normal_form(pair.source) for pair in pairs))
    if len(texts) < 2:
        raise InputError(
            f"{named(field)} holds one source text only, so none can be held out; give more pairs, or --test"
        )
    order = torch.randperm(len(texts), generator=keyed_generator("parallel", seed)).tolist()
    chosen = {texts[index] for index in order[: max(1, len(texts) // 10)]}
    is_test = [normal_form(pair.source) in chosen for pair in pairs]
    train, test = (
        [pair for pair, tested in zip(pairs, is_test, strict=True) if tested is part] for part in (False, True)
    )
    return train, test
