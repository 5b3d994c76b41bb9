"""Tables of retrieval, in an evaluation or a comparison of arms: needles by depth, and where attention went."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from antiphase.evaluations.retrieval_results import Accuracy, CellScore, Knockout, MapAllocation, Place, Size
from antiphase.report.tables import Column, Table, columns_of, depth_text, format_value, present, readable, table_of

SPAN_ORDER = ("answer", "other_needles", "filler", "question", "instruction", "first_token")


@dataclass(frozen=True)
class Retrieval:
    """What a record says of retrieval."""

    arms: Sequence[str]
    """In the order of display, which also fixes their colours."""
    summary: Sequence[Accuracy] = ()
    cells: Sequence[CellScore] = ()
    allocation: Sequence[MapAllocation] = ()
    is_text: bool = False
    """Whether the needles are in plain text, where all answers count, not the first alone."""


GridPoint = tuple[int, int, int]
"""Needles, queries and tokens of a cell in the grid of retrieval."""


def grid_point(row: Size) -> GridPoint:
    """Where in the grid a row stands; 0 queries where a record does not say."""
    return row.needles, row.queries, row.length


def grid_points(rows: Iterable[Size]) -> list[GridPoint]:
    """The points that the grid holds."""
    return sorted({grid_point(row) for row in rows})


def point_words(point: GridPoint) -> str:
    """``8 needles, 12 questions, 256 tokens``."""
    needles, queries, length = point
    counted = [(needles, "needle"), *([(queries, "question")] if queries else []), (length, "token")]
    return ", ".join(f"{count} {noun}{'s' * (count != 1)}" for count, noun in counted)


def state(row: Place | MapAllocation) -> str:
    """``trained`` or ``untrained``."""
    return "trained" if row.trained else "untrained"


def needle_summary(found: Retrieval) -> Table | None:
    """Accuracy with its interval for each arm and place in the grid."""
    rows = [
        [row.arm, state(row), row.needles, row.queries or None, row.length, depth_text(row.depth), row.accuracy,
         *row.interval, row.interval_is, row.guess_rate, row.samples]
        for row in found.summary
    ]  # fmt: skip
    columns = columns_of(
        *("Arm", "Model", "Needles|integer", "Questions|integer", "Tokens|integer", "Depth"),
        *("First-query accuracy|percent", "From|percent", "To|percent", "Interval", "Guess rate|percent"),
        "Samples|integer",
    )
    note = (
        "Median over seeds with their range, or for one model its Wilson 95 % interval; samples are of one model. "
        "Compare only 'anywhere' with the guess rate: at depth 0 or 1, naming the first or last number is always right."
    )
    return table_of("Needle accuracy by depth", columns, rows, note)


def needle_cells(found: Retrieval) -> Table | None:
    """The same for each seed, with the accuracy of every place in the row of questions."""
    rows = [
        [cell.arm, cell.seed, state(cell), cell.needles, cell.queries or None, cell.length, depth_text(cell.depth),
         cell.correct, cell.samples, cell.correct / cell.samples,
         ", ".join(format_value(share, "percent") for share in cell.by_place)]
        for cell in found.cells
    ]  # fmt: skip
    columns = columns_of(
        *("Arm", "Seed|integer", "Model", "Needles|integer", "Questions|integer", "Tokens|integer", "Depth"),
        *("Right|integer", "Samples|integer", "Accuracy|percent", "Accuracy by place of the question"),
    )
    return table_of("Needle accuracy by seed", columns, rows)


def spans_of(rows: Iterable[MapAllocation]) -> list[str]:
    """Names of the spans: the answer and the noise first, unknown ones last."""
    found = dict.fromkeys(span for row in rows for span in row.spans)
    known = [span for span in SPAN_ORDER if span in found]
    return known + [span for span in found if span not in SPAN_ORDER]


def allocation(found: Retrieval, *, by_layer: bool = False) -> Table | None:
    """Share of Σ|A|, signed sum and contribution of each span: mean over layers and seeds, or each layer and seed."""
    chosen = [row for row in found.allocation if row.depth is None and (by_layer or row.layer == "all")]
    spans = spans_of(chosen)
    groups: dict[tuple[Any, ...], list[MapAllocation]] = {}
    for row in chosen:
        groups.setdefault((row.arm, state(row), row.layer, row.map, row.seed if by_layer else None), []).append(row)
    rows = []
    measures = {
        "share": ("share", "percent"), "signed": ("signed", "signed"), "contribution": ("contribution", "percent"),
    }  # fmt: skip
    for (arm, model, layer, name, seed), members in groups.items():
        for measure, (title, style) in measures.items():
            means = [span_mean(members, span, measure) for span in spans]
            if measure == "contribution" and not present(means):  # of a map whose weights multiply no values
                continue
            cells = [format_value(mean, style) for mean in means]
            ratios = present(getattr(row.answer_to_noise, measure, None) for row in members)
            ratio = format_value(statistics.fmean(ratios)) if ratios else None
            place = [layer, name, seed] if by_layer else [name, len({row.seed for row in members})]
            rows.append([arm, model, *place, title, *cells, ratio])
    columns = columns_of("Arm", "Model", *(("Layer", "Map", "Seed") if by_layer else ("Map", "Seeds")), "Measure")
    columns += [Column(readable(span).capitalize(), "number") for span in spans]
    columns.append(Column("Answer ÷ noise", "number"))
    title = "Attention by layer, map and seed" if by_layer else "Attention by span, mean over layers and seeds"
    note = (
        "Seen from the last prompt position; share is of Σ|A|, signed is the sum of the weights, contribution the part "
        "of the layer's output along the whole of it. Noise is the other needles and filler."
    )
    return table_of(title, columns, rows, note)


def knockouts(found: Retrieval) -> Table | None:
    """The answer's log-probability without the answer, and without as much filler: in all layers, and in each alone."""
    groups: dict[tuple[Any, ...], list[dict[str, Knockout | None]]] = {}
    for row in sorted(found.allocation, key=lambda row: row.depth is not None):
        if row.knockout and (row.depth is None or row.layer == "all"):
            groups.setdefault((row.arm, state(row), depth_text(row.depth), row.layer), []).append(row.knockout)
    if not groups:
        return None
    cells = [
        [*key, len(members), *(_change([member[what] for member in members]) for what in ("answer", "filler"))]
        for key, members in groups.items()
    ]
    columns = columns_of(
        *("Model", "", "Depth", "Layer", "Seeds|integer", "Without the answer, nats", "Without filler, nats")
    )
    note = (
        "How the log-probability of the right answer changes when its needle, or as many random tokens of filler, are "
        "hidden from the tokens that predict it: in all layers at once, or in one. In brackets: 95 % over sequences of "
        "one seed, the range of several."
    )
    return Table(title="The answer knocked out", columns=columns, rows=cells, note=note)


def _change(found: Sequence[Knockout | None]) -> str | None:
    """Mean over seeds; None where one of them lacks the figure."""
    known = [one for one in found if one is not None]
    if len(known) < len(found):
        return None
    changes = [one.change for one in known]
    bounds = [min(changes), max(changes)] if len(changes) > 1 else known[0].interval
    text = f"{statistics.fmean(changes):+.3f}"
    return text if bounds is None else f"{text} [{bounds[0]:+.3f} to {bounds[1]:+.3f}]"


def span_mean(rows: Iterable[MapAllocation], span: str, measure: str) -> float | None:
    """Mean over rows of a span's ``share``, ``signed`` sum, ``contribution`` or change by ``knockout``."""
    if measure == "knockout":
        values = present(getattr((row.knockout or {}).get(span), "change", None) for row in rows)
    else:
        values = present(getattr(row.spans.get(span), measure, None) for row in rows)
    return statistics.fmean(values) if values else None
