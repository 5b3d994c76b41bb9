"""Results written line by line as soon as they are known, so that long work goes on after a kill."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from typing import Any

from antiphase.errors import InputError
from antiphase.records import write_atomically


def hash_of(tree: Any) -> str:
    """SHA-256 of plain values."""
    return hashlib.sha256(json.dumps(tree).encode()).hexdigest()


def append_line(path: Path, values: dict[str, Any]) -> None:
    """Add a line that survives a kill."""
    with open(path, "ab") as file:
        file.write((json.dumps(values) + "\n").encode())
        file.flush()
        os.fsync(file.fileno())


def read_lines(path: Path, *names: str) -> list[dict[str, Any]]:
    """Lines of JSON objects that have these names; a last one that a kill has torn is left out, and cut off.

    Raises:
        InputError: a whole line is something else.
    """
    if not path.is_file():
        return []
    content = path.read_bytes()
    whole = content[: content.rfind(b"\n") + 1]
    if len(whole) < len(content):
        write_atomically(path, whole)
    return [_checked(path, place, line, names) for place, line in enumerate(whole.split(b"\n"), start=1) if line]


def _checked(path: Path, place: int, line: bytes, names: tuple[str, ...]) -> dict[str, Any]:
    try:
        found = json.loads(line)
    except ValueError:
        found = None
    if not isinstance(found, dict) or not set(names) <= found.keys():
        raise InputError(
            f"{path}, line {place}: this is no result of antiphase; take the line away, or choose another folder"
        )
    return found
