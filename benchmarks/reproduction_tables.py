"""Tables of docs/reproduction.md about the five pairs, from the records in docs/records/reproduce."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from antiphase.records import Record, finite
from antiphase.report.tables import Table
from antiphase.studies.reproduce import Reproduction, presentation
from antiphase.studies.reproduce.judging import judge_all
from antiphase.studies.reproduce.readings import Found

RECORDS = Path(__file__).resolve().parent.parent / "docs/records/reproduce"


def claims() -> list[list[str]]:
    """The claims with their differences and verdicts."""
    return _judged_again(presentation.claims)


def published() -> list[list[str]]:
    """What each claim is based on, beside the paper's numbers."""
    return _judged_again(presentation.published)


def _judged_again(make: Callable[[Record], Table | None]) -> list[list[str]]:
    """A table of the reproduction, its claims judged anew from the records of its parts."""
    whole = _record("reproduce")
    parts = {part: [_record(name) for name in names] for part, names in whole.values["parts"].items()}
    missing = {one.part: one.reason for one in Reproduction.of(whole).claims if one.part not in parts}
    judged = judge_all(Found.of(parts), missing)
    made = make(replace(whole, values={**whole.values, "claims": finite([one.describe() for one in judged])}))
    assert made is not None, "claims"
    return [[column.name for column in made.columns], *made.text()]


def pairs_by_seed() -> list[list[str]]:
    """What each pair of the reproduction learned, softmax / differential."""
    compared = _record("compare")
    metrics = {entry["metric"]: entry["arms"] for entry in compared.values["comparison"]}
    head = ["seed", "held-out loss, nats per token", "first question, as in training", "passes 50 % at step",
            "four needles, as evaluated", "16 labelled words"]  # fmt: skip
    found = [head]
    for place, seed in enumerate(compared.seeds):
        needles = _record(f"needles/seed{seed}").values["summary"]
        cells: list[list[str]] = []
        for arm in ("softmax", "differential"):
            values = {name: arms[arm]["values"][place] for name, arms in metrics.items()}
            (whole,) = [row for row in needles if row["arm"].startswith(arm) and row["trained"]
                        and row["needles"] == 4 and row["depth"] is None]  # fmt: skip
            tasks = _record(f"many-shot/{arm}-seed{seed}").values["tasks"].values()
            shots = statistics.fmean(task["rows"][-1]["accuracy"] for task in tasks)
            steps = values["steps to 50 % accuracy"]
            cells.append([
                f"{values['held-out loss']:.3f}", f"{100 * values['first-query accuracy']:.0f} %",
                "–" if steps is None else f"{steps:,}", f"{100 * whole['accuracy']:.0f} %", f"{100 * shots:.0f} %",
            ])  # fmt: skip
        found.append([str(seed), *(" / ".join(pair) for pair in zip(*cells, strict=True))])
    return found


def _record(name: str) -> Record:
    return Record.load(RECORDS / f"{name}.json")
