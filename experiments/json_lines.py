"""Runs of a study as lines of one file, each written whole at the end of its run."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from antiphase.base.records import finite

Line = dict[str, Any]


def lines(path: Path) -> list[Line]:
    """The finished runs. A line that a kill cut off has no end and is left out."""
    if not path.is_file():
        return []
    return [json.loads(line) for line in path.read_text("utf-8").splitlines(keepends=True) if line.endswith("\n")]


def append(path: Path, line: Line) -> None:
    """Add a line; a part of one that a kill left is removed first."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a+b") as file:
        file.seek(0)
        file.truncate(file.read().rfind(b"\n") + 1)
        file.write((json.dumps(finite(line), ensure_ascii=False, allow_nan=False) + "\n").encode())
        file.flush()
        os.fsync(file.fileno())
