"""Cuts a corpus into shards of about equal size, which are read and tokenized independently of each other.

A shard is one large part of a file, or several small files. JSON Lines are cut between lines, Parquet between row
groups, plain text where no token changes, Hub datasets between their files. Compressed files and CSV, whose quotes may
contain line ends, are not cut. The cuts depend on the content alone, not on the number of processes.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from antiphase.base.files import reading
from antiphase.lab.text.files import Files, HubDataset, hub_parts, kind_of, parquet_groups
from antiphase.lab.text.pieces import WINDOW, Unchanged, cut

SHARD = 1 << 25
"""Bytes of a shard: a part of a file is at least as large, except for the last one."""
CHUNK = 1 << 20
"""Bytes read at a time when lines are counted."""
LOOK, LOOKS = 1 << 16, 4
"""Bytes in which a cut of plain text is looked for, and how often, before the shard grows by another ``SHARD``."""


@dataclass(frozen=True)
class Part:
    """A file, a part of one, or a part of a Hub dataset."""

    source: int
    """Which of the given paths it belongs to."""
    place: Path | HubDataset
    start: int = 0
    """First byte of lines and plain text; first row group of Parquet; number of the dataset's file."""
    end: int | None = None
    """The end, exclusive; None means that of the file, or the whole dataset."""
    line: int = 1
    """Number of the first line in the file, for messages."""
    continues: bool = False
    """Whether it begins inside a document."""
    size: int | None = None
    """Bytes; None for a Hub dataset."""

    def identity(self) -> dict[str, Any]:
        """What distinguishes the part from others of the same corpus."""
        names = ("source", "start", "end", "continues", "size")
        return {name: value for name, value in asdict(self).items() if name in names}


Shard = tuple[Part, ...]
"""Consecutive parts of one source. A part that continues a document is the first of its shard."""


def whole_parts(source: Files | HubDataset, number: int = 0) -> list[Part]:
    """The files of a source without any cut."""
    if isinstance(source, HubDataset):
        return [Part(number, source)]
    return [Part(number, path, size=path.stat().st_size) for _, path in source.entries]


def shards_of(sources: Sequence[Files | HubDataset], field: str, unchanged: Unchanged | None) -> list[Shard]:
    """The corpus as shards, in reading order.

    Args:
        unchanged: whether a cut of plain text leaves its tokens unchanged; None means that any cut is allowed.

    Raises:
        InputError: a file cannot be read.
    """
    shards: list[Shard] = []
    for number, source in enumerate(sources):
        gathered: list[Part] = []
        for whole in whole_parts(source, number):
            for part in _cut(whole, field, unchanged):
                gathered.append(part)
                if part.size is None or sum(one.size or 0 for one in gathered) >= SHARD:
                    shards.append(tuple(gathered))
                    gathered = []
        if gathered:
            shards.append(tuple(gathered))
    return shards


def size_of(shard: Shard) -> int | None:
    """Bytes of a shard; None if unknown."""
    sizes = [part.size for part in shard]
    return None if None in sizes else sum(size for size in sizes if size is not None)


def _cut(whole: Part, field: str, unchanged: Unchanged | None) -> list[Part]:
    """A file as parts."""
    if isinstance(whole.place, HubDataset):
        count = hub_parts(whole.place, field)
        parts = [Part(whole.source, whole.place, start=index, end=index + 1) for index in range(count)]
        return parts if count > 1 else [whole]
    assert whole.size is not None
    kind = kind_of(whole.place)
    if kind == ".parquet":
        return _row_groups(whole, field)
    if whole.size <= SHARD or whole.place.suffix.lower() == ".gz":
        return [whole]
    if kind == ".jsonl":
        return list(_lines(whole, field))
    if kind == ".txt":
        return _at(whole, _text_cuts(whole.place, whole.size, field, unchanged))
    return [whole]


def _row_groups(whole: Part, field: str) -> list[Part]:
    """Parts of row groups; their sizes are those of all columns, unpacked."""
    assert isinstance(whole.place, Path)
    parts, first, size = [], 0, 0
    groups = parquet_groups(whole.place, field)
    for index, group in enumerate(groups):
        size += group
        if size >= SHARD or index == len(groups) - 1:
            parts.append(Part(whole.source, whole.place, start=first, end=index + 1, size=size))
            first, size = index + 1, 0
    return parts if len(parts) > 1 else [whole]


def _lines(whole: Part, field: str) -> Iterator[Part]:
    """Parts of whole lines."""
    assert isinstance(whole.place, Path)
    line = 1
    with reading(whole.place, field), open(whole.place, "rb") as file:
        while True:
            start, first = file.tell(), line
            for chunk in iter(functools.partial(file.read, CHUNK), b""):
                line += chunk.count(b"\n")
                if file.tell() - start >= SHARD:
                    break
            rest = file.readline()
            line += rest.count(b"\n")
            if file.tell() == start:
                return
            end = file.tell()
            yield Part(whole.source, whole.place, start=start, end=end, line=first, size=end - start)


def _at(whole: Part, cuts: Sequence[int]) -> list[Part]:
    """Parts of a document between these bytes."""
    assert whole.size is not None
    ends = [*cuts, whole.size]
    return [
        Part(whole.source, whole.place, start=start, end=end, continues=start > 0, size=end - start)
        for start, end in zip([0, *cuts], ends, strict=True)
    ] if cuts else [whole]  # fmt: skip


def _text_cuts(path: Path, size: int, field: str, unchanged: Unchanged | None) -> list[int]:
    """Bytes at which plain text can be cut, at least ``SHARD`` from each other and from both ends."""

    def same(text: str, position: int) -> bool:
        # line ends as the reader will see them; ``\r\n`` is never cut, because its two are not a single white space
        left = text[max(position - 2 * WINDOW, 0) : position].replace("\r\n", "\n")
        return unchanged is None or unchanged(left + text[position:][: 2 * WINDOW].replace("\r\n", "\n"), len(left))

    cuts: list[int] = []
    with reading(path, field), open(path, "rb") as file:
        wanted = SHARD
        while wanted + SHARD <= size:
            found = _text_cut(file.read, file.seek, wanted, same if unchanged else None)
            if found is not None:
                cuts.append(found)
            wanted = (found or wanted) + SHARD
    return cuts


def _text_cut(
    read: Callable[[int], bytes], seek: Callable[[int], int], wanted: int, unchanged: Unchanged | None
) -> int | None:
    """A byte after ``wanted`` at which the text can be cut, if one is found in ``LOOKS`` looks."""
    for start in range(wanted, wanted + LOOKS * LOOK, LOOK):
        seek(start)
        # what is not UTF-8 keeps its length this way; the reader of the part will refuse it
        text = read(LOOK).decode("utf-8", "surrogateescape")
        inside = text[:3].lstrip("".join(map(chr, range(0xDC80, 0xDD00)))) + text[3:]  # without half a character
        inside = inside[:-3] if len(inside) > 3 else ""
        skipped = len(text) - len(inside) - 3
        try:
            inside.encode()
        except UnicodeEncodeError:
            continue
        found = cut(inside, WINDOW, max(len(inside) - 2 * WINDOW, 0), unchanged)
        if found is not None and found >= WINDOW:
            return start + len(text[: skipped + found].encode("utf-8", "surrogateescape"))
    return None
