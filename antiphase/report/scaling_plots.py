"""Records of ``antiphase scaling`` → losses over size and tokens, with the laws through them."""

from __future__ import annotations

import matplotlib
import numpy
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, NullFormatter

from antiphase.records import Record
from antiphase.report.plots import MARKERS, STYLE, arm_colour


@matplotlib.rc_context(STYLE)
def loss_laws(record: Record) -> Figure | None:
    """A panel for each axis: every run, the law of each arm."""
    ladders = record.values.get("ladders") if record.kind == "scaling" else None
    if not ladders:
        return None
    arms = record.values["arms"]
    figure = Figure(figsize=(4.4 * len(ladders), 3.9), layout="constrained")
    for axes, ladder in zip(figure.subplots(1, len(ladders), squeeze=False)[0], ladders, strict=True):
        for index, arm in enumerate(arms):
            points = [
                (point["x"], loss) for point in ladder["points"] if point["arm"] == arm for loss in point["losses"]
            ]
            colour, marker = arm_colour(arms, arm), MARKERS[index % len(MARKERS)]
            axes.plot(*zip(*points, strict=True), marker, color=colour, alpha=0.7, label=arm)
            law = ladder["laws"].get(arm)
            if law:
                x = numpy.geomspace(min(x for x, _ in points), max(x for x, _ in points), 60)
                axes.plot(x, law["floor"] + law["scale"] * x ** -law["exponent"], color=colour)
        axes.set_xscale("log")
        places = sorted({point["x"] for point in ladder["points"] if point["arm"] == arms[0]})  # others lie beside
        axes.set_xticks(places, [_short(place) for place in places])
        axes.xaxis.set_minor_formatter(NullFormatter())
        axes.yaxis.set_major_formatter(FuncFormatter(lambda loss, _: f"{loss:g}"))
        axes.set(title=f"Loss by {ladder['axis']}", xlabel=ladder["axis"], ylabel="nats per token")
        axes.legend(fontsize=9)
    return figure


def _short(count: float) -> str:
    """``1500000`` as ``1.5M``."""
    for size, letter in ((1e9, "B"), (1e6, "M"), (1e3, "K")):
        if count >= size:
            return f"{count / size:.3g}{letter}"
    return f"{count:g}"
