"""Records of ``antiphase ablations`` → what each part is worth, and the size of gradients by layer."""

from __future__ import annotations

from collections.abc import Callable

import matplotlib
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator

from antiphase.records import Record
from antiphase.report.ablations import rows_of, shown_slices
from antiphase.report.plots import COLOURS, LINES, MARKERS, STYLE

ALIGNED = ("softmax", "softmax-half-heads-norm", "differential", "no-norm", "no-factor", "no-norm-no-factor")
"""Rows whose gradients are drawn."""


@matplotlib.rc_context(STYLE)
def differences(record: Record) -> Figure | None:
    """A panel for each slice of the loss: each row minus the one it departs from, and the paper's difference."""
    rows = [row for row in rows_of(record) if row.get("loss_difference")]
    titles = shown_slices(record)
    panels = [name for name in titles if any(row.get(f"{name}_difference") for row in rows)]
    if not rows or not panels:
        return None
    paper = {row["arm"]: row["paper"] for row in rows_of(record) if row["paper"]}
    places = range(len(rows))
    figure = Figure(figsize=(3.6 + 2.9 * len(panels), 1.6 + 0.34 * len(rows)), layout="constrained")
    for axes, name in zip(figure.subplots(1, len(panels), squeeze=False, sharey=True)[0], panels, strict=True):
        for place, row in zip(places, rows, strict=True):
            difference = row.get(f"{name}_difference") or {}
            if difference.get("mean") is None:
                continue
            low, high = difference["interval"] or [difference["mean"]] * 2
            axes.plot([low, high], [place, place], color=COLOURS[0], linewidth=1.6)
            axes.plot(difference["mean"], place, "o", color=COLOURS[0])
            axes.plot(difference["values"], [place] * len(difference["values"]), ".", color="#333333", markersize=4)
            if row["arm"] in paper and row["against"] in paper:
                there = row["paper"][name] - paper[row["against"]][name]
                axes.plot(there, place, "D", color=COLOURS[1], fillstyle="none")
        axes.axvline(0, color="#333333", linewidth=1.0)
        axes.set(title=titles[name], xlabel="nats per token")
        axes.set_yticks(list(places), [f"{row['arm']} – {row['against']}" for row in rows])
    figure.axes[0].invert_yaxis()
    handles = [
        Line2D([], [], color=COLOURS[0], marker="o", label="here: mean, 95 % interval, seeds"),
        Line2D([], [], color=COLOURS[1], marker="D", fillstyle="none", linestyle="", label="paper, 1.4B"),
    ]
    figure.legend(handles=handles, loc="outside lower center", ncols=2, fontsize=9)
    return figure


@matplotlib.rc_context(STYLE)
def gradients(record: Record) -> Figure | None:
    """Gradient norm of each layer, mean over training, with and without what is said to align them."""
    rows = [row for row in rows_of(record) if row.get("gradient_norms") and row["arm"] in ALIGNED]
    if len(rows) < 2:
        return None
    figure = Figure(figsize=(8.4, 3.9), layout="constrained")
    axes = figure.subplots()
    for index, row in enumerate(rows):
        axes.plot(
            range(len(row["gradient_norms"])),
            row["gradient_norms"],
            color=COLOURS[index % len(COLOURS)],
            linestyle=LINES[index // len(COLOURS) % len(LINES)],
            marker=MARKERS[index % len(MARKERS)],
            label=row["arm"],
        )
    axes.set_yscale("log")
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda norm, _: f"{norm:g}"))
    axes.yaxis.set_minor_locator(LogLocator(subs=(1.5, 3, 4, 7)))
    axes.yaxis.set_minor_formatter(FuncFormatter(lambda norm, _: f"{norm:g}"))
    axes.set(title="Gradient norm by layer, before clipping", xlabel="layer", ylabel="norm, mean over training")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    figure.legend(loc="outside right upper", fontsize=8)
    return figure


WORDS: dict[str, Callable[[Record], tuple[str, str, str]]] = {
    "ablations": lambda record: (
        "What each part is worth",
        "Each row minus the one that it departs from: below zero it is better. Dots are seeds, bars paired 95 % "
        "intervals, and a bar over zero shows nothing. Diamonds: the paper's difference, of models with 1.4B "
        "parameters.",
        "Differences in loss with intervals, a line for each row, a panel for each slice of the loss.",
    ),
    "gradient-norms": lambda record: (
        "Gradients by layer",
        "Norm of each layer's gradient before clipping, mean over the logged steps and seeds. The paper says that the "
        "factor 1 - λinit brings them to the softmax model's.",
        "Line chart of the gradient norm over layers, a line for each row.",
    ),
}
"""Title, caption and text alternative of each figure."""
