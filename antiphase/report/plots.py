"""Records → matplotlib figures, one function a figure; None where the record lacks the data.

Figures are built on ``Figure`` alone: no pyplot, no global state left behind, equal records give equal bytes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import matplotlib
import numpy
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Normalize
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.ticker import FuncFormatter, MaxNLocator

from antiphase.records import Record
from antiphase.report.tables import (
    GridPoint,
    allocation_of,
    arms_of,
    grid_point,
    grid_points,
    needles_of,
    point_words,
    present,
    readable,
    span_mean,
    spans_of,
    state,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
"""Okabe and Ito's palette, told apart with any colour vision; given to arms in the order of display."""
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
LINES = ("-", "--", "-.", ":")
STYLE: dict[str, Any] = {
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans"],
    "font.size": 11,
    "axes.titlesize": 12,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#e3e3e3",
    "legend.frameon": False,
    "hatch.linewidth": 0.6,
    "text.parse_math": False,  # a token may be "$x^"
    "svg.hashsalt": "antiphase",  # else the ids in an SVG are random
}
LABELLED_TOKENS = 64
"""Most tokens of an attention map whose axes are labelled with them."""
PERCENT = FuncFormatter(lambda share, _: f"{100 * share:g} %")


def arm_colour(arms: Sequence[str], arm: str) -> str:
    """The colour of an arm in every figure and table."""
    return COLOURS[arms.index(arm) % len(COLOURS)]


@matplotlib.rc_context(STYLE)
def needle_grid(record: Record) -> Figure | None:
    """Accuracy by depth: heatmaps over needles and length; points with intervals where that is one pair."""
    rows = needles_of(record, "summary")
    if not rows:
        return None
    points = grid_points(rows)
    return _needle_points(record, rows) if len(points) == 1 else _needle_heatmaps(record, rows, points)


def _needle_points(record: Record, rows: list[dict[str, Any]]) -> Figure:
    arms, depths = arms_of(record), _depths(rows)
    figure = Figure(figsize=(9.6, 4.4), layout="constrained")
    axes = figure.subplots()
    series = [(arm, model) for model in ("trained", "untrained") for arm in arms]
    measured = [(row["arm"], state(row)) for row in rows if row.get("accuracy") is not None]
    series = [pair for pair in series if pair in measured]
    for index, (arm, model) in enumerate(series):
        found = {row.get("depth"): row for row in rows if (row["arm"], state(row)) == (arm, model)}
        drawn = [depth for depth in depths if found.get(depth, {}).get("accuracy") is not None]
        places = [depths.index(depth) + 0.6 * ((index + 0.5) / len(series) - 0.5) for depth in drawn]
        heights = [found[depth]["accuracy"] for depth in drawn]
        bounds = [
            found[depth].get("interval") or [height, height] for depth, height in zip(drawn, heights, strict=True)
        ]
        errors = [
            [max(0.0, height - low) for height, (low, _) in zip(heights, bounds, strict=True)],
            [max(0.0, high - height) for height, (_, high) in zip(heights, bounds, strict=True)],
        ]
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
    axes.set(xlabel="depth of the asked needle in the context", ylabel=_score_name(record))
    axes.set_title(f"{point_words(grid_point(rows[0]))}; bars are the range over seeds, or 95 % intervals")
    mark_levels(axes, {"guess rate": rows[0].get("guess_rate")})
    legend_below(figure, min(len(series), 4))
    return figure


def _needle_heatmaps(record: Record, rows: list[dict[str, Any]], points: list[GridPoint]) -> Figure:
    arms = [arm for arm in arms_of(record) if any(row["arm"] == arm for row in rows)]
    depths = _depths(rows)
    at_depths = {state(row) for row in rows if row.get("depth") is not None}
    models = [model for model in ("trained", "untrained") if model in at_depths] or ["trained"]
    # Measured with the needle anywhere alone: a row, not a panel of its own.
    untrained = {(row["arm"], grid_point(row)): row.get("accuracy") for row in rows if state(row) not in models}
    labels = [*map(_depth_label, depths), *(["untrained, anywhere"] if untrained else []), "guess rate"]
    size = (
        max(4.6 if len(arms) > 1 else 7, 0.72 * len(points) + 1.6) * len(arms),
        (0.4 * len(labels) + 1.6) * len(models),
    )
    figure = Figure(figsize=size, layout="constrained")
    grid = figure.subplots(len(models), len(arms), squeeze=False, sharex=True, sharey=True)
    norm = Normalize(0, 1)
    one_task = len({point[:2] for point in points}) == 1
    guesses = {grid_point(row): row.get("guess_rate") for row in rows}
    for line, model in zip(grid, models, strict=True):
        for axes, arm in zip(line, arms, strict=True):
            found = {
                (row.get("depth"), grid_point(row)): row.get("accuracy")
                for row in rows
                if (row["arm"], state(row)) == (arm, model)
            }
            cells = [[found.get((depth, point)) for point in points] for depth in depths]
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
            axes.set_title(f"{visible(arm)}, {model}", color=arm_colour(arms_of(record), arm), weight="bold")
            axes.set_yticks(range(len(labels)), labels)
            axes.set_xticks(range(len(points)), [f"{p[2]:,}" if one_task else "\n".join(map(str, p)) for p in points])
            axes.grid(visible=False)
    for axes in grid[-1]:
        axes.set_xlabel("tokens" if one_task else "from above: needles,\nquestions, tokens")
    for axes in grid[:, 0]:
        axes.set_ylabel("depth")
    scale = ScalarMappable(norm, "cividis")
    figure.colorbar(scale, ax=grid, format=PERCENT, label=_score_name(record), shrink=0.8)
    return figure


def _score_name(record: Record) -> str:
    """The name of the score: in plain text all answers count, elsewhere the first."""
    return "accuracy" if record.values.get("task") == "text" else "first-query accuracy"


ALLOCATION_PANELS = {
    "share": "share of Σ|A|", "signed": "signed sum of A", "contribution": "contribution to the output",
    "knockout": "change of log p(answer) without it",
}  # fmt: skip
"""Measures of a span, and their titles; a record may lack the last two."""


@matplotlib.rc_context(STYLE)
def allocation_bars(record: Record) -> Figure | None:
    """Each span's share of Σ|A|, signed sum, part of the output and effect of its knock-out; a dot for each seed."""
    rows = overall_allocation(record)
    if not rows:
        return None
    arms, spans = arms_of(record), spans_of(rows)
    series = [(arm, model) for arm in arms for model in ("trained", "untrained")]
    series = [pair for pair in series if any((row["arm"], state(row)) == pair for row in rows)]
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
            members = [row for row in rows if (row["arm"], state(row)) == (arm, model)]
            colour = arm_colour(arms, arm)
            look = {"color": colour} if model == "trained" else {"color": "white", "edgecolor": colour, "hatch": "////"}
            for line, span in enumerate(spans):
                place, mean = line + height * (index + 0.5) - 0.4, span_mean(members, span, measure)
                if mean is None:
                    continue
                label = f"{arm} {model} {span}"
                axes.barh(place, mean, height=0.9 * height, label=f"_{label}", **look)
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
    patches = [
        Patch(facecolor=arm_colour(arms, arm), label=f"{visible(arm)}, trained")
        if model == "trained"
        else Patch(
            facecolor="white",
            edgecolor=arm_colour(arms, arm),
            hatch="////",
            label=f"{visible(arm)}, untrained",
        )
        for arm, model in series
    ]
    figure.legend(handles=patches, loc="outside lower center", ncols=min(len(series), 4))
    return figure


def overall_allocation(record: Record) -> list[dict[str, Any]]:
    """The rows that the bars show: over all layers, of the map a model really uses."""
    rows = [row for row in allocation_of(record) if row["layer"] == "all" and row.get("spans")]
    return [row for row in rows if row.get("map") not in ("first", "second")]


def visible(text: str, longest: int = 24) -> str:
    """Text as it can be drawn: line breaks and tabs as signs, control characters escaped, cut when long."""
    text = str(text).replace("\n", "↵").replace("\t", "→")
    text = "".join(letter if letter.isprintable() else f"\\x{ord(letter):02x}" for letter in text)
    return text if len(text) <= longest else f"{text[: longest - 1]}…"


def _depths(rows: list[dict[str, Any]]) -> list[float | None]:
    """Depths in order; anywhere comes last."""
    found = {row.get("depth") for row in rows}
    return [*sorted(present(found)), *([None] if None in found else [])]


def _depth_label(depth: float | None) -> str:
    return {0.0: "0 (start)", 1.0: "1 (end)"}.get(depth, f"{depth:g}") if depth is not None else "anywhere"


def mark_levels(axes: Axes, levels: dict[str, float | None]) -> None:
    """Dotted lines named in words beside the axes, where no curve can hide the words."""
    drawn = sorted((level, words) for words, level in levels.items() if level is not None)
    crowded = any(high - low < 0.1 for (low, _), (high, _) in pairwise(drawn))
    for index, (level, words) in enumerate(drawn):
        axes.axhline(level, color="#555555", linewidth=1.2, linestyle=":", label=f"_{words}")
        axes.text(
            1.01, level, f"{words}\n{100 * level:.3g} %", transform=axes.get_yaxis_transform(), fontsize=9.5,
            va=("bottom" if index else "top") if crowded else "center", color="#333333",
        )  # fmt: skip


def legend_below(figure: Figure, columns: int) -> None:
    """One legend for all panels, each name once."""
    named: dict[str, Any] = {}
    for axes in figure.axes:
        for handle, label in zip(*axes.get_legend_handles_labels(), strict=True):
            named.setdefault(label, handle)
    if named:
        figure.legend(named.values(), named.keys(), loc="outside lower center", ncols=columns, handlelength=3)


def signed_power(numbers: Any, power: float) -> Any:
    """A power of the size, with the sign."""
    return numpy.sign(numbers) * numpy.abs(numbers) ** power


def label_tokens(axis: Any, tokens: list[str], count: int, first: int) -> None:
    """Every token by its text where there are few, else by its number."""
    if tokens:
        axis.set_ticks(range(min(count, len(tokens))), tokens[:count])
        axis.set_tick_params(labelsize=9 if count <= 32 else 8 if count <= 48 else 7)
    else:
        axis.set_major_locator(MaxNLocator(8, integer=True))
        axis.set_major_formatter(FuncFormatter(lambda place, _: f"{place + first:.0f}"))
