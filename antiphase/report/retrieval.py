"""Records of ``antiphase evaluate needles`` and ``allocation`` → tables, beside the paper's."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any

from antiphase.records import Record
from antiphase.report.tables import (
    Column,
    Row,
    Table,
    allocation_of,
    depth_text,
    format_value,
    grid_point,
    needles_of,
    present,
    state,
)

PAPER_NEEDLES: dict[tuple[int, int], tuple[float, float]] = {
    (1, 1): (1.00, 1.00), (2, 2): (0.85, 0.92), (4, 2): (0.62, 0.84), (6, 2): (0.55, 0.85),
}  # fmt: skip
"""Needles and questions to the accuracy of softmax and differential attention, 3B parameters, 4K tokens, mean over
depths (2410.05258, table 2)."""
PAPER_DEPTHS = (0.0, 0.25, 0.5, 0.75, 1.0)
PAPER_ALLOCATION: dict[tuple[str, str], tuple[float, ...]] = {
    ("softmax", "answer"): (0.03, 0.03, 0.03, 0.07, 0.09),
    ("softmax", "noise"): (0.51, 0.54, 0.52, 0.49, 0.49),
    ("differential", "answer"): (0.27, 0.30, 0.31, 0.32, 0.40),
    ("differential", "noise"): (0.01, 0.02, 0.02, 0.02, 0.01),
}
"""Attention on the answer and on the rest of the context by depth of the answer (2410.05258, table 3)."""
NOISE = ("other_needles", "filler")
LAST_MAPS = ("softmax", "difference")
"""What multiplies the values."""


def accuracies(record: Record) -> Table | None:
    """One row for each model and size, one column for each depth."""
    rows = needles_of(record, "summary") if record.kind == "evaluate-needles" else []
    depths = sorted({row["depth"] for row in rows if row["depth"] is not None})
    groups: dict[tuple[Any, ...], dict[float | None, Row]] = {}
    for row in rows:
        groups.setdefault((row["arm"], state(row), *grid_point(row)), {})[row["depth"]] = row
    cells = []
    for key, found in groups.items():
        anywhere = found.get(None)
        shares = [format_value(found[depth]["accuracy"], "percent") if depth in found else None for depth in depths]
        last = [_with_interval(anywhere), anywhere["guess_rate"]] if anywhere else [None, None]
        cells.append([*key, *shares, *last])
    if not cells:
        return None
    columns = [
        Column("Model"), Column(""), Column("Needles", "integer"), Column("Questions", "integer"),
        Column("Tokens", "integer"), *(Column(f"Depth {depth_text(depth)}", "percent") for depth in depths),
        Column("Anywhere [95 %]"), Column("Guess", "percent"),
    ]  # fmt: skip
    note = (
        "Compare only 'anywhere' with the guess: at depth 0 or 1, naming the first or last number is always right. "
        f"{rows[0]['samples']} contexts in each cell"
    )
    if record.values.get("task") == "text":
        note += "; right are outputs whose first whole numbers are those asked for, in their order"
    return Table(title="Accuracy by depth of the needle", columns=columns, rows=cells, note=f"{note}.")


def differences(record: Record) -> Table | None:
    """Paired differences from the first model: over the fixed depths, and with the needle anywhere."""
    rows = record.values.get("paired") or [] if record.kind == "evaluate-needles" else []
    cells = []
    for row in rows:
        if row["depth"] not in ("fixed", None):
            continue
        depth = "all fixed" if row["depth"] == "fixed" else depth_text(row["depth"])
        low, high = map(_points, row["interval"])
        counts = [row["better"], row["worse"], row["samples"]]
        pair = f"{row['arm']} - {row['baseline']}"
        cells.append([pair, *grid_point(row), depth, *counts, _points(row["difference"]), f"{low} to {high}"])
    if not cells:
        return None
    columns = [
        Column("Models"), Column("Needles", "integer"), Column("Questions", "integer"), Column("Tokens", "integer"),
        Column("Depth"), Column("Better", "integer"), Column("Worse", "integer"), Column("Contexts", "integer"),
        Column("Points"), Column("95 %"),
    ]  # fmt: skip
    note = (
        "The same contexts for both; better and worse: only the one, or only the other, was right. The interval is "
        "Bonett and Price's; one that holds 0 shows no difference."
    )
    return Table(title="Paired differences", columns=columns, rows=cells, note=note)


def evenness(record: Record) -> Table | None:
    """Spread over depths and slope over length."""
    rows = record.values.get("trends") or [] if record.kind == "evaluate-needles" else []
    cells = [
        [
            row["arm"], row["needles"], row["queries"],
            ", ".join(f"{found['length']:,}: {format_value(found['accuracy'], 'percent')}" for found in row["lengths"]),
            row["median_spread"], _slope(row),
        ]
        for row in rows
    ]  # fmt: skip
    if not cells:
        return None
    columns = [
        Column("Model"), Column("Needles", "integer"), Column("Questions", "integer"),
        Column("Mean over depths, by tokens"), Column("Spread over depths", "percent"),
        Column("Points per doubling of length"),
    ]  # fmt: skip
    note = "Spread: best depth minus worst, the median over lengths. Slope: least squares over all contexts, with 95 %."
    return Table(title="Evenness over depth and length", columns=columns, rows=cells, note=note)


def paper_needles(record: Record) -> Table | None:
    """The paper's accuracies at the numbers of needles and questions that the record has."""
    has = {(row["needles"], row["queries"]) for row in needles_of(record, "summary")}
    if record.kind != "evaluate-needles" or record.values.get("task") != "text" or not has & PAPER_NEEDLES.keys():
        return None
    rows = [[*sizes, *found] for sizes, found in PAPER_NEEDLES.items()]
    columns = [Column("Needles", "integer"), Column("Questions", "integer"), Column("Softmax", "percent"),
               Column("Differential", "percent")]  # fmt: skip
    note = (
        "Mean over depths, 3B parameters, 4,096 tokens (2410.05258, table 2). With 8 needles, 1 question and 65,536 "
        "tokens it reports an improvement of 76 % at depth 0.25 (figure 5)."
    )
    return Table(title="The paper", columns=columns, rows=rows, note=note)


def by_depth(record: Record) -> Table | None:
    """Attention on answer and noise by depth of the answer, each as share of Σ|A| and as signed sum."""
    rows = [row for row in depth_rows(record) if row["layer"] == "all" and row["map"] in LAST_MAPS]
    depths = list(dict.fromkeys(row["depth"] for row in rows))
    groups: dict[tuple[str, str], dict[float | None, Row]] = {}
    for row in rows:
        groups.setdefault((row["arm"], state(row)), {})[row["depth"]] = row
    cells: list[list[Any]] = []
    for key, found in groups.items():
        for measure, style in (("share", "percent"), ("signed", "signed"), ("contribution", "percent")):
            for name in ("answer", "noise", *(("answer ÷ noise",) if measure != "contribution" else ())):
                values = [_mass(found[depth], name, measure) if depth in found else None for depth in depths]
                if measure == "contribution" and not present(values):  # an older record
                    continue
                shown = "number" if name == "answer ÷ noise" else style
                cells.append([*key, measure, name, *(format_value(value, shown) for value in values)])
    if not cells:
        return None
    if record.values.get("task") == "text":
        for (kind, name), known in PAPER_ALLOCATION.items():
            listed = dict(zip(PAPER_DEPTHS, known, strict=True))
            shown_values = [None if depth not in listed else f"{listed[depth]:.2f}" for depth in depths]
            cells.append([f"the paper, {kind}", "trained", "", name, *shown_values])
    names = ["Anywhere" if depth is None else f"Depth {depth_text(depth)}" for depth in depths]
    columns = [
        Column("Model"),
        Column(""),
        Column("Measure"),
        Column("On"),
        *(Column(name, "number") for name in names),
    ]
    note = (
        "Mean over layers and heads of the map that multiplies the values, seen from the last token of the question; "
        "share is of Σ|A|, signed the sum of the weights, contribution the part of a layer's output along the whole of "
        "it, noise the other needles and the filler. Signed figures are small for any two maps that cancel: read the "
        "share and the untrained model beside them. The paper's (table 3, 3B parameters) are normalized scores."
    )
    return Table(title="Attention by depth of the answer", columns=columns, rows=cells, note=note)


def depth_rows(record: Record) -> list[dict[str, Any]]:
    """Rows of allocation that say at which depth the answer lay."""
    rows = record.values.get("rows") or [] if record.kind == "evaluate-allocation" else []
    return [{"arm": "model", "trained": True, **row} for row in rows if "depth" in row]


def knockouts(record: Record) -> Table | None:
    """The answer's log-probability without the answer, and without as much filler: in all layers, and in each alone."""
    every = allocation_of(record) + [
        row for row in depth_rows(record) if row["depth"] is not None and row["layer"] == "all"
    ]
    groups: dict[tuple[Any, ...], list[Row]] = {}
    for row in every:
        if row.get("knockout"):
            depth = "anywhere" if row.get("depth") is None else depth_text(row["depth"])
            groups.setdefault((row["arm"], state(row), depth, row["layer"]), []).append(row["knockout"])
    if not groups:
        return None
    rows = [
        [*key, len(members), *(_change([member[what] for member in members]) for what in ("answer", "filler"))]
        for key, members in groups.items()
    ]
    columns = [
        Column("Model"), Column(""), Column("Depth"), Column("Layer"), Column("Seeds", "integer"),
        Column("Without the answer, nats"), Column("Without filler, nats"),
    ]  # fmt: skip
    note = (
        "How the log-probability of the right answer changes when its needle, or as many random tokens of filler, are "
        "hidden from the tokens that predict it: in all layers at once, or in one. In brackets: 95 % over sequences of "
        "one seed, the range of several."
    )
    return Table(title="The answer knocked out", columns=columns, rows=rows, note=note)


def _change(found: Sequence[dict[str, Any] | None]) -> str | None:
    """Mean over seeds; None where one of them lacks the figure."""
    known = [one for one in found if one is not None]
    if len(known) < len(found):
        return None
    changes = [one["change"] for one in known]
    bounds = (min(changes), max(changes)) if len(changes) > 1 else known[0]["interval"]
    text = f"{statistics.fmean(changes):+.3f}"
    return text if bounds is None else f"{text} [{bounds[0]:+.3f} to {bounds[1]:+.3f}]"


def mass(row: Row, name: str, measure: str) -> float:
    """Signed sum, share of Σ|A| or contribution of the answer or the noise."""
    return sum(row["spans"][span][measure] for span in (NOISE if name == "noise" else (name,)))


def _mass(row: Row, name: str, measure: str) -> float | None:
    if name == "answer ÷ noise":
        return row["answer_to_noise"][measure]
    return mass(row, name, measure) if measure in row["spans"]["answer"] else None


def _with_interval(row: Row) -> str:
    low, high = row["interval"]
    return f"{format_value(row['accuracy'], 'percent')} [{100 * low:.0f}–{100 * high:.0f}]"


def _points(share: float) -> str:
    return f"{100 * share:+.1f}"


def _slope(row: Row) -> str | None:
    if row["slope"] is None:
        return None
    low, high = row["slope_interval"]
    bounds = "" if low is None or high is None else f" [{_points(low)} to {_points(high)}]"
    return f"{_points(row['slope'])}{bounds}"
