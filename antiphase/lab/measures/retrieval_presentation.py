"""Tables and figures of retrieval, in an evaluation or a comparison of arms: needles by depth, where attention went."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import matplotlib
import numpy
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Normalize
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from antiphase.base.records import Record
from antiphase.lab.measures.retrieval_results import Accuracy, CellScore, Crossing, Knockout, MapAllocation, Place, Size
from antiphase.lab.pages.plots import MARKERS, PERCENT, STYLE, arm_colour, legend_below, mark_levels, visible
from antiphase.lab.pages.presentation import Drawing
from antiphase.lab.pages.tables import Column, Table, columns_of, depth_text, format_value, present, readable, table_of

SPAN_ORDER = ("answer", "other_needles", "filler", "question", "instruction", "first_token")


@dataclass(frozen=True)
class Retrieval:
    """What a record says of retrieval."""

    arms: Sequence[str]
    """In the order of display, which also fixes their colours."""
    summary: Sequence[Accuracy] = ()
    cells: Sequence[CellScore] = ()
    allocation: Sequence[MapAllocation] = ()
    crossings: Sequence[Crossing] = ()
    is_text: bool = False
    """Whether the needles are in plain text, where all answers count, not the first alone."""


GridPoint = tuple[int, int, int]
"""Needles, queries and tokens of a cell in the grid of retrieval."""


def grid_point(row: Size) -> GridPoint:
    """Where in the grid a row stands."""
    return row.needles, row.queries, row.length


def grid_points(rows: Iterable[Size]) -> list[GridPoint]:
    """The points that the grid holds."""
    return sorted({grid_point(row) for row in rows})


def point_words(point: GridPoint) -> str:
    """``8 needles, 12 questions, 256 tokens``."""
    needles, queries, length = point
    counted = [(needles, "needle"), (queries, "question"), (length, "token")]
    return ", ".join(f"{count} {noun}{'s' * (count != 1)}" for count, noun in counted)


def state(row: Place | MapAllocation | Crossing) -> str:
    """``trained`` or ``untrained``."""
    return "trained" if row.trained else "untrained"


def needle_summary(found: Retrieval) -> Table | None:
    """Accuracy with its interval for each arm and place in the grid."""
    rows = [
        [row.arm, state(row), row.needles, row.queries, row.length, depth_text(row.depth), row.accuracy,
         *row.interval, row.interval_is, row.guess, row.samples]
        for row in found.summary
    ]  # fmt: skip
    columns = columns_of(
        *("Arm", "Model", "Needles|integer", "Questions|integer", "Tokens|integer", "Depth"),
        *(f"{_score_name(found).capitalize()}|percent", "From|percent", "To|percent", "Interval", "Guess rate|percent"),
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
        [cell.arm, cell.seed, state(cell), cell.needles, cell.queries, cell.length, depth_text(cell.depth),
         cell.correct, cell.samples, cell.correct / cell.samples,
         ", ".join(format_value(share, "percent") for share in cell.by_place)]
        for cell in found.cells
    ]  # fmt: skip
    columns = columns_of(
        *("Arm", "Seed|integer", "Model", "Needles|integer", "Questions|integer", "Tokens|integer", "Depth"),
        *("Right|integer", "Samples|integer", "Accuracy|percent", "Accuracy by place of the question"),
    )
    return table_of("Needle accuracy by seed", columns, rows)


def crossings_table(found: Retrieval) -> Table | None:
    """N50 and L50 of each model."""
    rows = [
        [row.arm, row.seed, state(row), {"needles": "N50", "length": "L50"}[row.over],
         f"{row.at:,} tokens" if row.over == "needles" else f"{row.at} needle{'s' * (row.at != 1)}", row.queries,
         _size(row.value, row.beyond, row), f"{_size(row.interval[0], 'below', row)} to "
         f"{_size(row.interval[1], 'above', row)}", f"{row.sizes[0]:,} to {row.sizes[-1]:,}", row.samples]
        for row in found.crossings
    ]  # fmt: skip
    columns = columns_of(
        *(
            "Arm",
            "Seed|integer",
            "Model",
            "What",
            "With",
            "Questions|integer",
            "At",
            "95 %",
            "Measured",
            "Samples|integer",
        )
    )
    note = (
        "N50: number of needles at which accuracy, with the needle anywhere, falls to 50 %; L50: number of tokens. "
        "Logistic in log2, by maximum likelihood; the interval is that of the profile likelihood. With two needles, "
        "guessing reaches 50 %, so that a model which guesses has an N50 of about 2 or below."
    )
    return table_of("Where accuracy falls to 50 %", columns, rows, note)


def _size(value: float | None, beyond: str | None, row: Crossing) -> str:
    """A number of needles or tokens, or on which side of the measured ones it lies."""
    if value is None:
        return f"{beyond} {row.sizes[0 if beyond == 'below' else -1]:,}"
    return f"{value:.1f}" if row.over == "needles" else f"{value:,.0f}"


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


ENDS = ((0, -1), (1, 1))
"""Of an interval, with the direction in which it lies."""


@matplotlib.rc_context(STYLE)
def needle_grid(found: Retrieval) -> Figure | None:
    """Accuracy by depth: heatmaps over needles and length; points with intervals where that is one pair."""
    if not found.summary:
        return None
    return (_needle_points if len(grid_points(found.summary)) == 1 else _needle_heatmaps)(found)


def _needle_points(found: Retrieval) -> Figure:
    arms, rows = found.arms, found.summary
    depths = _depths(rows)
    figure = Figure(figsize=(9.6, 4.4), layout="constrained")
    axes = figure.subplots()
    series = [(arm, model) for model in ("trained", "untrained") for arm in arms]
    by_series = {pair: {row.depth: row for row in rows if (row.arm, state(row)) == pair} for pair in series}
    by_series = {pair: at for pair, at in by_series.items() if at}
    for index, ((arm, model), at) in enumerate(by_series.items()):
        drawn = [at[depth] for depth in depths if depth in at]
        places = [depths.index(row.depth) + 0.6 * ((index + 0.5) / len(by_series) - 0.5) for row in drawn]
        heights = [row.accuracy for row in drawn]
        errors = [[max(0.0, sign * (row.interval[end] - row.accuracy)) for row in drawn] for end, sign in ENDS]
        colour = arm_colour(arms, arm)
        axes.errorbar(
            places, heights, yerr=errors, fmt=MARKERS[arms.index(arm) % len(MARKERS)], color=colour,
            capsize=3, markersize=7, markerfacecolor=colour if model == "trained" else "white", linewidth=1.4,
            label=f"{visible(arm)}, {model}",
        )  # fmt: skip
    axes.set_xticks(range(len(depths)), [_depth_label(depth) for depth in depths])
    axes.set_xlim(-0.6, len(depths) - 0.4)
    axes.set_ylim(0, 1.03)
    axes.yaxis.set_major_formatter(PERCENT)
    axes.grid(axis="x", visible=False)
    axes.set(xlabel="depth of the asked needle in the context", ylabel=_score_name(found))
    axes.set_title(f"{point_words(grid_point(rows[0]))}; bars are the range over seeds, or 95 % intervals")
    mark_levels(axes, {"guess rate": rows[0].guess})
    legend_below(figure, min(len(by_series), 4))
    return figure


def _needle_heatmaps(found: Retrieval) -> Figure:
    rows, points = found.summary, grid_points(found.summary)
    arms = [arm for arm in found.arms if any(row.arm == arm for row in rows)]
    depths = _depths(rows)
    at_depths = {state(row) for row in rows if row.depth is not None}
    models = [model for model in ("trained", "untrained") if model in at_depths] or ["trained"]
    # Measured with the needle anywhere alone: a row, not a panel of its own.
    untrained = {(row.arm, grid_point(row)): row.accuracy for row in rows if state(row) not in models}
    labels = [*map(_depth_label, depths), *(["untrained, anywhere"] if untrained else []), "guess rate"]
    size = (
        max(4.6 if len(arms) > 1 else 7, 0.72 * len(points) + 1.6) * len(arms),
        (0.4 * len(labels) + 1.6) * len(models),
    )
    figure = Figure(figsize=size, layout="constrained")
    grid = figure.subplots(len(models), len(arms), squeeze=False, sharex=True, sharey=True)
    norm = Normalize(0, 1)
    one_task = len({point[:2] for point in points}) == 1
    guesses = {grid_point(row): row.guess for row in rows}
    for line, model in zip(grid, models, strict=True):
        for axes, arm in zip(line, arms, strict=True):
            own = {(row.depth, grid_point(row)): row.accuracy for row in rows if (row.arm, state(row)) == (arm, model)}
            cells = [[own.get((depth, point)) for point in points] for depth in depths]
            cells += [[untrained.get((arm, point)) for point in points]] if untrained else []
            cells.append([guesses[point] for point in points])
            table = numpy.array(cells, dtype=float)
            axes.imshow(table, norm=norm, cmap="cividis", aspect="auto")
            for (y, x), accuracy in numpy.ndenumerate(table):
                words = "–" if math.isnan(accuracy) else f"{100 * accuracy:.0f}"
                colour = "white" if accuracy < 0.5 else "black"
                axes.text(x, y, words, ha="center", va="center", color=colour, fontsize=10)
            for line_above in (len(depths), len(depths) - 1) if None in depths else (len(depths),):
                axes.axhline(line_above - 0.5, color="white", linewidth=4)
            axes.set_title(f"{visible(arm)}, {model}", color=arm_colour(found.arms, arm), weight="bold")
            axes.set_yticks(range(len(labels)), labels)
            axes.set_xticks(range(len(points)), [f"{p[2]:,}" if one_task else "\n".join(map(str, p)) for p in points])
            axes.grid(visible=False)
    for axes in grid[-1]:
        axes.set_xlabel("tokens" if one_task else "from above: needles,\nquestions, tokens")
    for axes in grid[:, 0]:
        axes.set_ylabel("depth")
    scale = ScalarMappable(norm, "cividis")
    figure.colorbar(scale, ax=grid, format=PERCENT, label=_score_name(found), shrink=0.8)
    return figure


def _score_name(found: Retrieval) -> str:
    return "accuracy" if found.is_text else "first-query accuracy"


ALLOCATION_PANELS = {
    "share": "share of Σ|A|", "signed": "signed sum of A", "contribution": "contribution to the output",
    "knockout": "change of log p(answer) without it",
}  # fmt: skip
"""Measures of a span, and their titles; a record may lack the last two."""


@matplotlib.rc_context(STYLE)
def allocation_bars(found: Retrieval) -> Figure | None:
    """Each span's share of Σ|A|, signed sum, part of the output and effect of its knock-out; a dot for each seed."""
    arms, rows = found.arms, overall_allocation(found)
    if not rows:
        return None
    spans = spans_of(rows)
    series = [(arm, model) for arm in arms for model in ("trained", "untrained")]
    series = [pair for pair in series if any((row.arm, state(row)) == pair for row in rows)]
    looks: dict[tuple[str, str], dict[str, Any]] = {
        (arm, model): {"facecolor": arm_colour(arms, arm)} if model == "trained"
        else {"facecolor": "white", "edgecolor": arm_colour(arms, arm), "hatch": "////", "alpha": 0.4}
        for arm, model in series
    }  # fmt: skip
    height = 0.8 / len(series)
    panels = {
        measure: title for measure, title in ALLOCATION_PANELS.items()
        if any(span_mean(rows, span, measure) is not None for span in spans)
    }  # fmt: skip
    lines = -(-len(panels) // 2)
    tall = max(3.6, 1.2 + 0.24 * len(series) * len(spans))
    figure = Figure(figsize=(10.2, lines * tall), layout="constrained")
    grid = figure.subplots(lines, 2, sharey=True, squeeze=False).flatten()
    for axes in grid[len(panels) :]:
        axes.set_visible(False)
    for axes, (measure, title) in zip(grid, panels.items(), strict=False):
        for index, (arm, model) in enumerate(series):
            members = [row for row in rows if (row.arm, state(row)) == (arm, model)]
            for line, span in enumerate(spans):
                place, mean = line + height * (index + 0.5) - 0.4, span_mean(members, span, measure)
                if mean is None:
                    continue
                label = f"{arm} {model} {span}"
                axes.barh(place, mean, height=0.9 * height, label=f"_{label}", **looks[arm, model])
                values = [span_mean([row], span, measure) for row in members]
                if len(present(values)) > 1:
                    axes.plot(present(values), [place] * len(present(values)), "k.", markersize=3, label=f"_{label}")
        axes.set(
            title=title, xlabel=f"{title}, seen from the last prompt position" if measure != "knockout" else "nats"
        )
        axes.axvline(0, color="#444444", linewidth=0.8)
        axes.grid(axis="y", visible=False)
        axes.set_yticks(range(len(spans)), [visible(readable(span)) for span in spans])
        axes.set_ylim(len(spans) - 0.5, -0.5)
        if measure in ("share", "contribution"):
            axes.xaxis.set_major_formatter(PERCENT)
    patches = [Patch(**looks[arm, model], label=f"{visible(arm)}, {model}") for arm, model in series]
    legend_below(figure, min(len(series), 4), patches)
    return figure


def overall_allocation(found: Retrieval) -> list[MapAllocation]:
    """The rows that the bars show: over all layers, of the map that the model uses."""
    return [row for row in found.allocation if row.depth is None and row.is_last]


def _depths(rows: Sequence[Accuracy]) -> list[float | None]:
    """Depths in order; anywhere comes last."""
    found = {row.depth for row in rows}
    return [*sorted(present(found)), *([None] if None in found else [])]


def _depth_label(depth: float | None) -> str:
    return {0.0: "0 (start)", 1.0: "1 (end)"}.get(depth, f"{depth:g}") if depth is not None else "anywhere"


def _needle_caption(found: Retrieval) -> str:
    if len(grid_points(found.summary)) == 1:
        return (
            "Filled marks are trained models, hollow ones untrained models. A mark is the median over "
            "seeds, its bar their range; with one seed the bar is the Wilson 95 % interval over samples. Compare only "
            "'anywhere' with the guess rate: at depth 0 or 1, naming the first or last number is always right."
        )
    answered = "contexts with all numbers right" if found.is_text else "first questions answered right"
    untrained = "the row above it has the untrained model" if found.is_text else "untrained models are the lower panels"
    return (
        f"Per cent of {answered}, on one colour scale. The bottom row of each panel is the guess rate of its column; "
        f"{untrained}, where measured."
    )


def _needle_alternative(found: Retrieval) -> str:
    words = [
        f"{row.arm} {state(row)} {format_value(row.accuracy, 'percent')} ({point_words(grid_point(row))})"
        for row in found.summary
        if row.depth is None
    ]
    over_all = f" Anywhere: {'; '.join(words)}." if words else ""
    return f"{_score_name(found).capitalize()} by depth of the asked needle.{over_all}"


def _allocation_alternative(found: Retrieval) -> str:
    rows = overall_allocation(found)
    words = []
    for arm in found.arms:
        for model in ("trained", "untrained"):
            members = [row for row in rows if (row.arm, state(row)) == (arm, model)]
            share = span_mean(members, "answer", "share")
            if share is not None:
                words.append(f"{arm} {model} {format_value(share, 'percent')}")
    on_answer = f" Share on the answer: {', '.join(words)}." if words else ""
    return f"Bars for each span of the prompt, arm by arm.{on_answer}"


def needle_tables(found: Retrieval) -> list[Table | None]:
    """The grid of needles, over seeds and for each."""
    return [needle_summary(found), crossings_table(found), needle_cells(found)]


def allocation_tables(found: Retrieval) -> list[Table | None]:
    """Where attention went, in all and by layer, and what knocking a span out does."""
    return [allocation(found), allocation(found, by_layer=True), knockouts(found)]


def needles_drawing(read: Callable[[Record], Retrieval]) -> Drawing:
    """The grid of needles of records that ``read`` reads."""
    return Drawing(
        draw=lambda record: needle_grid(read(record)),
        title="Needles by depth",
        caption=lambda record: _needle_caption(read(record)),
        alternative=lambda record: _needle_alternative(read(record)),
        behind=lambda record: needle_tables(read(record)),
    )


def allocation_drawing(read: Callable[[Record], Retrieval]) -> Drawing:
    """Where attention went, of records that ``read`` reads."""
    return Drawing(
        draw=lambda record: allocation_bars(read(record)),
        title="Where attention went",
        caption="Mean over layers and seeds of the map that the model uses (for differential attention the "
        "difference), seen from the last prompt position; dots are seeds, hatched bars untrained models. The first "
        "panel divides by Σ|A|, so subtraction cannot flatter it; the second is the signed sum, which is small for any "
        "two maps that cancel, learned or not. Where the record has them: the part of the layers' outputs that comes "
        "from a span, and how the log-probability of the right answer changes, in nats, when the answer, or as many "
        "random tokens of filler, are hidden from the last tokens in all layers.",
        alternative=lambda record: _allocation_alternative(read(record)),
        behind=lambda record: allocation_tables(read(record)),
    )
