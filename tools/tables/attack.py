"""Tables of ``docs/reliability.md`` from ``attack.json``; ``page_tables.py`` writes them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from antiphase.base.records import Record

RECORDS = Path(__file__).resolve().parents[2] / "records"
Rows = list[list[str]]


def parts() -> Rows:
    """Size and result of each part of the campaign."""
    words = {
        "kills": "stops of single processes and studies",
        "torchrun": "stops with torchrun, two processes",
        "faults": "disk faults",
        "inputs": "damaged inputs",
    }
    rows = [["part", "tries", "stops, faults or inputs refused", "lost or wrong", "at revision"]]
    for name, part in _attack().items():
        met = sum(row["refused" if name == "inputs" else "stops"] for row in part["rows"])
        tries = sum(row["tries"] for row in part["rows"])
        rows.append([words[name], f"{tries:,}", f"{met:,}", f"{len(part['wrong']):,}", f"`{revision(part)}`"])
    return rows


def revision(part: dict[str, Any]) -> str:
    """Short name of the commit that a part ran on; ``-dirty`` if files differed from it."""
    commit, dash, changed = part["revision"].partition("-")
    return commit[:7] + dash + changed


def _attack() -> dict[str, Any]:
    return Record.load(RECORDS / "attack.json").values
