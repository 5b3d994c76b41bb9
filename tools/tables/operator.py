"""Tables of the operator's benchmark for docs/performance.md and README.md."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any

from antiphase.base.records import Record
from antiphase.lab.pages.benchmarks import fastest_baseline, kind_of, ratio_text

ROOT = Path(__file__).resolve().parents[2]
LENGTHS = (1024, 4096, 16384)
CACHE_LENGTHS = (256, *LENGTHS)
SHORT = {"float32": "fp32", "bfloat16": "bf16"}
BOTH = "forward + backward"
FP32_TARGETS = {"forward": "0.75 / 0.85 / 1.00", BOTH: "0.65 / 0.80 / 1.00"}
RATIO_HEAD = "time ratio, below 1 is faster; quartiles in brackets"


PROCESSORS = {
    "AMD EPYC, AVX-512 BF16, before": "benchmark-attention",
    "AMD EPYC, AVX2, before": "processors/avx2-attention-before",
    "AMD EPYC, AVX2": "processors/avx2-attention",
}
"""Records of the operator by processor; before: the broadcasts of the kernels were additions."""
METERS = {"AMD EPYC, AVX2": "processors/avx2-kernels"}
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


def operator(rows: Iterable[tuple[str, str, str, str, str, str]], *, targets: bool) -> list[list[str]]:
    """Table rows from (label, task, dtype, subject, baseline, target) over all lengths."""
    head = [RATIO_HEAD, *(f"N = {length:,}" for length in LENGTHS), *(["target"] if targets else [])]
    found = [head]
    for words, task, dtype, subject, baseline, target in rows:
        cells = [ratio(task, dtype, length, subject, baseline) for length in LENGTHS]
        found.append([f"{words}, {task}, {SHORT[dtype]}", *cells, *([target] if targets else [])])
    return found


def whole() -> list[list[str]]:
    """All rows at the default width, with targets."""
    dtypes = tuple(SHORT)
    one_call = "V2 / one ordinary call and a subtraction"
    rows = [
        ("V1 / softmax", task, dtype, "V1", "softmax",
         FP32_TARGETS[task] if dtype == "float32" else "0.75" if task == BOTH else "")
        for task in ("forward", BOTH) for dtype in dtypes
    ]  # fmt: skip
    rows += [("V1 / softmax on the same kernel", task, dtype, "V1", "native softmax",
              "1.10 at 4,096" * ((task, dtype) == (BOTH, "float32")))
             for task in ("forward", BOTH) for dtype in dtypes]  # fmt: skip
    rows += [("V1 / V1 blockwise", task, "float32", "V1", "V1 blockwise", "") for task in ("forward", BOTH)]
    rows += [("V1 / DiffLlama's scheme", BOTH, dtype, "V1", "DiffLlama", "") for dtype in dtypes]
    rows += [(one_call, task, dtype, "V2", "one call for V2", "0.60 / 0.70 / 0.90" * (dtype == "float32"))
             for task in ("forward", BOTH) for dtype in dtypes]  # fmt: skip
    return operator(rows, targets=True)


def short() -> list[list[str]]:
    """The rows of the README."""
    return operator(
        [
            ("V1 / softmax", "forward", "float32", "V1", "softmax", ""),
            ("V1 / softmax", BOTH, "float32", "V1", "softmax", ""),
            ("V1 / softmax on the same kernel", BOTH, "float32", "V1", "native softmax", ""),
            ("V1 / softmax", BOTH, "bfloat16", "V1", "softmax", ""),
            ("V1 / DiffLlama's scheme", BOTH, "float32", "V1", "DiffLlama", ""),
            ("V1 / DiffLlama's scheme", BOTH, "bfloat16", "V1", "DiffLlama", ""),
            ("V1 / softmax", "decode", "float32", "V1", "softmax", ""),
            ("V1 / softmax", "decode", "bfloat16", "V1", "softmax", ""),
        ],
        targets=False,
    )


def by_processor() -> list[list[str]]:
    """V1 against softmax on PyTorch's attention, a column a processor."""
    rows = [(task, dtype, length) for task in ("forward", BOTH) for dtype in SHORT for length in LENGTHS[:2]]
    rows += [("decode", dtype, length) for dtype in SHORT for length in CACHE_LENGTHS[:3]]
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
                cells.append(", ".join(f"{100 * row['share']:.0f} %" for row in own))
        found.append([f"{what}, {SHORT[dtype]}", *cells])
    return found


def further_calls() -> list[list[str]]:
    """Comparison with four and two ordinary calls."""
    found = [["V1 against", "task", "N = 1,024", "N = 4,096"]]
    for baseline in ("four calls", "two calls"):
        for task in ("forward", BOTH):
            cells = [ratio(task, "float32", length, "V1", baseline) for length in LENGTHS[:2]]
            found.append([baseline, f"{task}, fp32", *cells])
    return found


def widths() -> list[list[str]]:
    """Other widths of a map, N = 4,096, fp32."""
    found = [["width of a map", "V1 / softmax, forward", BOTH]]
    for width in (32, 64, 128):
        cells = [ratio(task, "float32", 4096, "V1", "softmax", width) for task in ("forward", BOTH)]
        found.append([str(width), *cells])
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


def decoding() -> list[list[str]]:
    """One query over a cache: compared with PyTorch's call, the fastest alternative, and the same kernel."""
    found = [[RATIO_HEAD, *(f"{length:,} keys" for length in CACHE_LENGTHS), "target"]]
    for words, subject, baseline in (
        ("V1 / PyTorch's call", "V1", "softmax"),
        ("V1 / the fastest alternative", "V1", None),
        ("V1 / softmax on the same kernel", "V1", "native softmax"),
        ("V2 / one call of PyTorch and a subtraction", "V2", "one call for V2"),
    ):
        for dtype, short_name in SHORT.items():
            cells = [
                ratio("decode", dtype, length, subject, "softmax") if baseline is None
                else one_ratio("decode", dtype, length, subject, baseline)
                for length in CACHE_LENGTHS
            ]  # fmt: skip
            target = "1.00" * (baseline == "softmax" and dtype == "float32")
            found.append([f"{words}, {short_name}", *cells, target])
    return found


def one_ratio(task: str, dtype: str, length: int, subject: str, baseline: str) -> str:
    """One cell relative to one baseline, by its full name."""
    wanted = {"task": task, "dtype": dtype, "length": length, "subject": subject, "baseline": baseline, "width": 64}
    (row,) = (row for row in values()["rows"] if wanted.items() <= row.items())
    return ratio_text(row)


def roofline() -> list[list[str]]:
    """Operations per byte by the formulas, and the share of a large matrix product's rate that was reached; fp32."""
    found = [["fp32", *(f"N = {length:,}" for length in LENGTHS)]]
    rows = values()["rows"]
    for task in ("forward", BOTH, "decode"):
        by_length = []
        for length in LENGTHS:
            wanted = {
                "task": task,
                "dtype": "float32",
                "length": length,
                "subject": "V1",
                "baseline": "softmax",
                "width": 64,
            }
            (row,) = (row for row in rows if wanted.items() <= row.items())
            by_length.append(row)
        found.append([f"operations per byte, {task}", *(f"{row['flops'] / row['bytes']:,.1f}" for row in by_length)])
        for name, key in (("V1", "share_of_product_rate"), ("softmax", "baseline_share_of_product_rate")):
            found.append(
                [f"share of the matrix-product rate, {name}, {task}", *(f"{100 * row[key]:.0f} %" for row in by_length)]
            )
    return found


def losses() -> list[list[str]]:
    """Times of the native loss, divided by PyTorch's, by size."""
    rows = Record.load(ROOT / "records/benchmark-losses.json").values["rows"]
    sizes = list(dict.fromkeys((row["tokens"], row["vocabulary"]) for row in rows))
    found: dict[str, dict[tuple[int, int], str]] = {}
    for row in rows:
        what = f"native / {row['baseline']}, {row['task']}, {SHORT[row['dtype']]}"
        found.setdefault(what, {})[row["tokens"], row["vocabulary"]] = ratio_text(row)
    return [
        [RATIO_HEAD, *(f"{tokens:,} tokens, vocabulary {vocabulary:,}" for tokens, vocabulary in sizes)],
        *([what, *(cells[size] for size in sizes)] for what, cells in sorted(found.items())),
    ]
