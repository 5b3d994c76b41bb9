"""Claims, seeds and the primary measure, written into a study's folder before it runs.

A verdict is given only on claims in that file, because a measure chosen afterwards can be chosen to fit.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from antiphase.errors import InputError
from antiphase.folders.contents import file_digest
from antiphase.reading.files import read_json
from antiphase.records import write_atomically

CLAIMS_FILE = "claims.json"
RESTORE = "restore the original file"
UNREGISTERED = "no verdict"
"""The verdict on a claim that was not written down before the run."""


@dataclass(frozen=True)
class Registration:
    """What a study's ``claims.json`` says."""

    sha256: str
    written: str
    """UTC, ISO 8601."""
    primary: str
    claims: Sequence[str]
    """Names."""

    def describe(self) -> dict[str, str]:
        """For a record."""
        return {"file": CLAIMS_FILE, "sha256": self.sha256, "written": self.written, "primary": self.primary}


def register(folder: Path, *, primary: str, seeds: Sequence[int], claims: Sequence[Mapping[str, Any]]) -> None:
    """Write the file, at the start of a study alone: a folder that has one keeps it.

    Args:
        primary: the one claim, by its name, that the study is made for.
        claims: each with a ``name`` and what is measured, in which direction.
    """
    path = folder / CLAIMS_FILE
    if path.exists():
        return
    written = datetime.now(UTC).isoformat(timespec="seconds")
    tree = {"written": written, "primary": primary, "seeds": list(seeds), "claims": [dict(claim) for claim in claims]}
    write_atomically(path, (json.dumps(tree, indent=1, ensure_ascii=False) + "\n").encode())


def registered(folder: Path, *, claims: Sequence[Mapping[str, Any]] | None = None) -> Registration | None:
    """The claims of a study; None: it began without them.

    Args:
        claims: those that follow from the study's settings.

    Raises:
        InputError: the file was changed: it cannot be read, or has other claims.
    """
    path = folder / CLAIMS_FILE
    if not path.is_file():
        return None
    tree = read_json(path, "--output", RESTORE)
    if claims is not None and tree.get("claims") != [dict(claim) for claim in claims]:
        raise InputError(f"--output {path}: these are not the claims that follow from the settings; {RESTORE}")
    try:
        names = [str(claim["name"]) for claim in tree["claims"]]
        return Registration(file_digest(path), str(tree["written"]), str(tree["primary"]), names)
    except (KeyError, TypeError):
        raise InputError(f"--output {path}: these are not the claims of a study; {RESTORE}") from None
