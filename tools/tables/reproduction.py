"""Tables of docs/reproduction.md about the five pairs and about continued training, from their records."""

from __future__ import annotations

import statistics
from pathlib import Path

from antiphase.base.records import Record

RECORDS = Path(__file__).resolve().parents[2] / "records/reproduce"


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


CONTINUED = {
    "softmax": "as it is", "control": "V2's control", "differential_v2": "V2",
    "differential_no_norm": "V1 without head norm", "differential": "V1",
}  # fmt: skip


def continued() -> list[list[str]]:
    """Held-out loss of a softmax model that continues in other forms, mean over seeds, by step."""
    runs, steps = Record.load(RECORDS.parent / "upcycle-v1.json").values["runs"], (0, 100, 200, 300)
    rows = [["continues as", *(f"step {step}" for step in steps)]]
    for arm, words in CONTINUED.items():
        curves = [{point["step"]: point["loss"] for point in run["curve"]} for run in runs if run["arm"] == arm]
        rows.append([words, *(f"{statistics.fmean(curve[step] for curve in curves):.3f}" for step in steps)])
    return rows
