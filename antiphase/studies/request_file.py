"""What a study was asked for, kept in its folder: work goes on only where it is the very same."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from antiphase.errors import InputError
from antiphase.records import finite
from antiphase.training.run_folder import check_empty

REQUEST = "request.json"


def open_folder(request: dict[str, Any], output: Path, *, resume: bool) -> None:
    """Check that the folder is new, or holds this very piece of work and ``--resume`` was given.

    Raises:
        InputError: it holds something else.
    """
    path = output / REQUEST
    if not path.is_file():
        check_empty(output)
        return
    if not resume:
        raise InputError(f"--output {output} holds this work already; add --resume to go on with it, or choose another")
    before, now = json.loads(path.read_text("utf-8"))["request"], finite(request)
    free = ("device", "parts")  # what has been done stays true on another device and with other parts
    changed = [name for name in {**before, **now} if name not in free and before.get(name) != now.get(name)]
    if changed:
        raise InputError(f"--output {output} holds work with other settings ({', '.join(changed)}); choose another")
