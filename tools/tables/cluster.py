"""Tables of docs/cluster.md and docs/large-text.md, from records of runs on several processes and on much text."""

from __future__ import annotations

from pathlib import Path

from antiphase.base.records import Record

RECORDS = Path(__file__).resolve().parents[2] / "records"
Rows = list[list[str]]


def sharded_step() -> Rows:
    """Time of a step with divided weights over that of DistributedDataParallel, by tokens of a step."""
    rows = [["tokens of a step", "DDP, seconds", "divided, seconds", "ratio", "quartiles"]]
    for row in Record.load(RECORDS / "sharded-step" / "sharded-step.json").values["rows"]:
        seconds, (low, high) = row["seconds"], row["quartiles"]
        cells = [f"{seconds['ddp']:.2f}", f"{seconds['shard']:.2f}", f"{row['ratio_of_neighbours']:.2f}"]
        rows.append([f"{row['tokens']:,}", *cells, f"{low:.2f} to {high:.2f}"])
    return rows


def text_memory() -> Rows:
    """Peak memory of each training, by its text."""
    rows = [["training", "text, MB", "peak memory, MB", "whole run, seconds", "training, seconds"]]
    for row in Record.load(RECORDS / "text-memory.json").values["rows"]:
        sizes = [f"{row['text_bytes'] / 1e6:,.0f}", f"{row['peak_bytes'] / 1e6:,.0f}"]
        rows.append([row["name"].split("-")[0], *sizes, f"{row['seconds']:.0f}", f"{row['training_seconds']:.0f}"])
    return rows
