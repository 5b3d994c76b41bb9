"""Figures of retrieval that several kinds of records share: needles by depth, and where attention went."""

from __future__ import annotations

from antiphase.records import Record
from antiphase.report import plots, tables
from antiphase.report.presentation import Drawing
from antiphase.report.tables import Table


def _needle_caption(record: Record) -> str:
    if len(tables.grid_points(tables.needles_of(record, "summary"))) == 1:
        return (
            "Filled marks are trained models, hollow ones the same models before training. A mark is the median over "
            "seeds, its bar their range; with one seed the bar is the Wilson 95 % interval over samples. Compare only "
            "'anywhere' with the guess rate: at depth 0 or 1, naming the first or last number is always right."
        )
    return (
        "Per cent of first questions answered right, on one colour scale. The bottom row of each panel "
        "is the guess rate of its column; untrained models, where measured, are the lower panels."
    )


def _needle_alternative(record: Record) -> str:
    words = [
        f"{row['arm']} {tables.state(row)} {tables.format_value(row.get('accuracy'), 'percent')}"
        f" ({tables.point_words(tables.grid_point(row))})"
        for row in tables.needles_of(record, "summary")
        if row.get("depth") is None
    ]
    over_all = f" Anywhere: {'; '.join(words)}." if words else ""
    return f"First-query accuracy by depth of the asked needle.{over_all}"


def _allocation_alternative(record: Record) -> str:
    rows = plots.overall_allocation(record)
    words = []
    for arm in tables.arms_of(record):
        for model in ("trained", "untrained"):
            members = [row for row in rows if (row["arm"], tables.state(row)) == (arm, model)]
            share = tables.span_mean(members, "answer", "share")
            if share is not None:
                words.append(f"{arm} {model} {tables.format_value(share, 'percent')}")
    on_answer = f" Share on the answer: {', '.join(words)}." if words else ""
    return f"Bars for each span of the prompt, arm by arm.{on_answer}"


def needle_tables(record: Record) -> list[Table | None]:
    """The grid of needles, over seeds and for each."""
    return [tables.needle_summary(record), tables.needle_cells(record)]


def allocation_tables(record: Record) -> list[Table | None]:
    """Where attention went, in all and by layer, and what knocking a span out does."""
    return [tables.allocation(record), tables.allocation(record, by_layer=True), tables.knockouts(record)]


NEEDLES = Drawing(
    draw=plots.needle_grid,
    title="Needles by depth",
    caption=_needle_caption,
    alternative=_needle_alternative,
    behind=needle_tables,
)
ALLOCATION = Drawing(
    draw=plots.allocation_bars,
    title="Where attention went",
    caption="Mean over layers and seeds of the map that the model uses (for differential attention the difference), "
    "seen from the last prompt position; dots are seeds, hatched bars untrained models. The first panel divides by "
    "Σ|A|, so subtraction cannot flatter it; the second is the signed sum, which is small for any two maps that "
    "cancel, learned or not. Where the record has them: the part of the layers' outputs that comes from a span, and "
    "how the log-probability of the right answer changes, in nats, when the answer, or as many random tokens of "
    "filler, are hidden from the last tokens in all layers.",
    alternative=_allocation_alternative,
    behind=allocation_tables,
)
