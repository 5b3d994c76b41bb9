"""Tables of what was measured on a GPU, for docs/performance.md."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from antiphase.benchmarks.gpu_schemes import (
    BY_BLOCKS,
    CUDNN,
    FLASH,
    FLASH_DIFFLLAMA,
    FLASH_FOUR_CALLS,
    FLASH_TWO_CALLS,
    FLASH_V2,
    FLEX,
    FUSED,
    FUSED_V2,
)
from antiphase.records import Record
from antiphase.report.benchmarks import ratio_text

RECORDS = Path(__file__).resolve().parent.parent / "docs/records/gpu-h200"
BOTH = "forward + backward"
OPERATOR = (
    ("flash attention, equal size", FUSED, FLASH, "1.30"),
    ("cuDNN, equal size", FUSED, CUDNN, ""),
    ("DiffLlama's scheme on flash attention", FUSED, FLASH_DIFFLLAMA, "0.67"),
    ("four calls of flash attention", FUSED, FLASH_FOUR_CALLS, ""),
    ("two calls, padded to equal widths", FUSED, FLASH_TWO_CALLS, ""),
    ("FlexAttention", FUSED, FLEX, ""),
    ("the blockwise implementation", FUSED, BY_BLOCKS, ""),
    ("flash attention, equal size", FUSED_V2, FLASH, "0.95"),
    ("one call of flash attention and a subtraction", FUSED_V2, FLASH_V2, ""),
)
"""Compared with, subject, baseline, target."""
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
    for words, subject, baseline, target in OPERATOR:
        wanted = {"task": BOTH, "dtype": "bfloat16", "width": 64, "subject": subject.name, "baseline": baseline.name}
        cells = [_row(rows, length=length, **wanted) for length in (4096, 16384)]
        predicted = (subject.forward + subject.backward) / (baseline.forward + baseline.backward)
        found.append([subject.name, words, *cells, f"{predicted:.2f}", target])
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
