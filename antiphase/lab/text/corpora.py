"""The user's text, in any supported format, as a stream of documents; and a fingerprint of its content.

Formats are those of ``files``: each row of a table is a document, and so is each plain text file.

Text is UTF-8. Lines end only at ``\\n``; in plain text, a ``\\r`` before it and a byte order mark are dropped.
Everything else is kept unchanged. Documents that contain only white space are skipped.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from antiphase.base.errors import InputError, named
from antiphase.base.files import reading, whole_text
from antiphase.lab.text.files import (
    DELIMITERS,
    Files,
    HubDataset,
    csv_rows,
    hub_revision,
    hub_rows,
    json_rows,
    kind_of,
    parquet_rows,
    sources,
)
from antiphase.lab.text.parts import Part, whole_parts

COLUMN_REMEDY = "name the one that holds the text with --set data.text_field=NAME"
ROWS_CHECKED = 1000
"""Number of rows of a table whose columns are checked before all are read."""
FINGERPRINT_FORMAT = b"antiphase corpus 1\n"


def documents(paths: Sequence[str], *, text_field: str | None = None, field: str = "data") -> Iterator[str]:
    """The documents of files, folders and Hub datasets, in the given order, without empty ones.

    Args:
        paths: the paths or names that the user gave.
        text_field: the column of tables that contains the text; None means ``text``, else the only column of strings.
        field: the argument with which ``paths`` were given, for messages.

    Raises:
        InputError: at the call, if a path is missing, empty, or has nothing readable; during iteration, if a file is
            malformed or not UTF-8, the column is missing or ambiguous, every document is empty, or a Hub dataset does
            not exist or cannot be reached.
    """
    return _documents(sources(paths, field), text_field, field)


def fingerprint(paths: Sequence[str], text_field: str | None = None, *, field: str = "data") -> str:
    """SHA-256 (hexadecimal) of what ``documents`` would read: content, order and names below each folder.

    It does not depend on the location or name of a folder. A Hub dataset is identified by its name and the hash that
    ``datasets`` gives its current revision.

    Raises:
        InputError: as for ``documents``, for missing paths and unreachable datasets.
    """
    total = hashlib.sha256(FINGERPRINT_FORMAT)

    def add(*parts: str | None) -> None:
        # JSON separates the parts: ("ab", "c") and ("a", "bc") must differ
        total.update(json.dumps(parts).encode() + b"\n")

    add("text_field", text_field)
    for source in sources(paths, field):
        if isinstance(source, HubDataset):
            add("hub", source.name, source.config, source.split, hub_revision(source, field))
            continue
        add("files", str(len(source.entries)))
        for name, path in source.entries:
            with reading(path, field), open(path, "rb") as file:
                add(name, hashlib.file_digest(file, "sha256").hexdigest())
    return total.hexdigest()


def _documents(sources: Sequence[Files | HubDataset], text_field: str | None, field: str) -> Iterator[str]:
    for source in sources:
        found = False
        for text in texts_of(whole_parts(source), text_field, field):
            found = True
            yield text
        if not found:
            raise empty(source, field)


def empty(source: Files | HubDataset, field: str) -> InputError:
    """The error for a source without text."""
    return InputError(f"{named(field, source.given)}: every document in it is empty; give one that holds text")


def texts_of(parts: Iterable[Part], text_field: str | None = None, field: str = "data") -> Iterator[str]:
    """The documents of some parts of a corpus, without empty ones; the first may be the rest of one.

    Raises:
        InputError: a table cannot be read or has no text at all, which tells of a failed download.
    """
    for part in parts:
        found = False
        for text in _texts(part, text_field, field):
            if text.strip():
                found = True
                yield text
        if not found and part.end is None and isinstance(part.place, Path) and kind_of(part.place) != ".txt":
            raise InputError(f"{named(field, part.place)}: every document in it is empty; write it again, or remove it")


def check_columns(sources: Iterable[Files | HubDataset], text_field: str | None, field: str) -> None:
    """Read the first rows of every table, so that most wrong columns are found before hours of tokenization.

    Raises:
        InputError: a table has no column of text, or several, or cannot be read.
    """
    for source in sources:
        for part in whole_parts(source):
            if isinstance(part.place, HubDataset) or kind_of(part.place) != ".txt":
                has_types = isinstance(part.place, Path) and kind_of(part.place) == ".parquet"
                for _ in islice(_texts(part, text_field, field), 1 if has_types else ROWS_CHECKED):
                    pass


def _texts(part: Part, text_field: str | None, field: str) -> Iterator[str]:
    place = part.place
    if isinstance(place, HubDataset):
        rows = hub_rows(place, field, part=None if part.end is None else part.start)
        yield from _of_column(rows, part, text_field, _strings, hub_rows(place, field))
        return
    kind = kind_of(place)
    if kind == ".parquet":
        yield from _parquet_texts(part, place, text_field, field)
    elif kind == ".jsonl":
        rows = json_rows(place, field, start=part.start, end=part.end, first=part.line)
        yield from _of_column(rows, part, text_field, _strings, json_rows(place, field))
    elif kind in DELIMITERS:
        yield from _csv_texts(part, place, DELIMITERS[kind], text_field, field)
    else:
        yield whole_text(place, field, start=part.start, end=part.end)


Rows = Iterable[tuple[str, dict[str, Any]]]


def _of_column(
    rows: Rows, part: Part, text_field: str | None, strings: Callable[[dict[str, Any]], list[str]], whole: Rows
) -> Iterator[str]:
    """The texts of a part's rows.

    Args:
        strings: the columns of a row that hold text.
        whole: all rows of the table, which determine the column.

    Raises:
        InputError: no column holds text; or several do, in whatever rows, and none of them is asked for or ``text``.
    """
    column = _first_column(whole, text_field, strings) if part.start else None
    first: tuple[str, dict[str, Any]] | None = None
    for place, row in rows:
        first = first or (place, row)
        column = column or _first_column([(place, row)], text_field, strings)
        if column is None:
            continue  # no row has had a text so far
        if text_field is None and column != "text" and any(name != column for name in strings(row)):
            raise _undecided("several columns hold text", row, place)
        yield _cell(row, column, place)
    if column is None and first is not None and part.end is None:
        raise _undecided("no column holds text", first[1], first[0])


def _first_column(rows: Rows, text_field: str | None, strings: Callable[[dict[str, Any]], list[str]]) -> str | None:
    """The column that the first row with a text determines; None if no row has any."""
    for place, row in rows:
        found = strings(row)
        if found or text_field is not None or "text" in row or len(row) == 1:
            return _column(list(row), found, text_field, place)
    return None


def _strings(row: dict[str, Any]) -> list[str]:
    return [name for name, value in row.items() if isinstance(value, str)]


def _csv_texts(part: Part, path: Path, delimiter: str, text_field: str | None, field: str) -> Iterator[str]:
    def check(names: list[str], place: str) -> None:
        if text_field is not None:
            _column(names, names, text_field, place)

    def strings(row: dict[str, Any]) -> list[str]:
        return [name for name, value in row.items() if value.strip() and not _is_number(value)]

    yield from _of_column(csv_rows(path, delimiter, field, see_header=check), part, text_field, strings, ())


def _is_number(value: str) -> bool:
    try:
        float(value)
    except ValueError:
        return False
    return True


def _parquet_texts(part: Part, path: Path, text_field: str | None, field: str) -> Iterator[str]:
    def choose(names: list[str], strings: list[str]) -> list[str]:
        return [_column(names, strings, text_field, named(field, path))]

    for place, row in parquet_rows(path, field, choose, start=part.start, end=part.end):
        (column,) = row
        yield _cell(row, column, place)


def _column(columns: list[str], strings: list[str], text_field: str | None, place: str) -> str:
    """The column that contains the text: the one requested, else ``text``, else the only one of strings."""
    listed = ", ".join(columns) or "none"
    wanted = text_field if text_field is not None else "text"
    if wanted in columns:
        return wanted
    if text_field is not None:
        raise InputError(f"{place}: there is no column '{text_field}' (columns: {listed}); {COLUMN_REMEDY}")
    for names in (columns, strings):
        if len(names) == 1:
            return names[0]
    raise _undecided("several columns hold text" if strings else "no column holds text", columns, place)


def _undecided(found: str, columns: Iterable[str], place: str) -> InputError:
    return InputError(f"{place}: {found} (columns: {', '.join(columns) or 'none'}); {COLUMN_REMEDY}")


def _cell(row: dict[str, Any], column: str, place: str) -> str:
    """The text of one row; null counts as empty."""
    if column not in row:
        raise InputError(
            f"{place}: there is no column '{column}' (columns: {', '.join(row) or 'none'}); {COLUMN_REMEDY}"
        )
    text = row[column]
    if text is None:
        return ""
    if not isinstance(text, str):
        raise InputError(f"{place}: column '{column}' holds {type(text).__name__} instead of text; {COLUMN_REMEDY}")
    try:  # JSON can contain half a surrogate pair, which is not valid in UTF-8 or for tokenizers
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise InputError(
            f"{place}: column '{column}' holds half a surrogate pair (\\u{ord(text[error.start]):04x}); "
            "write whole characters"
        ) from None
    return text
