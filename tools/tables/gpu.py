"""Tables of what was measured on a GPU, for docs/performance.md."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from antiphase.base.records import Record
from antiphase.lab.pages.benchmarks import ratio_text
from antiphase.lab.speed.gpu_schemes import (
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
from antiphase.lab.speed.model import COMPILED, DIFFLLAMA, LLAMA, OURS, OURS_V2, SOFTMAX_ON_FLASH
from antiphase.lab.speed.model import SOFTMAX as SOFTMAX_MODEL
from antiphase.lab.statistics.blocks import Blocks

RECORDS = Path(__file__).resolve().parents[2] / "records/gpu-h200"
BOTH = "forward + backward"
OPERATOR = (
    ("flash attention, equal size", FUSED, FLASH, "1.30"),
    ("cuDNN, equal size", FUSED, CUDNN, ""),
    ("DiffLlama's scheme on flash attention", FUSED, FLASH_DIFFLLAMA, "0.67"),
    ("four calls of flash attention", FUSED, FLASH_FOUR_CALLS, ""),
    ("two calls, padded to equal widths", FUSED, FLASH_TWO_CALLS, ""),
    ("FlexAttention", FUSED, FLEX, ""),
    ("flash attention, equal size", FUSED_V2, FLASH, "0.95"),
    ("one call of flash attention and a subtraction", FUSED_V2, FLASH_V2, ""),
)
"""Compared with, subject, baseline, target."""
MODELS = (
    ("softmax on flash attention", OURS, SOFTMAX_ON_FLASH),
    ("softmax (cuDNN)", OURS, SOFTMAX_MODEL),
    ("softmax, both compiled", OURS + COMPILED, SOFTMAX_MODEL + COMPILED),
    ("Llama", OURS, LLAMA),
    ("DiffLlama", OURS, DIFFLLAMA),
    ("Llama", DIFFLLAMA, LLAMA),
    ("softmax on flash attention", OURS_V2, SOFTMAX_ON_FLASH),
    ("softmax (cuDNN)", OURS_V2, SOFTMAX_MODEL),
    ("softmax, both compiled", OURS_V2 + COMPILED, SOFTMAX_MODEL + COMPILED),
)


def _row(rows: Sequence[dict[str, Any]], **wanted: Any) -> str:
    found = [row for row in rows if all(row[name] == value for name, value in wanted.items())]
    return ratio_text(found[0]) if found else "–"


def rows_of(pieces: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The comparisons among the pieces of a stage, which also hold checks and rates."""
    lists = [piece["rows"] if isinstance(piece, dict) else piece for piece in pieces.values()]
    return [row for rows in lists if isinstance(rows, list) for row in rows if "ratio" in row]


def _rows(name: str) -> list[dict[str, Any]]:
    """Rows of the later, partial run of a benchmark, then of the earlier, complete one; the first match counts."""
    newer = Record.load(RECORDS / f"{name}-launches.json").values["pieces"]
    return [*rows_of(newer), *Record.load(RECORDS / f"{name}.json").values["rows"]]


def operator() -> list[list[str]]:
    """Forward + backward in bf16 on an H200, divided by the time of alternatives."""
    rows = _rows("attention")
    found = [["forward + backward, bf16, d = 64", "divided by", "N = 4,096", "N = 16,384", "multiply-adds", "target"]]
    for words, subject, baseline, target in OPERATOR:
        wanted = {"task": BOTH, "dtype": "bfloat16", "width": 64, "subject": subject.name, "baseline": baseline.name}
        cells = [_row(rows, length=length, **wanted) for length in (4096, 16384)]
        predicted = (subject.forward + subject.backward) / (baseline.forward + baseline.backward)
        found.append([subject.name, words, *cells, f"{predicted:.2f}", target])
    return found


def models() -> list[list[str]]:
    """Models of 110M parameters on an H200, divided by others."""
    rows = _rows("model")
    tasks = ("training step", "prefill", "tokens generated")
    found = [["V1 110M, V2 99M parameters, maps of 64, N = 4,096", "divided by", *tasks]]
    names = {OURS: "V1", OURS_V2: "V2", DIFFLLAMA: DIFFLLAMA}
    for words, subject, baseline in MODELS:
        cells = [_row(rows, task=task, subject=subject, baseline=baseline) for task in tasks]
        found.append([names[subject.removesuffix(COMPILED)], words, *cells])
    return found


def pairs() -> list[list[str]]:
    """Pairs of models trained on an H200: loss, and what they gain from context, by seed."""
    compared = Record.load(RECORDS / "pairs/compare.json")
    (losses,) = [entry for entry in compared.values["comparison"] if entry["metric"] == "held-out loss"]
    arms = {"softmax": "softmax", "differential": "V1"}
    tails = {
        arm: [Record.load(RECORDS / f"pairs/long-context-{arm}-seed{seed}.json").values["tail"]
              for seed in compared.seeds] for arm in arms
    }  # fmt: skip
    measures = {"held-out loss": {arm: losses["arms"][arm]["values"] for arm in arms}} | {
        words: {arm: [tail[name] for tail in tails[arm]] for arm in arms}
        for words, name in (("gain from more than 128 tokens of context", "context_gain"),
                            ("own beginning against another text's", "gain"))
    }  # fmt: skip
    found = [["nats per token", *(f"seed {seed}" for seed in compared.seeds), "mean"]]
    for words, values in measures.items():
        for arm, name in arms.items():
            found.append([f"{words}, {name}", *(f"{value:.3f}" for value in values[arm]), f"{fmean(values[arm]):.3f}"])
        differences = [two - one for one, two in zip(*values.values(), strict=True)]
        blocks = Blocks.of(values)
        found.append(["V1 minus softmax", *(f"{value:+.3f}" for value in differences),
                      _difference(blocks, "differential", "softmax", "95 %: ")])  # fmt: skip
    return found


CONTROLS = {"softmax-norm": "softmax with a head norm", "softmax-6e-3": "softmax at twice the learning rate"}


def controls() -> list[list[str]]:
    """Held-out loss of further softmax models of the same seeds and batches, and how they and V1 differ."""
    losses = pair_losses()
    blocks, seeds = Blocks.of(losses), Record.load(RECORDS / "pairs/compare.json").seeds
    found = [["held-out loss, nats per token", *(f"seed {seed}" for seed in seeds), "mean",
              "minus softmax (95 %)", "V1 minus it (95 %)"]]  # fmt: skip
    for arm, name in CONTROLS.items():
        cells = [_difference(blocks, *pair) for pair in ((arm, "softmax"), ("differential", arm))]
        values = losses[arm]
        found.append([name, *(f"{value:.3f}" for value in values), f"{fmean(values):.3f}", *cells])
    return found


def pair_losses() -> dict[str, list[float]]:
    """Held-out loss by seed of all models of 34M parameters, which share seeds and batches."""
    return {
        arm: values["values"]
        for name in ("compare", "norm-and-rate")
        for entry in Record.load(RECORDS / f"pairs/{name}.json").values["comparison"]
        if entry["metric"] == "held-out loss"
        for arm, values in entry["arms"].items()
    }


def _difference(blocks: Blocks[str] | None, arm: str, other: str, words: str = "") -> str:
    found = None if blocks is None else blocks.difference(arm, other)
    assert found is not None, "every arm was measured with every seed"
    low, high = found.interval()
    return f"{found.estimate:+.3f} ({words}{low:+.3f} to {high:+.3f})"


KINDS = {
    "attention": ("cudnn", "flash", "keys_kernel", "queries_kernel", "forward_kernel", "deltas_kernel"),
    "matrix products": ("nvjet", "cublas", "cutlass"),
    "norms": ("layer_norm", "GammaBeta", "norm_kernel"),
    "copies and casts": ("copy_kernel", "CatArray"),
    "loss and optimizer": ("SoftMax", "multi_tensor"),
}
"""Kinds of kernels by parts of their names."""
