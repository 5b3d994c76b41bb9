"""Records of ``antiphase benchmark`` → tables, figure and words."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import matplotlib
from matplotlib.figure import Figure

from antiphase.base.records import Record
from antiphase.lab.pages.plots import COLOURS, STYLE, legend_below
from antiphase.lab.pages.presentation import Drawing, Presentation
from antiphase.lab.pages.tables import Column, Row, Table, columns_of, table_of

ORDINARY = ("softmax", "flash", "antiphase softmax, SDPA", "antiphase softmax", "plain")
"""What the others are measured against: softmax attention or its model, or a model without calibration."""
PAPER_THROUGHPUT = (
    ("forward + backward", "3B", 2048, 7247, 6635), ("forward + backward", "3B", 4096, 7491, 6718),
    ("forward + backward", "13B", 2048, 998, 942), ("forward", "3B", 2048, 51228, 46811),
    ("forward", "3B", 4096, 48762, 44521), ("forward", "13B", 2048, 14346, 13653),
)  # fmt: skip
"""What, parameters, tokens, and the tokens a second of softmax and differential attention (2410.05258, table 7)."""
SHORT_TYPES = {"float32": "fp32", "bfloat16": "bf16"}


def ratios(record: Record) -> Table | None:
    """One row for what was timed, one column for each pair: the median paired ratio.

    Of several implementations of one baseline, the fastest counts.
    """
    pairs = list(dict.fromkeys(_pair(row) for row in _rows(record)))
    groups: dict[str, dict[str, list[Row]]] = {}
    for row in _rows(record):
        groups.setdefault(_what(record, row), {}).setdefault(_pair(row), []).append(row)
    if not groups:
        return None
    cells = {
        what: {pair: fastest_baseline(rows)["ratio"] for pair, rows in found.items()} for what, found in groups.items()
    }
    lacking = sorted({row["scheme"] for row in record.values.get("failed") or []})
    several = any(len(rows) > 1 for found in groups.values() for rows in found.values())
    return Table(
        title="Time ratio",
        columns=[Column("What"), *(Column(pair) for pair in pairs)],
        rows=[[what, *(_two_digits(found.get(pair)) for pair in pairs)] for what, found in cells.items()],
        note="Medians over paired rounds; below 1 the first of the two is faster."
        + " If a baseline has several implementations, the fastest one counts." * several
        + f" Not available on this device in all cases: {', '.join(lacking)}." * bool(lacking),
    )


def fastest_baseline(rows: Sequence[Row]) -> Row:
    """Among comparisons of one subject with several implementations of the same, that with the fastest."""
    return min(rows, key=lambda row: row["baseline_seconds"])


def kind_of(name: str) -> str:
    """What an implementation computes: ``softmax`` for ``softmax (eager)``."""
    return name.split(" (")[0]


def timing(record: Record) -> Table | None:
    """Each comparison: what was timed, the paired ratio, and what the formulas ask for."""
    rows = [
        [
            _what(record, row), row["subject"], row["baseline"], ratio_text(row), row.get("flops_ratio"),
            row["flops"] / row["bytes"] if "bytes" in row else None, row.get("share_of_product_rate"), row["rounds"],
        ]
        for row in _rows(record)
    ]  # fmt: skip
    columns = [
        Column("What"), Column("Timed"), Column("Against"), Column("Time ratio"), Column("Operations ratio", "number"),
        Column("Operations a byte", "number"), Column("Share of product rate", "percent"), Column("Rounds", "integer"),
    ]  # fmt: skip
    note = (
        "Time ratio: median over paired rounds, quartiles in brackets; below 1 the one timed is faster. Operations "
        "ratio and operations a byte: what the formulas ask for, each tensor read or written once. Share of product "
        "rate: of what a large matrix product reaches here."
    )
    if not rows:
        return None
    if all(row[4] is None for row in rows):
        note = note.split(" Op")[0]
    return Table(title="Time in full", columns=columns, rows=rows, note=note).without_empty_columns()


def throughput(record: Record) -> Table | None:
    """Tokens per second of whole models, beside the paper's."""
    if record.kind != "benchmark-model":
        return None
    seconds: dict[tuple[str, int], dict[str, float]] = {}
    quotients: dict[tuple[str, int], float] = {}
    for row in _rows(record):
        if (row["subject"], row["baseline"]) == ("antiphase differential", "antiphase softmax"):
            quotients[row["task"], row["length"]] = 1 / row["ratio"]
        times = seconds.setdefault((row["task"], row["length"]), {})
        times |= {row["subject"]: row["subject_seconds"], row["baseline"]: row["baseline_seconds"]}
    parameters = record.values.get("parameters") or {}
    rows: list[list[Any]] = []
    for (task, length), times in seconds.items():
        tokens = {"training step": record.config.get("tokens"), "prefill": length}.get(task)
        found = [times.get(f"antiphase {kind}") for kind in ("softmax", "differential", "differential_v2")]
        if tokens is None or (task, length) not in quotients:
            continue
        size = f"{parameters['antiphase softmax'] / 1e6:.1f}M" if "antiphase softmax" in parameters else None
        speeds = [None if time is None else tokens / time for time in found]
        rows.append([task, size, length, *speeds, quotients[task, length]])
    if not rows:
        return None
    rows += [
        [f"the paper, {what}", size, length, softmax, differential, None, differential / softmax]
        for what, size, length, softmax, differential in PAPER_THROUGHPUT
    ]
    columns = [
        Column("What"), Column("Parameters"), Column("Sequence", "integer"), Column("Softmax", "integer"),
        Column("Differential", "integer"), Column("V2", "integer"), Column("Differential ÷ softmax", "percent"),
    ]  # fmt: skip
    note = (
        "Tokens a second, from median times of models that took turns; the quotient is the median of paired rounds. A "
        "training step is forward, backward and AdamW. The paper's are table 7, on its GPUs. V2 has fewer parameters."
    )
    return Table(title="Throughput", columns=columns, rows=rows, note=note)


def kernels(record: Record) -> Table | None:
    """Each inner loop and whole call: its rate, and its share of the machine's own."""
    rows = [
        [
            row["what"], SHORT_TYPES[row["dtype"]], row["threads"], f"{row['rate']:.3g} {row['unit']}",
            None if row["machine"] is None else f"{row['machine']:.3g}", row["share"], "low" if row["is_low"] else None,
        ]
        for row in record.values["rows"]
    ]  # fmt: skip
    columns = columns_of("What", "Type", "Threads|integer", "Rate", "This machine", "Share|percent", "")
    note = (
        f"Native kernels: {record.values['kernels']}, on {record.environment['processor']}. This machine: a large "
        "matrix product by PyTorch, in the same type, or in fp32 if the processor has no products of bf16; for "
        "decoding, a sum over memory. Inner loops run on data in the first cache. Whole calls: 8 differential heads "
        "of width 64, 4,096 tokens; decoding with 16,384 keys."
    )
    return table_of("Speed of the kernels", columns, rows, note)


def conditions(record: Record) -> Table | None:
    """Some comparisons with one thread, with all, and beside a busy process."""
    rows = record.values.get("conditions") or []
    whats = list(dict.fromkeys(f"{_what(record, row)}: {_pair(row)}" for row in rows))
    names = list(dict.fromkeys(_condition(row) for row in rows))
    cells = {(f"{_what(record, row)}: {_pair(row)}", _condition(row)): ratio_text(row) for row in rows}
    if not rows:
        return None
    return Table(
        title="One thread, all, and beside other work",
        columns=[Column("What"), *(Column(name) for name in names)],
        rows=[[what, *(cells.get((what, name)) for name in names)] for what in whats],
        note="Medians over paired rounds, quartiles in brackets. The busy process computes on one core all the while.",
    )


def _condition(row: Row) -> str:
    threads = f"{row['threads']} thread{'s' * (row['threads'] > 1)}"
    return f"{threads} beside a busy process" if row["beside_busy_process"] else threads


def search(record: Record) -> Table | None:
    """What a search of heads costs, of as many plain evaluations."""
    rows = [[row["task"], f"{row['subject']} / {row['baseline']}", ratio_text(row)]
            for row in record.values.get("search") or []]  # fmt: skip
    if not rows:
        return None
    columns = [Column("What"), Column("Pair"), Column("Time ratio")]
    return Table(title="A search of heads", columns=columns, rows=rows, note="Below 1 the first of the two is faster.")


def memory(record: Record) -> Table | None:
    """Peak memory beyond the inputs, and its ratio to the baseline's."""
    found = record.values.get("memory") or []
    baseline = {_what(record, row): row["bytes"] for row in found if row["scheme"] in ORDINARY}
    rows = [
        [
            _what(record, row),
            row["scheme"],
            row["bytes"] / 2**20,
            row["bytes"] / baseline[_what(record, row)] if baseline.get(_what(record, row)) else None,
        ]
        for row in found
    ]
    columns = columns_of("For", "Scheme", "Peak, MiB|number", "Against the baseline|number")
    note = "What one call adds, output and gradients included: to a process of its own, or to a GPU's memory."
    return table_of("Peak memory", columns, rows, note)


def _pair(row: Row) -> str:
    return f"{row['subject']} / {kind_of(row['baseline'])}"


def _two_digits(ratio: float | None) -> str | None:
    """At least two digits that count: ``1.20``, ``0.95``, ``0.093``, ``0.0056``."""
    if ratio is None:
        return None
    return f"{ratio:.2f}" if ratio >= 0.1 else f"{ratio:.3f}" if ratio >= 0.01 else f"{ratio:.2g}"


def ratio_text(row: Row) -> str:
    """``0.95 [0.93–0.98]``."""
    ratio, low, high = map(_two_digits, (row["ratio"], *row["quartiles"]))
    return f"{ratio} [{low}–{high}]"


def relative_seconds(record: Record) -> dict[tuple[str, str], dict[int, dict[str, float]]]:
    """Median seconds by task and dtype, length, and what is computed, the fastest implementation of it; only the
    usual width and batch.
    """
    panels: dict[tuple[str, str], dict[int, dict[str, float]]] = {}
    for row in _rows(record):
        if row["width"] == record.config["width"] and _has_usual_batch(record, row):
            times = panels.setdefault((row["task"], row["dtype"]), {}).setdefault(row["length"], {})
            times.setdefault(row["subject"], row["subject_seconds"])
            kind = kind_of(row["baseline"])
            times[kind] = min(times.get(kind, row["baseline_seconds"]), row["baseline_seconds"])
    return panels


def _rows(record: Record) -> list[dict[str, Any]]:
    return list(record.values.get("rows") or []) if record.kind.startswith("benchmark-") else []


def _has_usual_batch(record: Record, row: Row) -> bool:
    """Whether a task was not timed with more sequences at a time too."""
    alike = [one for one in _rows(record) if all(one[k] == row[k] for k in ("task", "length", "width"))]
    return bool(row.get("batch") == max((one["batch"] for one in alike if "batch" in one), default=None))


def _what(record: Record, row: Row) -> str:
    """``forward, fp32, N = 4,096``, with width and batch where they are not the record's usual ones."""
    parts = [row["task"], SHORT_TYPES.get(row["dtype"], row["dtype"]), f"N = {row['length']:,}"]
    parts += [f"d = {row['width']}"] * (row["width"] != record.config["width"])
    if not _has_usual_batch(record, row):
        parts.append(f"B = {row['batch']}")
    return ", ".join(parts)


TALLEST_BAR = 2.6
"""Largest time relative to the baseline; a longer bar is cut and its number stands above it."""
MOST_LEVEL_NUMBERS = 18
"""Most bars in a panel; above more than these the numbers are written upright."""


@matplotlib.rc_context(STYLE)
def relative_times(record: Record) -> Figure | None:
    """Bars: time of each candidate, divided by that of the baseline, by length; a panel for each task and dtype."""
    panels = relative_seconds(record)
    if not panels:
        return None
    tasks, types = (list(dict.fromkeys(key[index] for key in panels)) for index in (0, 1))
    names = list(dict.fromkeys(name for group in panels.values() for times in group.values() for name in times))
    ordinary = next((name for name in names if name in ORDINARY), None)
    if ordinary is None:
        return None
    drawn = [name for name in names if name != ordinary]
    figure = Figure(figsize=(max(8.0, 4.6 * len(tasks) + 0.6), 3.1 * len(types) + 0.9), layout="constrained")
    grid = figure.subplots(len(types), len(tasks), squeeze=False, sharey=True)
    for (row, dtype), (column, task) in ((r, c) for r in enumerate(types) for c in enumerate(tasks)):
        axes = grid[row][column]
        lengths = {length: times for length, times in panels.get((task, dtype), {}).items() if ordinary in times}
        for place, length in enumerate(sorted(lengths)):
            times = lengths[length]
            here = [name for name in drawn if name in times]
            width = 0.8 / max(1, len(here))
            for index, name in enumerate(here):
                ratio = times[name] / times[ordinary]
                x = place + (index - (len(here) - 1) / 2) * width
                axes.bar(
                    x,
                    min(ratio, TALLEST_BAR),
                    0.92 * width,
                    color=COLOURS[drawn.index(name) % len(COLOURS)],
                    hatch="///" if drawn.index(name) >= len(COLOURS) else None,
                    edgecolor="white",
                    linewidth=0,
                    label=name,
                )
                axes.annotate(
                    f"{ratio:.2f}" if ratio < 10 else f"{ratio:.0f}", (x, min(ratio, TALLEST_BAR)), xytext=(0, 2),
                    textcoords="offset points", ha="center", fontsize=8.5,
                    rotation=90 if len(drawn) * len(lengths) > MOST_LEVEL_NUMBERS else 0,
                )  # fmt: skip
            axes.set_xticks(range(len(lengths)), [f"{found:,}" for found in sorted(lengths)])
        axes.axhline(1.0, color="#333333", linewidth=1.4, label=ordinary)
        axes.set(title=f"{task}, {SHORT_TYPES.get(dtype, dtype)}", ylim=(0, TALLEST_BAR * 1.18))
        axes.grid(visible=False, axis="x")
        if row == len(types) - 1:
            axes.set_xlabel("cached tokens" if task == "decode" else "tokens")
        if column == 0:
            axes.set_ylabel("time, baseline = 1")
    legend_below(figure, 3)
    return figure


def _alternative(record: Record) -> str:
    ratios = [row["ratio"] for row in record.values["rows"]]
    span = f", from {_two_digits(min(ratios))} to {_two_digits(max(ratios))}" if ratios else ""
    return f"Bars: times relative to the baseline by number of tokens{span}; the table beside it has all numbers."


TIMES = {
    "benchmark": Drawing(
        draw=relative_times,
        title="Time relative to the baseline",
        caption="Median time of each candidate, divided by that of the baseline of equal size; below the line is "
        "faster. Bars that end at the top are longer, their number stands above them.",
        alternative=_alternative,
    )
}


def _details(record: Record) -> list[Table | None]:
    return [timing(record)]


ATTENTION = Presentation(
    introduction="Differential attention compared with softmax attention of the same size and with other "
    "implementations of the same difference. The candidates took turns; nothing was timed whose error exceeds what "
    "plain attention of the same precision allows.",
    tables=lambda record: [ratios(record), conditions(record), memory(record)],
    figures=TIMES,
    details=_details,
)
MODEL = Presentation(
    introduction="Whole models of equal size: a training step (forward, backward, AdamW), the prefill of a prompt, and "
    "the tokens generated after it. The candidates took turns.",
    tables=lambda record: [ratios(record), throughput(record)],
    figures=TIMES,
    details=_details,
)
CALIBRATION = Presentation(
    introduction="Calibrated attention, every head of it, beside the attention that it replaces, and what probing a "
    "text holds beside a forward pass. The candidates took turns.",
    tables=lambda record: [ratios(record), search(record), memory(record)],
    figures=TIMES,
    details=_details,
)
KERNELS = Presentation(
    introduction="The native kernels' inner loops and whole calls, as shares of what this machine reaches in a large "
    "matrix product, or in reading memory. A low share on a processor is worth a report.",
    tables=lambda record: [kernels(record)],
)
EVALUATION = Presentation(
    introduction="Loops of evaluations beside the plain way to the same numbers. The candidates took turns.",
    tables=lambda record: [timing(record)],
)
