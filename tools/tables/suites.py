"""The table of transformers' own test classes in docs/reliability.md, from two records of ``tests/suites/run.py``."""

from __future__ import annotations

from pathlib import Path

from antiphase.base.records import Record

RECORDS = Path(__file__).resolve().parents[2] / "records"
BEFORE, NOW = "transformers-suites-before.json", "transformers-suites.json"
TITLES = {
    "llama": "Llama of transformers", "diffllama": "DiffLlama of transformers", "softmax": "softmax",
    "differential": "differential (V1)", "differential_v2": "differential_v2",
    "differential_llama": "Llama with `differential_config`", "pair": "encoder–decoder (V1)", "encoder": "encoder (V1)",
}  # fmt: skip


def counts() -> list[list[str]]:
    """Tests passed, failed and skipped, by kind of model, and how many failed before the models were mended."""
    now, before = ({row["kind"]: row for row in Record.load(RECORDS / name).values["rows"]} for name in (NOW, BEFORE))
    rows = [["model", "passed", "failed", "skipped", "failed before"]]
    for kind, title in TITLES.items():
        cells = [f"{now[kind][name]}" for name in ("passed", "failed", "skipped")]
        rows.append([title, *cells, f"{before[kind]['failed']}"])
    return rows
