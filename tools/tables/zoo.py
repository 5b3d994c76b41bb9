"""The tables of architectures in docs/huggingface.md, from the record of ``tests/zoo/run.py``."""

from __future__ import annotations

from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

from antiphase.base.records import Record

RECORDS = Path(__file__).resolve().parents[2] / "records"
FAMILIES = {"causal": "causal", "encoder": "encoders", "encoder-decoder": "encoder–decoders"}
CELLS = {
    "attention": "`attn_implementation=\"antiphase\"` gives the logits of transformers' own",
    "no_leak": "a token sees no later one that it would not see with transformers' own",
    "padding": "texts of unequal lengths together",
    "chunks": "a long text read in parts",
    "options": "options after a prompt",
    "statistics": "attention statistics (`look` for pairs)",
    "calibration": "calibration",
}  # fmt: skip
SHOWN = {"attention": "attention", "no_leak": "attention", "padding": "unequal lengths", "chunks": "long texts"}
"""Short names of cells whose own would not be understood."""
STATES = ("equal", "refused", "listed")
"""From best to worst; any other state is worse."""


def counts() -> list[list[str]]:
    """How many architectures of each family are right, refused or listed in each cell, in both number formats."""
    found: dict[tuple[str, str], Counter[str]] = defaultdict(Counter)
    for row in _rows():
        for cell, by_dtype in row["cells"].items():
            found[row["family"], cell][_worst(by_dtype)] += 1
    rows = [["", *FAMILIES.values()]]
    for cell, title in CELLS.items():
        rows.append([title, *(_counted(found[family, cell]) for family in FAMILIES)])
    return rows


def exceptions() -> list[list[str]]:
    """Which architectures a measurement does not serve, by the reason."""
    names: dict[tuple[str, str], list[str]] = defaultdict(list)
    for row in _rows():
        cells: dict[str, list[str]] = defaultdict(list)
        for cell, by_dtype in row["cells"].items():
            for why in {found.get("why", found["state"]) for found in by_dtype.values() if found["state"] != "equal"}:
                cells[why.rstrip(".")].append(cell)
        for why, where in cells.items():
            shown = ", ".join(dict.fromkeys(SHOWN.get(cell, cell) for cell in where))
            names[why, "everything" if len(where) == len(row["cells"]) else shown].append(row["name"])
    rows = [["reason", "what it affects", "architectures"]]
    ordered = sorted(names.items(), key=lambda item: (-len(item[1]), item[0]))
    return rows + [[why, where, ", ".join(sorted(set(found)))] for (why, where), found in ordered]


def _rows() -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = Record.load(RECORDS / "zoo.json").values["rows"]
    return rows


def _worst(by_dtype: dict[str, dict[str, Any]]) -> str:
    states = [found["state"] for found in by_dtype.values()]
    return max(states, key=lambda state: STATES.index(state) if state in STATES else len(STATES))


def _counted(states: Counter[str]) -> str:
    if not states:
        return "–"
    failing = states.total() - sum(states[state] for state in STATES)
    parts = [f"{states[state]} {state}" for state in STATES if states[state]]
    return ", ".join([*parts, *([f"{failing} failing"] if failing else [])])
