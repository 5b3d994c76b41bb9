"""Table of what was measured on a GPU, for docs/performance.md."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from antiphase.records import Record
from antiphase.report.benchmarks import ratio_text

RECORDS = Path(__file__).resolve().parent.parent / "docs/records/gpu-h200"
BOTH = "forward + backward"
OPERATOR = (
    ("flash attention, equal size", "V1", "flash", "1.43", "1.30"),
    ("cuDNN, equal size", "V1", "cuDNN", "", ""),
    ("DiffLlama's scheme on flash attention", "V1", "DiffLlama on flash", "0.71", "0.67"),
    ("four calls of flash attention", "V1", "four flash calls", "0.71", ""),
    ("two calls, padded to equal widths", "V1", "two flash calls", "0.71", ""),
    ("FlexAttention", "V1", "FlexAttention", "", ""),
    ("the blockwise implementation", "V1", "V1 blockwise", "", ""),
    ("flash attention, equal size", "V2", "flash", "1.07", "0.95"),
    ("one call of flash attention and a subtraction", "V2", "one flash call for V2", "", ""),
)
"""Compared with, subject, name in the record, ratio of the multiply-adds, target."""
MODELS = (
    ("softmax", "antiphase differential", "antiphase softmax", "1.05"),
    ("Llama", "antiphase differential", "Llama", ""),
    ("DiffLlama", "antiphase differential", "DiffLlama", ""),
    ("softmax", "antiphase differential_v2", "antiphase softmax", ""),
)


def _row(rows: Sequence[dict[str, Any]], **wanted: Any) -> str:
    found = [row for row in rows if all(row[name] == value for name, value in wanted.items())]
    return ratio_text(found[0]) if found else "–"


def operator() -> list[list[str]]:
    """Forward + backward in bf16 on an H200, divided by the time of alternatives."""
    rows = Record.load(RECORDS / "attention.json").values["rows"]
    found = [["forward + backward, bf16, d = 64", "divided by", "N = 4,096", "N = 16,384", "multiply-adds", "target"]]
    for words, subject, baseline, predicted, target in OPERATOR:
        wanted = {"task": BOTH, "dtype": "bfloat16", "width": 64, "subject": subject, "baseline": baseline}
        cells = [_row(rows, length=length, **wanted) for length in (4096, 16384)]
        found.append([subject, words, *cells, predicted, target])
    return found


def models() -> list[list[str]]:
    """A training step of models of 110M parameters on an H200, divided by that of others."""
    rows = Record.load(RECORDS / "model.json").values["rows"]
    found = [["training step, 110M parameters, maps of 64", "divided by", "N = 4,096", "target"]]
    names = {"antiphase differential": "V1", "antiphase differential_v2": "V2"}
    for words, subject, baseline, target in MODELS:
        cell = _row(rows, task="training step", length=4096, subject=subject, baseline=baseline)
        found.append([names[subject], words, cell, target])
    return found
