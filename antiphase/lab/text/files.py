"""Files of any common format, and datasets of the Hub: finding them and reading their rows.

- ``.jsonl``, ``.ndjson``, ``.json``: one JSON object per line
- ``.csv``, ``.tsv``: a header, then one row per line
- ``.parquet``
- any other name: plain text
- ``.gz`` after one of these names, except ``.parquet``: the same, compressed
- a folder: all such files in it and below it, sorted by name, without hidden ones
- ``owner/name[:config][@split]``: a dataset of the Hugging Face Hub, streamed, if no local path has that name. The
  split is ``train`` unless given: ``Salesforce/wikitext:wikitext-2-raw-v1@test``

Text is UTF-8. Lines end only at ``\\n``.
"""

from __future__ import annotations

import csv
import logging
import os
import re
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from antiphase.base.errors import InputError, named, worded
from antiphase.base.files import lines, most_unpacked, one_line, parse_json, reading, unpacks_to_too_much

logger = logging.getLogger(__name__)

HUB_NAME = re.compile(r"(?P<name>[\w.-]+/[\w.-]+)(:(?P<config>[\w.-]+))?(@(?P<split>[\w.:%\[\]-]+))?")
JSON_SUFFIXES = {".jsonl", ".ndjson", ".json"}
DELIMITERS = {".csv": ",", ".tsv": "\t"}
# All other files are tried as plain text: README, .md, .rst, .tex, .py, names without suffix, ...
NOT_TEXT = {
    *(".7z", ".bz2", ".lz4", ".rar", ".tar", ".tgz", ".xz", ".zip", ".zst"),
    *(".doc", ".docx", ".epub", ".mobi", ".odt", ".pdf", ".ppt", ".pptx", ".xls", ".xlsx"),
    *(".bmp", ".flac", ".gif", ".ico", ".jpeg", ".jpg", ".mp3", ".mp4", ".png", ".tif", ".tiff", ".wav", ".webp"),
    *(".arrow", ".avro", ".db", ".feather", ".h5", ".hdf5", ".idx", ".npy", ".npz", ".orc", ".sqlite"),
    *(".bin", ".ckpt", ".exe", ".gguf", ".onnx", ".pickle", ".pkl", ".pt", ".pth", ".pyc", ".safetensors", ".so"),
}
BATCH_ROWS, BATCH_BYTES = 256, 1 << 28
"""Most rows of a Parquet file that are read at once, and most bytes that they may have."""
READABLE = "plain text, .jsonl, .csv, .tsv or .parquet"


@dataclass(frozen=True)
class Files:
    """A file, or the files of a folder: (name relative to the given path, path) in reading order."""

    given: str
    entries: tuple[tuple[str, Path], ...]


@dataclass(frozen=True)
class HubDataset:
    """A dataset of the Hugging Face Hub: the name that the user gave, and its parts."""

    given: str
    name: str
    config: str | None
    split: str


# ------------------------------------------------------------------------------------------ finding


def sources(paths: Sequence[str], field: str) -> list[Files | HubDataset]:
    """The files or Hub dataset of each path.

    Raises:
        InputError: a path is missing, empty, or has nothing readable.
    """
    if isinstance(paths, str):
        raise TypeError(f"paths must be a list of paths, got the string {paths!r}")
    if not paths:
        raise InputError(f"{named(field)} needs at least one file, folder or Hub dataset name")
    if "" in paths:  # as a path, it would be the working directory
        raise InputError(f"{named(field)} must not be empty; give a file, a folder or a Hub dataset name")
    return [_source(str(given), field) for given in paths]


def _source(given: str, field: str) -> Files | HubDataset:
    path, at = Path(os.path.expanduser(given)), named(field, given)
    if os.path.isdir(path):  # unlike pathlib's, also of a name that is too long
        return _folder(given, path, field)
    if os.path.isfile(path):
        if kind_of(path) is None:
            raise InputError(f"{at}: files of this kind cannot be read as text; convert it to {READABLE}")
        if path.stat().st_size == 0:
            raise InputError(f"{at}: the file is empty; give a file that holds text")
        return Files(given, ((path.name, path),))
    if os.path.exists(path):
        raise InputError(f"{at}: this is neither a file nor a folder; save the text to a file first")
    match = HUB_NAME.fullmatch(given)
    # In an existing local folder, a mistyped path is far more likely than a dataset
    if match is None or path.parent.is_dir():
        raise InputError(f"{at}: there is no such file or folder; check the path")
    return HubDataset(given, match["name"], match["config"], match["split"] or "train")


def _folder(given: str, folder: Path, field: str) -> Files:
    entries = []
    skipped = []

    def refuse(error: OSError) -> None:
        at = named(field, error.filename)
        raise InputError(f"{at}: the folder cannot be read ({error.strerror}); check its permissions")

    seen = {os.path.realpath(folder)}
    for place, names, files in os.walk(folder, onerror=refuse, followlinks=True):
        names[:] = [name for name in sorted(names) if not name.startswith(".") and _is_new(Path(place, name), seen)]
        for name in files:
            path = Path(place, name)
            if name.startswith("."):
                continue
            if path.is_symlink() and not path.exists():
                raise InputError(f"{named(field, path)}: the link leads nowhere; repair or remove it")
            if kind_of(path) is None or not path.is_file():
                skipped.append(path.relative_to(folder).as_posix())
            elif path.stat().st_size == 0 and kind_of(path) != ".txt":
                again = "write it again, or remove it from the folder"
                raise InputError("the file is empty", again, field=field, path=path)
            elif path.stat().st_size > 0:
                entries.append((path.relative_to(folder).as_posix(), path))
    if not entries:
        raise InputError(f"{named(field, given)}: the folder holds no file with text in it; put {READABLE} there")
    if skipped:
        first, place = min(skipped), worded(named(field, given))
        logger.warning("%s: left out %d files that are not text, such as %s", place, len(skipped), first)
    return Files(given, tuple(sorted(entries, key=lambda entry: entry[0].split("/"))))


def _is_new(folder: Path, seen: set[str]) -> bool:
    """Whether a folder, which may be a link, was not seen before; it is then added to those seen."""
    real = os.path.realpath(folder)
    is_new = real not in seen
    seen.add(real)
    return is_new


def kind_of(path: Path) -> str | None:
    """The kind of a file by its name: ``.jsonl``, ``.csv``, ``.tsv``, ``.parquet`` or ``.txt``; None if not text."""
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


def json_rows(
    path: Path, field: str, *, start: int = 0, end: int | None = None, first: int = 1
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Place (``data FILE, line 3``) and object of each line that is not empty; other arguments as for ``lines``."""
    for number, line in enumerate(lines(path, field, start=start, end=end, first=first), start=first):
        if not line.strip():
            continue
        place = f"{named(field, path)}, line {number}"
        row = parse_json(line, place, "write one JSON object a line")
        if not isinstance(row, dict):
            raise InputError(
                f'{place}: this is not a JSON object; write one JSON object a line, such as {{"text": ...}}'
            )
        yield place, row


def csv_rows(
    path: Path,
    delimiter: str,
    field: str,
    *,
    header: Sequence[str] | None = None,
    see_header: Callable[[list[str], str], None] = lambda names, place: None,
) -> Iterator[tuple[str, dict[str, str]]]:
    """Place and row of each line; ``header`` names the columns of a file without a header line.

    ``see_header`` is called with the names before the first row.
    """
    csv.field_size_limit(2**31 - 1)  # the default refuses documents of more than 128 KiB
    # strict, because a stray quote would otherwise silently swallow all rows up to the next one
    rows = csv.reader(lines(path, field), delimiter=delimiter, strict=True)
    names = None if header is None else list(header)
    try:
        for row in rows:
            place = f"{named(field, path)}, line {rows.line_num}"
            if not row:
                continue
            if names is None:
                names = [name.strip() for name in row]
                _check_different(names, place)
                see_header(names, place)
                continue
            if len(row) != len(names):
                raise InputError(
                    f"{place}: {len(row)} fields where the header has {len(names)}; put quotes around "
                    f"fields that hold {'commas' if delimiter == ',' else 'tabs'}"
                )
            yield place, dict(zip(names, row, strict=True))
    except csv.Error as error:
        at = f"{named(field, path)}, line {rows.line_num}"
        raise InputError(f"{at}: malformed row ({error}); repair its quotes") from None


def parquet_rows(
    path: Path,
    field: str,
    choose: Callable[[list[str], list[str]], list[str]] = lambda names, strings: names,
    *,
    start: int = 0,
    end: int | None = None,
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Place and row of each; ``choose`` gets all columns and those of strings, and returns the columns to read.

    Args:
        start, end: the row groups to read.
    """
    with _parquet_file(path, field) as file:
        schema = file.schema_arrow
        _check_different(schema.names, named(field, path))
        columns = choose(schema.names, [one.name for one in schema if _is_string(one.type)])
        groups = range(file.num_row_groups)[start:end]
        left = most_unpacked(path)
        for group in groups:
            largest = _largest_column(file.metadata.row_group(group), columns)
            if largest > most_unpacked(path):
                raise unpacks_to_too_much(path, field)
            # No text is longer than the unpacked column, but each may be as long where equal ones are stored once
            rows = max(1, min(BATCH_ROWS, BATCH_BYTES // max(1, largest)))
            for batch in file.iter_batches(batch_size=rows, columns=columns, row_groups=[group]):
                for row in batch.to_pylist():
                    left -= sum(len(value) for value in row.values() if isinstance(value, str))
                    if left < 0:
                        raise unpacks_to_too_much(path, field)
                    yield named(field, path), row


def _check_different(names: Sequence[str], place: str) -> None:
    """
    Raises:
        InputError: two columns have one name, so the values of one would be lost.
    """
    if twice := [name for name, count in Counter(names).items() if name and count > 1]:
        raise InputError(f"{place}: two columns are called {twice[0]!r}; rename one of them")


def _largest_column(group: Any, columns: Sequence[str]) -> int:
    """Unpacked bytes of the largest of these columns in a row group."""
    found = (group.column(index) for index in range(group.num_columns))
    chosen = [
        one.total_uncompressed_size for one in found
        if any(f"{one.path_in_schema}.".startswith(f"{name}.") for name in columns)
    ]  # fmt: skip
    return max(chosen, default=0)


def parquet_groups(path: Path, field: str) -> list[int]:
    """Size in bytes of each row group, unpacked."""
    with _parquet_file(path, field) as file:
        return [file.metadata.row_group(index).total_byte_size for index in range(file.num_row_groups)]


@contextmanager
def _parquet_file(path: Path, field: str) -> Iterator[Any]:
    """The opened file; errors of its format are input errors that name it."""
    import pyarrow
    import pyarrow.parquet

    try:  # a buffer for all row groups would hold the whole file in memory
        with reading(path, field), pyarrow.parquet.ParquetFile(path, pre_buffer=False) as file:
            yield file
    except pyarrow.ArrowException as error:
        problem = f"this is not a whole Parquet file ({one_line(error)})"
        raise InputError(problem, "write it again", field=field, path=path) from None
    except UnicodeDecodeError as error:
        problem = f"a text in it is not UTF-8 ({error.reason})"
        raise InputError(problem, "save it as UTF-8", field=field, path=path) from None


def _is_string(kind: Any) -> bool:
    from pyarrow import types

    if types.is_dictionary(kind):
        kind = kind.value_type
    return bool(types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind))


# ------------------------------------------------------------------------------------------ the Hub


@contextmanager
def _hub_errors(source: HubDataset, field: str) -> Iterator[None]:
    """Convert errors of ``datasets`` to input errors that name the dataset."""
    from datasets.exceptions import DatasetNotFoundError, DatasetsError

    place = named(field, source.given)
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
    except (DatasetsError, ValueError, OSError, RuntimeError, EOFError, zlib.error) as error:
        # unknown configuration or split, loading script, unknown format, a file that ends early: the message says which
        reason = one_line(str(error))
        raise InputError(f"{place}: the dataset cannot be read ({reason}); name it owner/name:config@split") from None


def hub_revision(source: HubDataset, field: str) -> str:
    """The hash that ``datasets`` gives the current revision, with the configuration."""
    import datasets

    with _hub_errors(source, field):
        builder = datasets.load_dataset_builder(source.name, source.config)
        return f"{builder.hash} {builder.config.name}"


def is_same_part(one: HubDataset, other: HubDataset) -> bool:
    """Whether two names mean splits of one dataset with rows in common; one may name the default configuration.

    Raises:
        InputError: the dataset cannot be reached, which is asked only if one of the two names a configuration.
    """
    splits = {one.split, other.split}
    if one.name.lower() != other.name.lower() or (len(splits) > 1 and "all" not in splits):  # the Hub ignores case
        return False
    return one.config == other.config or hub_revision(one, "validation") == hub_revision(other, "data")


def hub_rows(source: HubDataset, field: str, *, part: int | None = None) -> Iterator[tuple[str, dict[str, Any]]]:
    """Place and content of each row, of all files of the dataset or of file ``part``."""
    with _hub_errors(source, field):
        rows = _hub_stream(source)
        if part is not None:
            rows = rows.shard(num_shards=rows.num_shards, index=part)
        for row in rows:
            yield named(field, source.given), row


def hub_parts(source: HubDataset, field: str) -> int:
    """Number of files of the dataset, in the order in which its rows come."""
    with _hub_errors(source, field):
        return int(_hub_stream(source).num_shards)


def _hub_stream(source: HubDataset) -> Any:
    import datasets

    return datasets.load_dataset(source.name, source.config, split=source.split, streaming=True)
