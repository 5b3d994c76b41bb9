"""A person's text, whatever it is stored in, as a stream of documents; and a fingerprint of its content.

- ``.jsonl``, ``.ndjson``, ``.json``: one JSON object a line, one document each
- ``.csv``, ``.tsv``: a header, then one document a row
- ``.parquet``: one document a row
- any other name: plain text, the whole file is one document
- ``.gz`` after one of these names, ``.parquet`` excepted: the same, compressed
- a folder: all such files in it and below it, sorted by name; hidden ones are left out
- ``owner/name[:config][@split]``: a dataset of the Hugging Face Hub, streamed, where no local path has
  that name. The split is ``train`` unless given: ``Salesforce/wikitext:wikitext-2-raw-v1@test``

Text is UTF-8. Lines end at ``\\n`` only; in plain text a ``\\r`` before it is dropped, and so is a byte order
mark. Everything else is kept as it is. Documents of nothing but white space are left out.
"""

from __future__ import annotations

import csv
import gzip
import hashlib
import json
import logging
import os
import re
import zlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, cast

from antiphase.errors import InputError

logger = logging.getLogger(__name__)

HUB_NAME = re.compile(r"(?P<name>[\w.-]+/[\w.-]+)(:(?P<config>[\w.-]+))?(@(?P<split>[\w.:%\[\]-]+))?")
JSON_SUFFIXES = {".jsonl", ".ndjson", ".json"}
DELIMITERS = {".csv": ",", ".tsv": "\t"}
# Anything else is tried as plain text: README, .md, .rst, .tex, .py, a name without suffix, ...
NOT_TEXT = {
    *(".7z", ".bz2", ".lz4", ".rar", ".tar", ".tgz", ".xz", ".zip", ".zst"),
    *(".doc", ".docx", ".epub", ".mobi", ".odt", ".pdf", ".ppt", ".pptx", ".xls", ".xlsx"),
    *(
        ".bmp",
        ".flac",
        ".gif",
        ".ico",
        ".jpeg",
        ".jpg",
        ".mp3",
        ".mp4",
        ".png",
        ".tif",
        ".tiff",
        ".wav",
        ".webp",
    ),
    *(".arrow", ".avro", ".db", ".feather", ".h5", ".hdf5", ".idx", ".npy", ".npz", ".orc", ".sqlite"),
    *(
        ".bin",
        ".ckpt",
        ".exe",
        ".gguf",
        ".onnx",
        ".pickle",
        ".pkl",
        ".pt",
        ".pth",
        ".pyc",
        ".safetensors",
        ".so",
    ),
}
READABLE = "plain text, .jsonl, .csv, .tsv or .parquet"
COLUMN_REMEDY = "name the one that holds the text with --set data.text_field=NAME"
BYTE_ORDER_MARK = b"\xef\xbb\xbf"
FINGERPRINT_FORMAT = b"antiphase corpus 1\n"


@dataclass(frozen=True)
class _Files:
    """A file, or the files of a folder: (name relative to what the person named, path) in reading order."""

    given: str
    entries: tuple[tuple[str, Path], ...]


@dataclass(frozen=True)
class _HubDataset:
    given: str
    name: str
    config: str | None
    split: str


def documents(paths: Sequence[str], *, text_field: str | None = None, flag: str = "--data") -> Iterator[str]:
    """The documents of files, folders and Hub datasets, in the order given; none of them empty.

    Args:
        paths: what a person gave, see the top of this file.
        text_field: the column of tables that holds the text; None: ``text``, else the only column of strings.
        flag: the option that ``paths`` came from, for messages.

    Raises:
        InputError: at the call: a path is missing, empty, or holds nothing readable; during iteration: a file
            is not UTF-8 or malformed, the column is missing or not clear, every document is empty, the Hub
            has no such dataset or is out of reach.
    """
    return _documents(_sources(paths, flag), text_field, flag)


def fingerprint(paths: Sequence[str], text_field: str | None = None, *, flag: str = "--data") -> str:
    """SHA-256 (hexadecimal) of what ``documents`` would read: content, order and names below each folder.

    It does not depend on where a folder lies, nor on what it is called. A Hub dataset counts by its name and
    the hash that ``datasets`` gives its present revision.

    Raises:
        InputError: as ``documents`` does for missing paths and unreachable datasets.
    """
    total = hashlib.sha256(FINGERPRINT_FORMAT)

    def add(*parts: str | None) -> None:
        # JSON keeps the parts apart: ("ab", "c") and ("a", "bc") must differ
        total.update(json.dumps(parts).encode() + b"\n")

    add("text_field", text_field)
    for source in _sources(paths, flag):
        if isinstance(source, _HubDataset):
            add("hub", source.name, source.config, source.split, _hub_revision(source, flag))
            continue
        add("files", str(len(source.entries)))
        for name, path in source.entries:
            with _reading(path, flag), open(path, "rb") as file:
                add(name, hashlib.file_digest(file, "sha256").hexdigest())
    return total.hexdigest()


# ------------------------------------------------------------------------------------------ finding the files


def _sources(paths: Sequence[str], flag: str) -> list[_Files | _HubDataset]:
    if isinstance(paths, str):
        raise TypeError(f"paths must be a list of paths, got the string {paths!r}")
    if not paths:
        raise InputError(f"{flag} needs at least one file, folder or Hub dataset name")
    if "" in paths:  # as a path it would be the working directory
        raise InputError(f"{flag} must not be empty; give a file, a folder or a Hub dataset name")
    return [_source(str(given), flag) for given in paths]


def _source(given: str, flag: str) -> _Files | _HubDataset:
    path = Path(os.path.expanduser(given))
    if path.is_dir():
        return _folder(given, path, flag)
    if path.is_file():
        if _kind(path) is None:
            raise InputError(f"{flag} {given}: files of this kind cannot be read as text; convert it to {READABLE}")
        if path.stat().st_size == 0:
            raise InputError(f"{flag} {given}: the file is empty; give a file that holds text")
        return _Files(given, ((path.name, path),))
    if path.exists():
        raise InputError(f"{flag} {given}: this is neither a file nor a folder; save the text to a file first")
    match = HUB_NAME.fullmatch(given)
    # Beside an existing local folder, a mistyped path is far likelier than a dataset
    if match is None or path.parent.is_dir():
        raise InputError(f"{flag} {given}: there is no such file or folder; check the path")
    return _HubDataset(given, match["name"], match["config"], match["split"] or "train")


def _folder(given: str, folder: Path, flag: str) -> _Files:
    entries = []
    skipped = []

    def refuse(error: OSError) -> None:
        place = f"{flag} {error.filename}"
        raise InputError(f"{place}: the folder cannot be read ({error.strerror}); check its permissions")

    for place, names, files in os.walk(folder, onerror=refuse):
        names[:] = [name for name in names if not name.startswith(".")]
        for name in files:
            path = Path(place, name)
            if name.startswith("."):
                continue
            if path.is_symlink() and not path.exists():
                raise InputError(f"{flag} {path}: the link leads nowhere; repair or remove it")
            if _kind(path) is None or not path.is_file():
                skipped.append(path.relative_to(folder).as_posix())
            elif path.stat().st_size > 0:
                entries.append((path.relative_to(folder).as_posix(), path))
    if not entries:
        raise InputError(f"{flag} {given}: the folder holds no file with text in it; put {READABLE} there")
    if skipped:
        first = min(skipped)
        logger.warning("%s %s: left out %d files that are not text, such as %s", flag, given, len(skipped), first)
    return _Files(given, tuple(sorted(entries, key=lambda entry: entry[0].split("/"))))


def _kind(path: Path) -> str | None:
    """By its name: ``.jsonl``, ``.csv``, ``.tsv``, ``.parquet`` or ``.txt``; None for what is not text."""
    suffix = path.suffix.lower()
    compressed = suffix == ".gz"
    if compressed:
        suffix = Path(path.stem).suffix.lower()
    if suffix in NOT_TEXT or (compressed and suffix == ".parquet"):
        return None
    if suffix in JSON_SUFFIXES:
        return ".jsonl"
    return suffix if suffix in DELIMITERS or suffix == ".parquet" else ".txt"


# ------------------------------------------------------------------------------------------ reading


def _documents(sources: Iterable[_Files | _HubDataset], text_field: str | None, flag: str) -> Iterator[str]:
    for source in sources:
        found = False
        for text in _texts(source, text_field, flag):
            if text.strip():
                found = True
                yield text
        if not found:
            raise InputError(f"{flag} {source.given}: every document in it is empty; give one that holds text")


def _texts(source: _Files | _HubDataset, text_field: str | None, flag: str) -> Iterator[str]:
    if isinstance(source, _HubDataset):
        yield from _hub_texts(source, text_field, flag)
        return
    for _, path in source.entries:
        kind = _kind(path)
        if kind == ".parquet":
            yield from _parquet_texts(path, text_field, flag)
        elif kind == ".jsonl":
            yield from _json_texts(path, text_field, flag)
        elif kind in DELIMITERS:
            yield from _csv_texts(path, DELIMITERS[kind], text_field, flag)
        else:
            with _reading(path, flag), _open(path) as file:
                content = file.read()
            body = content.removeprefix(BYTE_ORDER_MARK)
            yield _decode(body, path, flag, start=len(content) - len(body)).replace("\r\n", "\n")


@contextmanager
def _reading(path: Path, flag: str) -> Iterator[None]:
    """Errors of the file system and of the compression, as input errors that name the file."""
    try:
        yield
    except (gzip.BadGzipFile, zlib.error, EOFError):
        raise InputError(f"{flag} {path}: this is not a whole gzip file; compress it again") from None
    except OSError as error:
        reason = _one_line(error.strerror or str(error))
        raise InputError(f"{flag} {path}: the file cannot be read ({reason}); check that it is whole") from None


def _one_line(reason: str) -> str:
    return " ".join(reason.split()).rstrip(".")


def _open(path: Path) -> IO[bytes]:
    return cast(IO[bytes], gzip.open(path, "rb")) if path.suffix.lower() == ".gz" else open(path, "rb")


def _decode(content: bytes, path: Path, flag: str, *, start: int) -> str:
    """``content`` as text; ``start`` is its first byte's position in the file, for the message."""
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError as error:
        position = start + error.start
        raise InputError(
            f"{flag} {path}: the text is not UTF-8 at byte {position} (0x{content[error.start]:02x}); save it as UTF-8"
        ) from None


def _lines(path: Path, flag: str) -> Iterator[str]:
    """Lines with their ends, which are ``\\n`` only: binary files break nowhere else."""
    position = 0
    with _reading(path, flag), _open(path) as file:
        for line in file:
            content = line.removeprefix(BYTE_ORDER_MARK) if position == 0 else line
            yield _decode(content, path, flag, start=position + len(line) - len(content))
            position += len(line)


def _json_texts(path: Path, text_field: str | None, flag: str) -> Iterator[str]:
    column = None
    for number, line in enumerate(_lines(path, flag), start=1):
        if not line.strip():
            continue
        place = f"{flag} {path}, line {number}"
        try:
            row = json.loads(line)
        except (ValueError, RecursionError) as error:  # plain ValueError: a number of thousands of digits
            reason = error.msg if isinstance(error, json.JSONDecodeError) else str(error)
            raise InputError(f"{place}: this is not JSON ({reason}); write one JSON object a line") from None
        if not isinstance(row, dict):
            raise InputError(
                f'{place}: this is not a JSON object; write one JSON object a line, such as {{"text": ...}}'
            )
        if column is None:
            strings = [name for name, value in row.items() if isinstance(value, str)]
            column = _column(list(row), strings, text_field, place)
        yield _cell(row, column, place)


def _csv_texts(path: Path, delimiter: str, text_field: str | None, flag: str) -> Iterator[str]:
    csv.field_size_limit(2**31 - 1)  # the default refuses documents of more than 128 KiB
    # strict: a stray quote would otherwise swallow all rows to the next one in silence
    rows = csv.reader(_lines(path, flag), delimiter=delimiter, strict=True)
    header: list[str] | None = None
    column = None
    try:
        for row in rows:
            place = f"{flag} {path}, line {rows.line_num}"
            if not row:
                continue
            if header is None:
                header = [name.strip() for name in row]
                if text_field is not None:
                    column = _column(header, header, text_field, place)
                continue
            if len(row) != len(header):
                raise InputError(
                    f"{place}: {len(row)} fields where the header has {len(header)}; put quotes around "
                    f"fields that hold {'commas' if delimiter == ',' else 'tabs'}"
                )
            if column is None:
                strings = [name for name, value in zip(header, row, strict=True) if not _is_number(value)]
                column = _column(header, strings, text_field, place)
            yield row[header.index(column)]
    except csv.Error as error:
        raise InputError(f"{flag} {path}, line {rows.line_num}: malformed row ({error}); repair its quotes") from None


def _is_number(value: str) -> bool:
    try:
        float(value)
    except ValueError:
        return False
    return True


def _parquet_texts(path: Path, text_field: str | None, flag: str) -> Iterator[str]:
    import pyarrow
    import pyarrow.parquet

    try:
        with _reading(path, flag), pyarrow.parquet.ParquetFile(path) as file:
            schema = file.schema_arrow
            strings = [field.name for field in schema if _is_string(field.type)]
            column = _column(schema.names, strings, text_field, f"{flag} {path}")
            for batch in file.iter_batches(batch_size=256, columns=[column]):
                for row in batch.to_pylist():
                    yield _cell(row, column, f"{flag} {path}")
    except pyarrow.ArrowException as error:
        reason = _one_line(str(error))
        raise InputError(f"{flag} {path}: this is not a whole Parquet file ({reason}); write it again") from None
    except UnicodeDecodeError as error:
        raise InputError(f"{flag} {path}: a text in it is not UTF-8 ({error.reason}); save it as UTF-8") from None


def _is_string(kind: Any) -> bool:
    from pyarrow import types

    if types.is_dictionary(kind):
        kind = kind.value_type
    return bool(types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind))


def _column(columns: list[str], strings: list[str], text_field: str | None, place: str) -> str:
    """The column that holds the text: the one asked for, else ``text``, else the only one of strings."""
    listed = ", ".join(columns) or "none"
    wanted = text_field if text_field is not None else "text"
    if wanted in columns:
        return wanted
    if text_field is not None:
        raise InputError(f"{place}: there is no column '{text_field}' (columns: {listed}); {COLUMN_REMEDY}")
    for names in (columns, strings):
        if len(names) == 1:
            return names[0]
    found = "several columns hold text" if strings else "no column holds text"
    raise InputError(f"{place}: {found} (columns: {listed}); {COLUMN_REMEDY}")


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
        raise InputError(f"{place}: column '{column}' holds {type(text).__name__} in place of text; {COLUMN_REMEDY}")
    try:  # JSON can write half of a surrogate pair, which no UTF-8 text holds and no tokenizer takes
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise InputError(
            f"{place}: column '{column}' holds half a surrogate pair (\\u{ord(text[error.start]):04x}); "
            "write whole characters"
        ) from None
    return text


# ------------------------------------------------------------------------------------------ the Hub


@contextmanager
def _asking_hub(source: _HubDataset, flag: str) -> Iterator[None]:
    """Errors of ``datasets`` as input errors that name the dataset."""
    from datasets.exceptions import DatasetNotFoundError, DatasetsError

    place = f"{flag} {source.given}"
    try:
        yield
    except InputError:
        raise
    except DatasetNotFoundError:
        raise InputError(
            f"{place}: there is no such file or folder, and no such dataset on the Hugging Face Hub that "
            "this account can read; check the name"
        ) from None
    except (ConnectionError, TimeoutError):
        raise InputError(
            f"{place}: there is no such file or folder, and the Hugging Face Hub could not be reached for a "
            "dataset of that name; check the path or the connection"
        ) from None
    except (DatasetsError, ValueError, OSError, RuntimeError) as error:
        # unknown configuration or split, a loading script, files of an unknown format: datasets says which
        reason = _one_line(str(error))
        raise InputError(f"{place}: the dataset cannot be read ({reason}); name it owner/name:config@split") from None


def _hub_revision(source: _HubDataset, flag: str) -> str:
    import datasets

    with _asking_hub(source, flag):
        builder = datasets.load_dataset_builder(source.name, source.config)
        return f"{builder.hash} {builder.config.name}"


def _hub_texts(source: _HubDataset, text_field: str | None, flag: str) -> Iterator[str]:
    import datasets

    place = f"{flag} {source.given}"
    column = None
    with _asking_hub(source, flag):
        rows = datasets.load_dataset(source.name, source.config, split=source.split, streaming=True)
        for row in rows:
            if column is None:
                strings = [name for name, value in row.items() if isinstance(value, str)]
                column = _column(list(row), strings, text_field, place)
            yield _cell(row, column, place)
