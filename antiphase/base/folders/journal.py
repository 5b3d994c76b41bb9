"""Journals: results written line by line as soon as they are known, so that long work can continue after a kill.

A measurement's folder also stores the measurement's inputs, so that other work is never mistaken for it.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from antiphase.base.errors import InputError, named
from antiphase.base.files import reading
from antiphase.base.folders.contents import hash_of
from antiphase.base.folders.holders import confirm_held
from antiphase.base.folders.ownership import undone_if_refused
from antiphase.base.folders.work import BROUGHT_BACK, Resumable
from antiphase.base.records import Record, finite, write_atomically, writing

JOURNAL = "journal.jsonl"
INPUTS = "inputs"
"""Key of the journal line that stores the inputs of the work."""
CHECKSUM = "sha256"
"""Key of the beginning of the digest of a line's other values."""
TEXTS = {"key", "text", "answer"}
"""Keys of lines whose values are text."""
JOURNALED = Resumable(
    JOURNAL,
    again=f"exists and is not empty; add {named('resume')} to continue, or choose another folder",
    other="contains work with other settings or inputs ({names}); choose another folder",
)


def append_line(path: Path, values: dict[str, Any]) -> None:
    """Append a line with a checksum of its values, and flush it to disk.

    Raises:
        Interrupted: another machine has taken the folder over.
    """
    confirm_held()
    line = json.dumps({**values, CHECKSUM: _checksum(values)})
    with writing(path), open(path, "ab") as file:
        file.write((line + "\n").encode())
        file.flush()
        os.fsync(file.fileno())


def read_lines(path: Path, *names: str) -> list[dict[str, Any]]:
    """Lines of JSON objects with these keys; a last line truncated by a kill is skipped and removed from the file.

    Raises:
        InputError: a complete line is something else, or is damaged.
    """
    if not path.is_file():
        return []
    with reading(path, ""):
        content = path.read_bytes()
    whole = content[: content.rfind(b"\n") + 1]
    if len(whole) < len(content):
        write_atomically(path, whole)
    return [_checked(path, place, line, names) for place, line in enumerate(whole.split(b"\n"), start=1) if line]


def _checked(path: Path, place: int, line: bytes, names: tuple[str, ...]) -> dict[str, Any]:
    try:
        found = json.loads(line)
    except (ValueError, RecursionError):
        found = None
    at = f"{named('', path)}, line {place}"
    whole = isinstance(found, dict) and set(names) <= found.keys()
    if whole and found.pop(CHECKSUM, None) != _checksum(found):
        raise InputError(f"{at}, is damaged", f"remove it, and {named('resume')} computes it again")
    if not whole or not all(isinstance(found[name], str) for name in TEXTS & set(names)):
        raise InputError(f"{at}: this is not a result of antiphase", "remove the line, or choose another folder")
    return found


def _checksum(values: dict[str, Any]) -> str:
    return hash_of(values)[:16]


class Journal:
    """Inputs of a measurement and its finished parts, stored in the folder of its record."""

    def __init__(self, output: Path, inputs: Callable[[], Mapping[str, Any]]) -> None:
        """
        Args:
            inputs: everything that the result depends on, by its name on the command line.

        Raises:
            InputError: the folder's work has other inputs.
        """
        self.path, self.inputs = output / JOURNAL, inputs
        self.known: dict[str, Any] = {line["key"]: line["rows"] for line in read_lines(self.path, "key", "rows")}
        self.record: Record | None = None
        """The record of a finished measurement."""
        if INPUTS in self.known:
            if not isinstance(self.known[INPUTS], dict):
                raise InputError(" does not say what was measured", BROUGHT_BACK, path=self.path)
            JOURNALED.check_same(output, self.known[INPUTS], finite(inputs()))
            is_finished = (output / "record.json").is_file()
            self.record = Record.load(output, is_resumed=True) if is_finished else None

    def begin(self) -> None:
        """Store the inputs if they are not stored yet; must be called before measuring."""
        if INPUTS not in self.known:
            self.add(INPUTS, self.inputs())

    @property
    def has_parts(self) -> bool:
        """Whether a part is finished."""
        return bool(self.known.keys() - {INPUTS})

    def key(self, *part: Any) -> str:
        """The key of a part of this work, named by plain JSON values."""
        return hash_of([self.known[INPUTS], *part])

    def add(self, key: str, rows: Any) -> None:
        """Store the results of a part."""
        self.known[key] = finite(rows)
        append_line(self.path, {"key": key, "rows": self.known[key]})


@contextmanager
def journal_in(output: Path, inputs: Callable[[], Mapping[str, Any]], *, resume: bool) -> Iterator[Journal]:
    """Lock the folder of a measurement: a new one or, with ``resume``, one with the same measurement.

    If the input is refused, for example because a model's logits are NaN, finished parts stay.

    Raises:
        InputError: the folder holds something else or is in use.
    """
    journal: Journal | None = None
    with (
        JOURNALED.held(output, resume=resume),
        undone_if_refused(output, unless=lambda: journal is not None and journal.has_parts),
    ):
        journal = Journal(output, inputs)
        yield journal
