"""The tables of docs/ablations.md: a training step of every named arm, and what shared second maps save."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from antiphase.base.records import Record
from antiphase.lab.pages.benchmarks import ratio_text
from benchmarks.forms import OWN, SHARED

RECORD = Path(__file__).resolve().parents[2] / "records/forms.json"
NAMES = {
    "SW": "half the heads, twice as wide, normed", "V1": "V1", "V1+": "V1 that adds its second map",
    "V0": "V1 without its second map", "V1f": "V1, λ fixed", "V1n": "V1 without head norm", "V2": "V2",
    "G": "gated softmax", "GD": "V2, shared second maps, gate", "S1": "softmax-1", "SP": "softpick", "C": "Cog",
    "X": "exclusive",
}  # fmt: skip


def steps() -> list[list[str]]:
    """A training step of each arm, as a multiple of softmax's, by length."""
    return _by_length("training step / that of softmax", "subject", Record.load(RECORD).values["steps"])


def shared_maps() -> list[list[str]]:
    """A layer that forms shared second maps once, as a multiple of one that forms them for every head."""
    rows = Record.load(RECORD).values["layers"]
    timed = [row for row in rows if "ratio" in row]
    found = _by_length("40 maps / 64 maps", "task", timed)
    memory = {row["length"]: row["bytes"][SHARED] / row["bytes"][OWN] for row in rows if "bytes" in row}
    lengths = sorted({row["length"] for row in rows})
    cells = (f"{memory[length]:.2f}" if length in memory else "–" for length in lengths)
    return [*found, ["memory of eager maps", *cells]]


def _by_length(title: str, key: str, rows: list[dict[str, Any]]) -> list[list[str]]:
    lengths = sorted({row["length"] for row in rows})
    cells: dict[str, dict[int, str]] = {}
    for row in rows:
        cells.setdefault(row[key], {})[row["length"]] = ratio_text(row)
    head = [title, *(f"{length:,} tokens" for length in lengths)]
    return [head, *([NAMES.get(name, name), *(by[length] for length in lengths)] for name, by in cells.items())]
