"""Records of ``antiphase evaluate cancellation`` as tables, a figure and text."""

from __future__ import annotations

import matplotlib
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator

from antiphase.lab.measures.cancellation import Cancellation, LayerFigures
from antiphase.lab.pages.plots import COLOURS, MARKERS, PERCENT, STYLE
from antiphase.lab.pages.presentation import Drawing, Presentation
from antiphase.lab.pages.tables import Column, Table


@Cancellation.from_record
def pairs(found: Cancellation) -> Table | None:
    """Similarity of the two maps of a head, by layer."""
    columns = [Column("State"), Column("Layer"), Column("Correlation", "signed"), Column("Cancelled", "percent"),
               Column("Negative share", "percent"), Column("Output RMS", "number"),
               Column("Output / value RMS", "number")]  # fmt: skip
    names = ("correlation", "cancelled", "negative_share", "output_rms", "output_to_value")
    note = (
        "Correlation of the two maps of a head over the keys that a query sees; cancelled: 1 - Σ|A1 - λA2| / "
        "Σ(A1 + |λ|A2). Models without pairs: neighbouring maps, as a control. Output RMS is before any head norm."
    )
    return Table(
        title="Common mode", columns=columns,
        rows=[[_state(row), str(row.layer), *(getattr(row, name) for name in names)] for row in found.layers],
        note=note,
    )  # fmt: skip


@Cancellation.from_record
def maps(found: Cancellation) -> Table | None:
    """Sparsity and noise of each map and of the difference, mean over layers."""
    cells = [
        [_state(row), name, of_map.effective_keys, of_map.near_zero, of_map.noise, of_map.answer]
        for row in found.layers
        if row.layer == "all"
        for name, of_map in row.maps.items()
    ]
    columns = [Column("State"), Column("Map"), Column("Effective keys", "number"), Column("Near zero", "percent"),
               Column("Noise", "percent"), Column("Answer", "percent")]  # fmt: skip
    note = (
        "Mean over layers and heads. Effective keys: exp of the entropy of |A| / Σ|A|; near zero: weights below a "
        "hundredth of their row's largest; noise (other needles and filler) and answer: share of Σ|A| from the last "
        "token of the prompt."
    )
    return Table(title="Sparsity and noise of the maps", columns=columns, rows=cells, note=note)


def _state(row: LayerFigures) -> str:
    return "trained" if row.trained else "untrained"


@Cancellation.from_record
@matplotlib.rc_context(STYLE)
def by_layer(found: Cancellation) -> Figure | None:
    """Correlation and cancelled share, noise of each map, and sizes of all heads, by layer."""
    rows = [row for row in found.layers if row.layer != "all"]
    figure = Figure(figsize=(11.4, 4.3), layout="constrained")
    left, middle, right = figure.subplots(1, 3)
    states = {row.trained for row in rows}
    for trained, line in [(state, line) for state, line in ((True, "-"), (False, ":")) if state in states]:
        own = [row for row in rows if row.trained == trained]
        layers = [row.layer for row in own]
        word = "trained" if trained else "untrained"
        for index, (name, words) in enumerate((("correlation", "correlation"), ("cancelled", "cancelled share"))):
            values = [getattr(row, name) for row in own]
            if any(value is not None for value in values):
                known = [float("nan") if value is None else value for value in values]
                left.plot(layers, known, MARKERS[index] + line, color=COLOURS[index], label=f"{words}, {word}")
        for index, name in enumerate(own[0].maps if own else ()):
            noise = [row.maps[name].noise for row in own]
            if None not in noise:
                middle.plot(layers, noise, MARKERS[index] + line, color=COLOURS[index], label=f"{name}, {word}")
        heads = [head for head in found.heads if head.trained == trained]
        right.plot(
            [head.layer + (0.08 if trained else -0.08) for head in heads],
            [head.output_to_value for head in heads],
            "o", color=COLOURS[0 if trained else 1], alpha=0.6, markersize=5, label=word,
            fillstyle="full" if trained else "none",
        )  # fmt: skip
    left.axhline(0, color="#333333", linewidth=0.8)
    left.set(title="Common mode of two maps", ylabel="correlation, share")
    middle.set(title="Noise", ylabel="share of Σ|A|")
    middle.yaxis.set_major_formatter(PERCENT)
    right.set(title="Size of every head's output", ylabel="RMS over that of its values")
    right.set_yscale("log")
    right.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    right.yaxis.set_major_formatter(FuncFormatter(lambda size, _: f"{size:g}"))
    right.yaxis.set_minor_formatter(FuncFormatter(lambda size, _: ""))
    for axes in (left, middle, right):
        axes.set_xlabel("layer")
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.legend(fontsize=8, loc="upper center", bbox_to_anchor=(0.5, -0.17), ncols=2)
    return figure


PRESENTATION = Presentation(
    introduction="The two maps of every head beside each other and beside their difference. Two maps "
    "have something in common before anything is learned: read every figure beside the untrained model.",
    tables=lambda record: [pairs(record), maps(record)],
    figures={
        "cancellation": Drawing(
            draw=by_layer,
            title="What two maps have in common",
            caption="Left: correlation of the two maps of a head, and the share of mass that subtraction removes. "
            "Middle: share of attention on other needles and filler, in each map and in what multiplies the values. "
            "Right: a mark for each head, before any norm. Dotted lines and hollow marks: the untrained model.",
            alternative="Line charts over layers of correlation, cancelled share and noise, and a mark for each head's "
            "size.",
        )
    },
)
