"""Rows of labelled files in any supported format, each with its place in the files.

Besides the tables of ``files``:

- plain text: ``label text`` per line, where the label is the first word. If every label has a colon, as in
  ``HUM:ind Who was Galileo ?``, rows also have ``coarse``, the part before it
- ``.json``: a list of objects or of ``[text, label]`` pairs, one such list per split, or SQuAD's nested articles
- one plain text file per label, one text per line

A null, whether in a column or inside a list, is an empty text. Who reads a row decides what may be empty: a text may; a
label, an option, a right answer or one side of a pair may not, nor consist of white space.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from antiphase.base.errors import InputError, named, nearest, worded
from antiphase.base.files import is_utf8, lines, whole_text
from antiphase.lab.text.files import DELIMITERS, Files, csv_rows, hub_rows, json_rows, kind_of, parquet_rows, sources

logger = logging.getLogger(__name__)

TEXT_NAMES = ("text", "sentence", "question", "review", "utterance", "content", "document", "body", "title")
LABEL_NAMES = ("label", "category", "class", "intent", "topic", "sentiment", "target", "coarse_label", "stars")
"""Usual names of text and label columns, most likely first; case is ignored."""


@dataclass(frozen=True)
class Row:
    """One labelled row."""

    place: str
    """File and line, for messages."""
    values: dict[str, Any]


def labelled_rows(
    given: str | Mapping[str, str],
    *,
    split: str | None = None,
    header: Sequence[str] | None = None,
    latin: bool = False,
    field: str = "data",
) -> list[Row]:
    """All rows of a file, a folder or a Hub dataset, or of one plain text file per label.

    Args:
        given: a path or name, or a mapping from labels to paths.
        split: the split of a ``.json`` file with several.
        header: the columns of a CSV or TSV file without a header line.
        latin: whether plain text that is not UTF-8 is Latin-1, as some sets are published.

    Raises:
        InputError: there is nothing to read, or a row cannot be read; the message names file and line.
    """
    if isinstance(given, Mapping):
        files = {label: _plain_file(path, field) for label, path in given.items()}
        return [
            Row(place, {"text": text, "label": label})
            for label, path in files.items()
            for place, text in text_lines(path, field, latin=latin)
        ]
    rows: list[Row] = []
    for source in sources([given], field):
        if isinstance(source, Files):
            for _, path in source.entries:
                rows += _rows_of(path, split, header, field, latin=latin)
        else:
            if split is not None and "@" not in given:
                source = replace(source, split=split, given=f"{given}@{split}")
            rows += _numbered(hub_rows(source, field))
    if not rows:
        raise InputError(f"{named(field, given)}: it holds no rows; give a file with labelled text")
    for row in rows:
        try:
            json.dumps(row.values, ensure_ascii=False, default=str).encode()
        except UnicodeEncodeError:
            raise InputError(f"{row.place}: the text contains an unpaired surrogate; use valid Unicode") from None
    return [Row(row.place, _without_nulls(row.values)) for row in rows]


def columns(rows: Sequence[Row]) -> list[str]:
    """The columns of all rows, in the order of their first occurrence."""
    return list(dict.fromkeys(name for row in rows for name in row.values))


def text_and_label(
    rows: Sequence[Row], text_field: str | None = None, label_field: str | None = None
) -> tuple[str, str]:
    """The columns of the text and of the label: those given, or with usual names, or the other one of two.

    Raises:
        InputError: a given column does not exist, or one cannot be determined.
    """
    row, names = rows[0], columns(rows)
    for flag, field in (("--text-field", text_field), ("--label-field", label_field)):
        if field is not None and field not in names:
            raise InputError(f"{row.place}: {flag} {field}: there is no such column{nearest(field, names)}")
    text = text_field or usual_column(names, TEXT_NAMES, label_field)
    label = label_field or usual_column(names, LABEL_NAMES, text)
    if len(names) == 2:
        text = text or (next(name for name in names if name != label) if label else None)
        label = label or (next(name for name in names if name != text) if text else None)
    for what, column in (("text", text), ("label", label)):
        if column is None:
            raise InputError(
                f"{row.place}: which column holds the {what} cannot be determined (columns: {', '.join(names)}); the "
                f"first line must name the columns; give the right one with --{what}-field"
            )
    assert text is not None
    assert label is not None
    if text == label:
        raise InputError(f"{row.place}: --text-field and --label-field name the same column, {text}")
    return text, label


def usual_column(names: Sequence[str], known: Sequence[str], taken: str | None) -> str | None:
    """The column with the likeliest of the known names; not ``taken``."""
    by_name = {name.lower(): name for name in reversed(names) if name != taken}
    return next((by_name[name] for name in known if name in by_name), None)


def _without_nulls(value: Any) -> Any:
    """A value of a row, with an empty text in place of each null."""
    if isinstance(value, dict):
        return {name: _without_nulls(part) for name, part in value.items()}
    if isinstance(value, list):
        return [_without_nulls(part) for part in value]
    return "" if value is None else value


def warn_of_empty(places: Sequence[str]) -> None:
    """One warning about the rows whose text is empty, if there are any."""
    if places:
        logger.warning("%s: the text is empty (%d such rows); it is kept", worded(places[0]), len(places))


def column_of(path: str, *, field: str = "data") -> list[str]:
    """A further column, in a plain text file with one value per line."""
    return [text for _, text in text_lines(_plain_file(path, field), field)]


def _plain_file(given: str, field: str) -> Path:
    """
    Raises:
        InputError: there is no such file, or it is a folder, a table or a dataset of the Hub.
    """
    (source,) = sources([given], field)
    if isinstance(source, Files) and not os.path.isdir(os.path.expanduser(given)):
        path = source.entries[0][1]
        if kind_of(path) == ".txt":
            return path
    raise InputError(f"{named(field, given)}: one plain text file is needed here, with one text a line")


def _rows_of(path: Path, split: str | None, header: Sequence[str] | None, field: str, *, latin: bool) -> list[Row]:
    kind = kind_of(path)
    plain = Path(path.stem) if path.suffix.lower() == ".gz" else path
    if plain.suffix.lower() == ".json":
        return list(_json_document(path, split, field))
    if split is not None:
        raise InputError(
            f"{named(field, path)}: only .json files and datasets of the Hub have splits; set split and "
            f"demonstrations_split to null, also those of a template (here {split})"
        )
    if kind == ".jsonl":
        return [Row(place, values) for place, values in json_rows(path, field)]
    if kind in DELIMITERS:
        return [Row(place, dict(v)) for place, v in csv_rows(path, DELIMITERS[kind], field, header=header)]
    if kind == ".parquet":
        return _numbered(parquet_rows(path, field))
    return list(_label_lines(path, field, latin=latin))


def _numbered(rows: Iterable[tuple[str, dict[str, Any]]]) -> list[Row]:
    """Rows of a source without lines, numbered from 1."""
    return [Row(f"{place}, row {number}", values) for number, (place, values) in enumerate(rows, start=1)]


def text_lines(path: Path, field: str, *, latin: bool = False) -> Iterator[tuple[str, str]]:
    """Place and text of each line; ``latin``: as for ``labelled_rows``.

    Raises:
        InputError: a line is empty.
    """
    is_latin = latin and not is_utf8(path, field)
    if is_latin:
        logger.warning("%s: the text is not UTF-8, it is read as Latin-1", worded(named(field, path)))
    for number, line in enumerate(lines(path, field, encoding="latin-1" if is_latin else "utf-8"), start=1):
        text = line.removesuffix("\n").removesuffix("\r")
        place = f"{named(field, path)}, line {number}"
        if not text.strip():
            raise InputError(f"{place}: the line is empty; remove it")
        yield place, text


def _label_lines(path: Path, field: str, *, latin: bool) -> Iterator[Row]:
    found = []
    for place, line in text_lines(path, field, latin=latin):
        if line[0].isspace():
            raise InputError(f"{place}: the line begins without a label; write the label, a space and the text")
        label = line.split(None, 1)[0]
        text = line[len(label) + 1 :]
        if not text.strip():
            logger.warning("%s: the label %s has no text; it is kept", worded(place), label)
        found.append((place, label, text))
    nested = all(":" in label for _, label, _ in found)
    for place, label, text in found:
        coarse = {"coarse": label.partition(":")[0]} if nested else {}
        yield Row(place, {"text": text, "label": label, **coarse})


def _json_document(path: Path, split: str | None, field: str) -> Iterator[Row]:
    """Rows of a whole JSON document, or of JSON Lines in a ``.json`` file."""
    text, place = whole_text(path, field), named(field, path)
    try:
        tree = json.loads(text)
    except ValueError:  # more than one document: read it as JSON Lines, with its error messages
        yield from (Row(place, values) for place, values in json_rows(path, field))
        return
    except RecursionError:
        raise InputError(f"{place}: its brackets are nested too deeply; write one JSON object a line") from None
    if isinstance(tree, dict) and isinstance(tree.get("data"), list):
        if tree["data"] and all(isinstance(item, dict) and "paragraphs" in item for item in tree["data"]):
            yield from _squad(tree["data"], place)
            return
        tree = tree["data"]
    if isinstance(tree, dict) and tree and all(isinstance(part, list) for part in tree.values()):
        if split is None:
            raise InputError(f"{place}: the file has the parts {', '.join(tree)}; name one with split")
        if split not in tree:
            raise InputError(f"{place}: there is no part '{split}'{nearest(split, tree)}")
        place, tree = f"{place}, {split}", tree[split]
    rows = tree if isinstance(tree, list) else [tree]
    for number, row in enumerate(rows, start=1):
        here = f"{place}, entry {number}"
        if isinstance(row, dict):
            yield Row(here, row)
        elif isinstance(row, list) and len(row) == 2:
            yield Row(here, {"text": row[0], "label": row[1]})
        else:
            raise InputError(f"{here}: this is neither an object nor a pair of text and label")


def _squad(articles: list[dict[str, Any]], place: str) -> Iterator[Row]:
    """Questions of SQuAD's articles, in the Hub's format; those without an id are numbered."""
    number = 0
    try:
        for article in articles:
            for paragraph in article["paragraphs"]:
                for question in paragraph["qas"]:
                    number += 1
                    answers = question.get("answers") or []
                    values = {
                        "id": question.get("id"),
                        "title": article.get("title", ""),
                        "context": paragraph["context"],
                        "question": question["question"],
                        "answers": {"text": [answer["text"] for answer in answers]},
                    }
                    name = number if values["id"] is None else values["id"]
                    yield Row(f"{place}, question {name}", values)
    except (KeyError, TypeError, AttributeError) as error:
        raise InputError(f"{place}: its articles are not those of SQuAD ({error})") from None
