"""The one question of a study and its primary contrast, written into its folder before it runs.

A measure chosen afterwards can be chosen to fit, so only this contrast is a test; all others are shown by intervals.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from antiphase.base.errors import InputError, named
from antiphase.base.files import read_json
from antiphase.base.folders.contents import file_digest
from antiphase.base.records import finite, write_atomically
from antiphase.base.typed import build
from antiphase.lab.statistics.blocks import planned_detectable

CLAIM_FILE = "claim.json"
RESTORE = "restore the original file"
LOSS_SPREAD = 0.015
"""Residual standard deviation that is expected of a held-out loss, nats a token: 0.009 to 0.018 in studies of models
with 1.3M parameters."""


@dataclass(frozen=True, kw_only=True)
class Claim:
    """What a study asks."""

    question: str
    contrast: str
    """The measure and the two arms, such as ``held-out loss: V1 - softmax``."""
    n: int
    """Blocks (seeds), or samples that judge."""
    spread: float | None = None
    """Residual standard deviation that is expected of one value; None where none is, as of steps to learn."""
    detectable: float | None = None
    """The difference that is seen with a power of 80 % (MDE), in the unit of the measure; of steps, a hazard ratio."""
    details: dict[str, Any] = field(default_factory=dict)
    """What else is fixed beforehand."""

    @classmethod
    def of_blocks(cls, question: str, contrast: str, *, arms: int, blocks: int, spread: float) -> Claim:
        """The claim of a difference of two among some arms; one block has no MDE."""
        detectable = planned_detectable(spread, arms=arms, blocks=blocks) if blocks > 1 else None
        return cls(question=question, contrast=contrast, n=blocks, spread=spread, detectable=detectable)


@dataclass(frozen=True, kw_only=True)
class Registration(Claim):
    """A claim as it stands in a study's folder."""

    written: str
    """UTC, ISO 8601."""
    sha256: str
    """Of the file."""


def register(folder: Path, claim: Claim) -> None:
    """Write the file, at the start of a study alone: a folder that has one keeps it."""
    path = folder / CLAIM_FILE
    if path.exists():
        return
    tree = {"written": datetime.now(UTC).isoformat(timespec="seconds"), **finite(asdict(claim))}
    write_atomically(path, (json.dumps(tree, indent=1, ensure_ascii=False) + "\n").encode())


def registered(folder: Path, claim: Claim | None = None) -> Registration | None:
    """The claim of a study; None: it began without one.

    Args:
        claim: the one that follows from the study's settings.

    Raises:
        InputError: the file was changed: it cannot be read, or has another claim.
    """
    path = folder / CLAIM_FILE
    if not path.is_file():
        return None
    tree = read_json(path, "output", RESTORE)
    try:
        found = build(Registration, {**tree, "sha256": file_digest(path)})
    except (InputError, TypeError):
        raise InputError(f"{named('output', path)}: this is not the claim of a study; {RESTORE}") from None
    if claim is not None and finite(asdict(claim)) != {name: tree.get(name) for name in asdict(claim)}:
        raise InputError(f"{named('output', path)}: this is not the claim that follows from the settings; {RESTORE}")
    return found
