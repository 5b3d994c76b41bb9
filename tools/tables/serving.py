"""The table of docs/serving.md, from the record of ``tools/served.py``."""

from __future__ import annotations

from pathlib import Path

from antiphase.base.records import Record

RECORD = Path(__file__).resolve().parents[2] / "records/vllm.json"


def throughput() -> list[list[str]]:
    """New tokens a second of each kind, as ratios to softmax with quartiles, and the size of the cache."""
    found = Record.load(RECORD).values["throughput"]
    counts, cache = found["requests"], found["cache_bytes_per_token"]
    rows = [["", *(f"requests at once: {count}" for count in counts), "bytes of cache for a token"]]
    for name in cache:
        cells = []
        for row in (by_name[name] for by_name in counts.values()):
            low, high = row["quartiles"]
            ratio = "" if name == "softmax" else f" ({row['ratio']:.2f} [{low:.2f}–{high:.2f}])"
            cells.append(f"{row['tokens_per_second']:,.0f}{ratio}")
        rows.append([name, *cells, f"{cache[name]:,}"])
    return rows
