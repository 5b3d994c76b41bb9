"""Tables of the operator's benchmark for docs/performance.md and README.md."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

from antiphase.base.records import Record
from antiphase.lab.pages.benchmarks import fastest_baseline, kind_of, ratio_text

ROOT = Path(__file__).resolve().parents[2]
LENGTHS = (1024, 4096, 16384)
SHORT = {"float32": "fp32", "bfloat16": "bf16"}
BOTH = "forward + backward"
RATIO_HEAD = "time ratio, below 1 is faster; quartiles in brackets"


PROCESSORS = {"AMD EPYC, AVX-512 BF16": "benchmark-attention", "AMD EPYC, AVX2": "processors/avx2-attention"}
"""Records of the operator by processor."""
METERS = {"AMD EPYC, AVX-512 BF16": "processors/avx512-kernels", "AMD EPYC, AVX2": "processors/avx2-kernels"}
"""Records of the kernels alone."""


@cache
def values(name: str = "benchmark-attention") -> dict[str, Any]:
    """The values of a benchmark's record."""
    return Record.load(ROOT / f"records/{name}.json").values


def ratio(
    task: str, dtype: str, length: int, subject: str, baseline: str, width: int = 64, name: str = "benchmark-attention"
) -> str:
    """One cell of the operator's benchmark, relative to the fastest form of the baseline; a dash if missing."""
    wanted = (task, dtype, length, subject, width)
    keys = ("task", "dtype", "length", "subject", "width")
    rows = [row for row in values(name)["rows"] if kind_of(row["baseline"]) == baseline]
    found = [row for row in rows if tuple(row[k] for k in keys) == wanted]
    return ratio_text(fastest_baseline(found)) if found else "–"


def short() -> list[list[str]]:
    """Time ratios of the operator by length."""
    rows = (
        ("V1 / softmax", "forward", "float32", "V1", "softmax"),
        ("V1 / softmax", BOTH, "float32", "V1", "softmax"),
        ("V1 / softmax on the same kernel", BOTH, "float32", "V1", "native softmax"),
        ("V1 / softmax", BOTH, "bfloat16", "V1", "softmax"),
        ("V1 / DiffLlama's scheme", BOTH, "float32", "V1", "DiffLlama"),
        ("V1 / DiffLlama's scheme", BOTH, "bfloat16", "V1", "DiffLlama"),
        ("V1 / softmax", "decode", "float32", "V1", "softmax"),
        ("V1 / softmax", "decode", "bfloat16", "V1", "softmax"),
    )
    found = [[RATIO_HEAD, *(f"N = {length:,}" for length in LENGTHS)]]
    for words, task, dtype, subject, baseline in rows:
        cells = [ratio(task, dtype, length, subject, baseline) for length in LENGTHS]
        found.append([f"{words}, {task}, {SHORT[dtype]}", *cells])
    return found


def by_processor() -> list[list[str]]:
    """V1 against softmax on PyTorch's attention, a column a processor."""
    rows = [(task, dtype, length) for task in ("forward", BOTH) for dtype in SHORT for length in LENGTHS[:2]]
    rows += [("decode", dtype, length) for dtype in SHORT for length in (64, 256, *LENGTHS[:2])]
    return [["V1 / softmax", *PROCESSORS]] + [
        [
            f"{task}, {SHORT[dtype]}, {length:,}",
            *(ratio(task, dtype, length, "V1", "softmax", name=name) for name in PROCESSORS.values()),
        ]
        for task, dtype, length in rows
    ]


def shares() -> list[list[str]]:
    """The kernels' inner loops and whole calls as shares of the machine's own rate, with one thread and with all."""
    found = [["share of the machine's rate: one thread, all", *METERS]]
    of = {name: {(row["what"], row["dtype"], row["threads"]): row for row in values(name)["rows"]}
          for name in METERS.values()}  # fmt: skip
    first = next(iter(of.values()))
    for what, dtype in dict.fromkeys((what, dtype) for what, dtype, _ in first):
        cells = []
        for rows in of.values():
            own = [
                row for (a, b, _), row in sorted(rows.items(), key=lambda item: item[0][2]) if (a, b) == (what, dtype)
            ]
            if own[0]["share"] is None:
                cells.append(", ".join(f"{row['rate']:.2g} {row['unit']}" for row in own))
            else:
                cells.append(", ".join(f"{100 * row['share']:.0f} %{' (low)' if row['is_low'] else ''}" for row in own))
        found.append([f"{what}, {SHORT[dtype]}", *cells])
    return found


def steps() -> list[list[str]]:
    """What a training step of V1 consists of."""
    kinds = ("matrix products", "attention", "elementwise", "rest")
    found = [["V1, a step of 2,048 tokens", "time / softmax", "FLOP utilisation (softmax)", *kinds]]
    rows = values("training-step")["rows"]
    for row, other in zip(rows[::2], rows[1::2], strict=True):
        found.append([
            f"width {row['width']}, {SHORT[row['dtype']]}", ratio_text(row),
            f"{100 * row['utilisation']:.0f} % ({100 * other['utilisation']:.0f} %)",
            *(f"{100 * row['shares'][kind]:.0f} %" for kind in kinds),
        ])  # fmt: skip
    return found


def memory() -> list[list[str]]:
    """Peak memory of one call."""
    rows = values()["memory"]
    sizes = {(row["task"], row["length"], row["scheme"]): row["bytes"] for row in rows}
    lengths = LENGTHS[1:]
    found = [["peak memory beyond the inputs, MiB (against softmax)", *(f"N = {length:,}" for length in lengths)]]
    for task in ("forward", BOTH):
        for scheme in ("V1", "softmax", "DiffLlama", "V2"):
            mine = [sizes[task, length, scheme] for length in lengths]
            ordinary = [sizes[task, length, "softmax"] for length in lengths]
            cells = [f"{a / 2**20:.0f} ({a / b:.2f})" for a, b in zip(mine, ordinary, strict=True)]
            found.append([f"{scheme}, {task}", *cells])
    return found
