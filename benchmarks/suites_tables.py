"""The table of transformers' own test classes in docs/huggingface.md, from docs/records/transformers-suites.json."""

from __future__ import annotations

from pathlib import Path

from antiphase.records import Record

RECORD = Path(__file__).resolve().parent.parent / "docs/records/transformers-suites.json"
TITLES = {
    "llama": "Llama of transformers", "diffllama": "DiffLlama of transformers", "softmax": "softmax",
    "differential": "differential (V1)", "differential_v2": "differential_v2",
    "differential_llama": "Llama with `differential_config`", "pair": "encoder–decoder (V1)", "encoder": "encoder (V1)",
}  # fmt: skip


def counts() -> list[list[str]]:
    """Tests passed, failed and skipped, by kind of model."""
    rows = Record.load(RECORD).values["rows"]
    found = {row["kind"]: [f"{row[name]}" for name in ("passed", "failed", "skipped")] for row in rows}
    return [["model", "passed", "failed", "skipped"], *([TITLES[kind], *found[kind]] for kind in TITLES)]
