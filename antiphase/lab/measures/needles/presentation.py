"""Records of ``antiphase evaluate needles`` as tables, with the paper's values."""

from __future__ import annotations

from typing import Any

from antiphase.base.records import Record
from antiphase.lab.measures.needles import Needles, Trend
from antiphase.lab.measures.retrieval_presentation import Retrieval, crossings_table, needles_drawing, state
from antiphase.lab.measures.retrieval_results import Accuracy
from antiphase.lab.pages.presentation import Presentation
from antiphase.lab.pages.tables import Column, Table, depth_text, format_value, table_of

PAPER: dict[tuple[int, int], tuple[float, float]] = {
    (1, 1): (1.00, 1.00), (2, 2): (0.85, 0.92), (4, 2): (0.62, 0.84), (6, 2): (0.55, 0.85),
}  # fmt: skip
"""Accuracies of both kinds by needles and questions; 3B parameters, 4K tokens, over depths (2410.05258, table 2)."""
SIZES = (Column("Needles", "integer"), Column("Questions", "integer"), Column("Tokens", "integer"))


@Needles.from_record
def accuracies(needles: Needles) -> Table | None:
    """One row per model and size, one column per depth."""
    if not needles.summary:
        return None
    rows = needles.summary
    depths = sorted({row.depth for row in rows if row.depth is not None})
    groups: dict[tuple[Any, ...], dict[float | None, Accuracy]] = {}
    for row in rows:
        key = (row.arm, state(row), row.needles, row.queries, row.length)
        groups.setdefault(key, {})[row.depth] = row
    cells = []
    for key, found in groups.items():
        shares = [found[depth].accuracy if depth in found else None for depth in depths]
        anywhere = found.get(None)
        last = [_with_interval(anywhere), anywhere.guess] if anywhere else [None, None]
        cells.append([*key, *shares, *last])
    columns = [
        Column("Model"), Column(""), *SIZES, *(Column(f"Depth {depth_text(depth)}", "percent") for depth in depths),
        Column("Anywhere [95 %]"), Column("Guess", "percent"),
    ]  # fmt: skip
    note = (
        "Compare only 'anywhere' with the guess: at depth 0 or 1, naming the first or last number is always right. "
        f"{rows[0].samples} contexts in each cell"
    )
    if needles.task == "text":
        note += "; right are outputs whose first whole numbers are those asked for, in their order"
    if any(row.needles == 1 for row in rows):
        note += "; with one needle there is no other number to guess"
    return Table(title="Accuracy by depth of the needle", columns=columns, rows=cells, note=f"{note}.")


@Needles.from_record
def differences(needles: Needles) -> Table | None:
    """Paired differences from the first model, over the fixed depths and at random depths."""
    cells: list[list[Any]] = []
    for row in needles.paired:
        if row.depth not in ("fixed", None):
            continue
        low, high = map(_points, row.interval)
        cells.append(
            [
                f"{row.arm} - {row.baseline}", row.needles, row.queries, row.length,
                "all fixed" if row.depth == "fixed" else "anywhere", row.better, row.worse, row.samples,
                _points(row.difference), f"{low} to {high}",
            ]
        )  # fmt: skip
    columns = [
        Column("Models"), *SIZES, Column("Depth"), Column("Better", "integer"), Column("Worse", "integer"),
        Column("Contexts", "integer"), Column("Points"), Column("95 %"),
    ]  # fmt: skip
    note = (
        "The same contexts for both; better and worse: contexts on which only one of the two was right. The "
        "interval is Bonett and Price's; if it includes 0, no difference is shown."
    )
    return table_of("Paired differences", columns, cells, note)


@Needles.from_record
def evenness(needles: Needles) -> Table | None:
    """Spread over depths and slope over length."""
    cells = [
        [
            row.arm, row.needles, row.queries,
            ", ".join(f"{found.length:,}: {format_value(found.accuracy, 'percent')}" for found in row.lengths),
            row.median_spread, _slope(row),
        ]
        for row in needles.trends
    ]  # fmt: skip
    columns = [
        Column("Model"), *SIZES[:2], Column("Mean over depths, by tokens"), Column("Spread over depths", "percent"),
        Column("Points per doubling of length"),
    ]  # fmt: skip
    note = "Spread: best depth minus worst, the median over lengths. Slope: least squares over all contexts, with 95 %."
    return table_of("Evenness over depth and length", columns, cells, note)


@Needles.from_record
def paper(needles: Needles) -> Table | None:
    """The paper's accuracies, for those of its numbers of needles and questions that the record has."""
    has = {(row.needles, row.queries) for row in needles.summary}
    if needles.task != "text" or not has & PAPER.keys():
        return None
    rows: list[list[Any]] = [[*sizes, *found] for sizes, found in PAPER.items()]
    columns = [*SIZES[:2], Column("Softmax", "percent"), Column("Differential", "percent")]
    note = (
        "Mean over depths, 3B parameters, 4,096 tokens (2410.05258, table 2). With 8 needles, 1 question and 65,536 "
        "tokens it reports an improvement of 76 % at depth 0.25 (figure 5)."
    )
    return Table(title="The paper", columns=columns, rows=rows, note=note)


def _with_interval(row: Accuracy) -> str:
    low, high = row.interval
    return f"{format_value(row.accuracy, 'percent')} [{100 * low:.0f}–{100 * high:.0f}]"


def _points(share: float) -> str:
    return f"{100 * share:+.1f}"


def _slope(row: Trend) -> str | None:
    if row.slope is None:
        return None
    low, high = row.slope_interval or (None, None)
    bounds = "" if low is None or high is None else f" [{_points(low)} to {_points(high)}]"
    return f"{_points(row.slope)}{bounds}"


def retrieval_of(record: Record) -> Retrieval:
    """The grid of needles; nothing of other records."""
    found = Needles.read(record) or Needles(guess_rate=0.0, cells=[], summary=[])
    arms = list(dict.fromkeys(row.arm for row in found.summary))
    return Retrieval(arms, found.summary, found.cells, crossings=found.crossings, is_text=found.task == "text")


PRESENTATION = Presentation(
    introduction="Share of hidden facts that the model found, by their depth in the context. The guess rate is what "
    "naming any value of the context would reach.",
    tables=lambda record: [
        accuracies(record),
        crossings_table(retrieval_of(record)),
        differences(record),
        evenness(record),
        paper(record),
    ],
    figures={"needles": needles_drawing(retrieval_of)},
    arms=lambda record: retrieval_of(record).arms,
)
