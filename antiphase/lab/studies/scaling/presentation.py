"""Records of ``antiphase scaling`` → losses over size and tokens, laws through them: tables, figure and words."""

from __future__ import annotations

import statistics

import matplotlib
import numpy
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, NullFormatter

from antiphase.lab.pages.plots import MARKERS, STYLE, arm_colour
from antiphase.lab.pages.presentation import Drawing, Presentation
from antiphase.lab.pages.tables import Column, Table, columns_of, present, table_of
from antiphase.lab.studies.scaling import Scaling


@Scaling.from_record
def losses(found: Scaling) -> Table | None:
    """Median held-out loss of each arm at each size and budget."""
    if not found.runs:
        return None
    rows = []
    for point in sorted({(run.width, run.layers, run.steps) for run in found.runs}):
        here = [run for run in found.runs if (run.width, run.layers, run.steps) == point]
        known = [present(run.loss for run in here if run.arm == arm) for arm in found.arms]
        medians = [statistics.median(values) if values else None for values in known]
        rows.append([*point, statistics.median(run.parameters for run in here), here[0].tokens, *medians])
    columns = [Column("Width", "integer"), Column("Layers", "integer"), Column("Steps", "integer"),
               Column("Parameters, median of arms", "integer"), Column("Tokens", "integer"),
               *(Column(arm, "loss") for arm in found.arms)]  # fmt: skip
    seeds = len({run.seed for run in found.runs})
    note = f"Held-out loss in nats per token, median over seeds ({seeds})."
    for ladder in found.ladders:
        if why := ladder.why_no_law or ladder.why_no_equal_loss:
            note += f" What equal loss takes is not shown over {ladder.axis}: {why}."
    return Table(title="Loss by size and by tokens", columns=columns, rows=rows, note=note)


@Scaling.from_record
def laws(found: Scaling) -> Table | None:
    """The fitted laws, floor + scale · x^(-exponent)."""
    rows = []
    for ladder in found.ladders:
        for arm, law in ladder.laws.items():
            ends = [law.intervals.get(name) for name in ("floor", "exponent")]
            shown = [None if end is None else f"{end[0]:.3f} to {end[1]:.3f}" for end in ends]
            rows.append([ladder.axis, arm, f"{law.floor:.3f}", shown[0], f"{law.exponent:.3f}", shown[1]])
    columns = columns_of("Over", "Arm", "Floor", "Floor, 95 %", "Exponent", "Exponent, 95 %")
    note = (
        "Loss = floor + scale · x^(-exponent), through all seeds; 95 % over the laws of single seeds, none where one "
        "of these ends on a bound, such as a floor of 0."
    )
    for ladder in found.ladders:
        if ladder.why_no_equal_loss:
            note += f" Over {ladder.axis} they say little: {ladder.why_no_equal_loss}."
    return table_of("Laws of the loss", columns, rows, note)


@Scaling.from_record
def equal_loss(found: Scaling) -> Table | None:
    """What each arm needs for the loss of the first one's largest run."""
    rows = []
    for ladder in found.ladders:
        for arm, equal in ladder.equal_loss.items():
            shown = None if equal.interval is None else "{:.2f} to {:.2f}".format(*equal.interval)
            rows.append([ladder.axis, arm, equal.loss, equal.baseline, equal.needed, equal.ratio, shown])
    columns = [Column("Over"), Column("Arm"), Column("Loss", "loss"), Column("Baseline has", "integer"),
               Column("Arm needs", "integer"), Column("Ratio", "number"), Column("95 % over seeds")]  # fmt: skip
    note = (
        "By the fitted laws; where the ratio exceeds 1, more than was trained, so extrapolated. "
        "The paper: 6.8B parameters do for 11B, 160B tokens for 251B (2410.05258, figure 3)."
    )
    return table_of("Needed for equal loss", columns, rows, note)


@matplotlib.rc_context(STYLE)
@Scaling.from_record
def loss_laws(found: Scaling) -> Figure | None:
    """A panel for each axis: every run, the law of each arm."""
    if not found.ladders:
        return None
    arms = found.arms
    figure = Figure(figsize=(4.4 * len(found.ladders), 3.9), layout="constrained")
    for axes, ladder in zip(figure.subplots(1, len(found.ladders), squeeze=False)[0], found.ladders, strict=True):
        for index, arm in enumerate(arms):
            points = [(point.x, loss) for point in ladder.points if point.arm == arm for loss in point.losses]
            colour, marker = arm_colour(arms, arm), MARKERS[index % len(MARKERS)]
            axes.plot(*zip(*points, strict=True), marker, color=colour, alpha=0.7, label=arm)
            if law := ladder.laws.get(arm):
                x = numpy.geomspace(min(x for x, _ in points), max(x for x, _ in points), 60)
                axes.plot(x, law.floor + law.scale * x**-law.exponent, color=colour)
        axes.set_xscale("log")
        places = sorted({point.x for point in ladder.points if point.arm == arms[0]})  # others lie beside
        axes.set_xticks(places, [_short(place) for place in places])
        axes.xaxis.set_minor_formatter(NullFormatter())
        axes.yaxis.set_major_formatter(FuncFormatter(lambda loss, _: f"{loss:g}"))
        axes.set(title=f"Loss by {ladder.axis}", xlabel=ladder.axis, ylabel="nats per token")
        axes.legend(fontsize=9)
    return figure


def _short(count: float) -> str:
    """``1500000`` as ``1.5M``."""
    for size, letter in ((1e9, "B"), (1e6, "M"), (1e3, "K")):
        if count >= size:
            return f"{count / size:.3g}{letter}"
    return f"{count:g}"


PRESENTATION = Presentation(
    introduction="Every dot is a model trained by itself, with its own decay; the curves are laws E + A · x^(-a) "
    "fitted to all runs of an arm.",
    tables=lambda record: [equal_loss(record), laws(record), losses(record)],
    figures={
        "loss-laws": Drawing(
            draw=loss_laws,
            title="Loss by size and tokens",
            caption="Dots are runs, curves the fitted laws.",
            alternative="Scatter plots of held-out loss over parameters and training tokens, a curve for each arm.",
        )
    },
)
