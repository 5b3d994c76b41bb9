"""Records of ``antiphase evaluate long-context`` as tables, a figure and text."""

from __future__ import annotations

import itertools

import matplotlib
from matplotlib.figure import Figure

from antiphase.base.records import Record
from antiphase.lab.measures.long_context import LongContext
from antiphase.lab.pages.plots import COLOURS, STYLE
from antiphase.lab.pages.presentation import Drawing, Presentation, by_model
from antiphase.lab.pages.tables import Column, Table, interval_text


@LongContext.from_record
def positions(found: LongContext) -> Table | None:
    """Cumulative loss at increasing positions, and the loss between two of them."""
    columns = [Column("Tokens read", "integer"), Column("Loss of all of them, nats per token", "loss"),
               Column("95 % over windows"), Column("Bits per byte", "loss"),
               Column("Loss since the row above", "loss")]  # fmt: skip
    sums = [(point.position, (point.position - 1) * point.loss) for point in found.curve]  # the first is not predicted
    since = [(up_to - before) / (end - start) for (start, before), (end, up_to) in itertools.pairwise(sums)]
    cells = [
        [point.position, point.loss, interval_text(point.interval), point.bits_per_byte, loss]
        for point, loss in zip(found.curve, [None, *since], strict=True)
    ]
    note = (
        f"Means over {found.windows} windows of {found.length:,} tokens. The first loss and its bits per byte are of "
        "all tokens up to there; the last column is of those after the row above."
    )
    return Table(title="Loss by length of context", columns=columns, rows=cells, note=note)


@LongContext.from_record
def context_worth(found: LongContext) -> Table | None:
    """The gain from a window's own beginning at its end."""
    tail = found.tail
    if tail is None:
        return None
    columns = [Column("Context"), Column("Loss, nats per token", "loss"), Column("95 % over windows")]
    rows = [
        ["the window's own", tail.loss, ""],
        [f"the {tail.tokens:,} tokens before", tail.little_loss, ""],
        ["gain from context", tail.context_gain, interval_text(tail.context_gain_interval)],
        ["another window's", tail.foreign_loss, ""],
        ["another's minus own", tail.gain, interval_text(tail.gain_interval)],
    ]
    note = "The gain from context is how much the rest of the window's own text lowers the loss."
    return Table(title=f"The last {tail.tokens:,} tokens of each window", columns=columns, rows=rows, note=note)


@matplotlib.rc_context(STYLE)
def loss_by_length(record: Record) -> Figure | None:
    """Cumulative loss by context length of each model, with its interval over windows."""
    read = {name: LongContext.read(own) for name, own in by_model(record).items()}
    curves = {name: found.curve for name, found in read.items() if found is not None}
    places = sorted({point.position for curve in curves.values() for point in curve})
    if not places:
        return None
    figure = Figure(figsize=(6.4, 3.8), layout="constrained")
    axes = figure.subplots()
    for index, (name, curve) in enumerate(curves.items()):
        colour, own = COLOURS[index % len(COLOURS)], [point.position for point in curve]
        axes.plot(own, [point.loss for point in curve], "o-", color=colour, label=name)
        intervals = [point.interval for point in curve if point.interval]
        if len(intervals) == len(own):
            low, high = zip(*intervals, strict=True)
            axes.fill_between(own, low, high, color=colour, alpha=0.2, linewidth=0)
    if len(curves) > 1:
        axes.legend(fontsize=9)
    axes.set_xscale("log", base=2)
    axes.set_xticks(places, [f"{place:,}" for place in places])
    axes.set(title="Loss over all tokens up to a position", xlabel="tokens read", ylabel="nats per token")
    return figure


PRESENTATION = Presentation(
    introduction="How the loss falls as more of the text is in view, over windows of full length only. "
    "The second table scores the windows' ends again, behind little of their own text and behind another window's "
    "beginning: the control shows what length alone gives.",
    tables=lambda record: [positions(record), context_worth(record)],
    figures={
        "loss-by-length": Drawing(
            draw=loss_by_length,
            title="Loss by length of context",
            caption="The mean over all tokens up to a position, with its 95 % interval over windows.",
            alternative="Line chart of the cumulative loss over tokens read.",
        )
    },
)
