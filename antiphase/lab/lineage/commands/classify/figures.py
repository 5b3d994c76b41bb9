"""Records of ``antiphase classify`` as figures: accuracy by epoch, and the confusion matrix of each model."""

from __future__ import annotations

from collections.abc import Sequence

import matplotlib
import numpy
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from antiphase.lab.lineage.commands.classify import Classify
from antiphase.lab.lineage.commands.classify.tables import confusion_of
from antiphase.lab.lineage.results import Epoch
from antiphase.lab.pages.plots import LINES, PERCENT, STYLE, arm_colour, visible

NUMBERED = 12
"""Largest number of labels for which a confusion matrix shows numbers in its cells and labels on its axes."""


ACROSS = 3
"""Number of matrices side by side."""


@Classify.from_record
@matplotlib.rc_context(STYLE)
def epochs(found: Classify) -> Figure | None:
    """Accuracy and loss on the development part after each epoch, one line per run; a dot marks the best epoch.

    A fainter line shows the loss on the training part, mean over an epoch.
    """
    models = [row.model for row in found.models]
    titles = ("Accuracy on the development part", "Loss: development, and training (fainter)")
    return epoch_curves([(run.model, run.curve) for run in found.runs], models, titles=titles, unit="nats a text")


def epoch_curves(
    curves: Sequence[tuple[str, Sequence[Epoch]]], models: Sequence[str], *, titles: tuple[str, str], unit: str
) -> Figure:
    """``accuracy`` on the left, ``loss`` and fainter ``train_loss`` on the right, one line per run.

    Args:
        curves: model and curve of each run.
    """
    figure = Figure(figsize=(10.4, 4.1), layout="constrained")
    axes, losses = figure.subplots(1, 2)
    named = set()
    for name, curve in curves:
        colour, line = arm_colour(models, name), LINES[models.index(name) % len(LINES)]
        label = f"_{name}" if name in named else visible(name)  # the underscore hides it from the legend
        named.add(name)
        points = [(point.epoch, point.accuracy) for point in curve]
        axes.plot(*zip(*points, strict=True), color=colour, linestyle=line, linewidth=1.2, label=label)
        best = [point for point in curve if point.best]
        for point in best:
            axes.plot(point.epoch, point.accuracy, "o", color=colour, markersize=5)
        for key, strength, width in (("train_loss", 0.4, 0.9), ("loss", 1.0, 1.2)):
            found = [(point.epoch, loss) for point in curve if (loss := getattr(point, key)) is not None]
            if found:
                style = {"color": colour, "linestyle": line, "alpha": strength, "linewidth": width}
                losses.plot(*zip(*found, strict=True), label=f"_{key}", **style)
        for point in best:
            losses.plot(point.epoch, point.loss, "o", color=colour, markersize=5, label="_kept")
    axes.set(title=titles[0], xlabel="epoch", ylabel="accuracy")
    losses.set(title=titles[1], xlabel="epoch", ylabel=unit, ylim=(0, None))
    for panel in (axes, losses):
        panel.xaxis.set_major_locator(MaxNLocator(10, integer=True, min_n_ticks=1))
    axes.yaxis.set_major_formatter(PERCENT)
    figure.legend(loc="outside lower center", ncols=4)
    return figure


@Classify.from_record
@matplotlib.rc_context(STYLE)
def confusions(found: Classify) -> Figure | None:
    """A heat map per model: shares of each true label, over all runs; numbers are counts."""
    labels = [visible(label) for label in found.labels]
    models = [row.model for row in found.models]
    across = min(ACROSS, len(models))
    down = -(-len(models) // across)
    figure = Figure(figsize=(1.2 + 3.3 * across, 0.7 + 3.1 * down), layout="constrained")
    cells = list(figure.subplots(down, across, squeeze=False).flat)
    for axes, name in zip(cells, models, strict=False):
        counts = numpy.array(confusion_of(found.runs, name))
        shares = counts / numpy.maximum(counts.sum(1, keepdims=True), 1)
        image = axes.imshow(shares, cmap="Blues", vmin=0, vmax=1, interpolation="nearest")
        axes.set(title=visible(name), xlabel="predicted", ylabel="right label")
        axes.grid(visible=False)
        if len(labels) <= NUMBERED:
            axes.set_xticks(range(len(labels)), labels, rotation=45, ha="right")
            axes.set_yticks(range(len(labels)), labels)
            for (row, column), count in numpy.ndenumerate(counts):
                shade = "white" if shares[row, column] > 0.55 else "black"
                axes.text(column, row, f"{count:,}", ha="center", va="center", color=shade, fontsize=9)
        if name == models[-1]:
            figure.colorbar(image, ax=list(figure.axes), format=PERCENT, label="share of the right label")
    for axes in cells[len(models) :]:
        axes.set_axis_off()
    return figure
