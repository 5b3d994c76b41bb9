"""Options that several commands share, and what their words mean."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from antiphase.base.errors import InputError

OutputOption = Annotated[
    Path, typer.Option("--output", help="Folder for the results; must be new unless --resume is given.")
]
NewOutputOption = Annotated[Path, typer.Option("--output", help="Folder for the results; must be new or empty.")]
OptionalOutputOption = Annotated[
    Path | None,
    typer.Option("--output", help="Folder for a record of the result; must be new or empty.", show_default=False),
]
QuickOption = Annotated[bool, typer.Option("--quick", help="Fewer sizes and seeds: a preview, not a result.")]
JsonOption = Annotated[
    bool, typer.Option("--json", help="Print the record as JSON; words and progress go to standard error.")
]
SeedOption = Annotated[int, typer.Option("--seed", min=0, max=2**63 - 1, help="Random seed.")]
ResumeOption = Annotated[bool, typer.Option("--resume", help="Resume the work in --output.")]
DeviceOption = Annotated[str, typer.Option("--device", help="Device: auto, cpu, cuda or cuda:0.")]
LARGEST_RANGE = 10_000
"""The most numbers that a range such as ``2-9`` may name."""


def numbers(flag: str, text: str, kind: Callable[[str], Any]) -> list[Any]:
    """``1,2,4`` as [1, 2, 4]."""
    try:
        return [kind(part) for part in text.split(",")]
    except ValueError:
        raise InputError(f"{flag} must be comma-separated numbers, got {text!r}") from None


def ranges(flag: str, text: str) -> list[int]:
    """``2-4,7`` as [2, 3, 4, 7]."""
    found: list[int] = []
    for part in text.split(","):
        first, dash, last = part.partition("-")
        try:
            ends = int(first), int(last if dash else first)
        except ValueError:
            raise InputError(f"{flag} must be numbers and ranges such as 2-9 or 2,4,6, got {text!r}") from None
        if ends[1] < ends[0]:
            raise InputError(f"{flag} has a range that ends before it begins, {part!r}; write {ends[1]}-{ends[0]}")
        if ends[1] - ends[0] >= LARGEST_RANGE:
            raise InputError(f"{flag} names more than {LARGEST_RANGE:,} numbers: {part!r}")
        found += range(ends[0], ends[1] + 1)
    if not found:
        raise InputError(f"{flag} names no numbers: {text!r}")
    return found
