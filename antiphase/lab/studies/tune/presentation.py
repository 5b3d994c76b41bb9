"""Records of ``antiphase tune`` → every arm at every learning rate: table, figure and words."""

from __future__ import annotations

from typing import Any

import matplotlib
import numpy
from matplotlib.figure import Figure

from antiphase.base.records import Record
from antiphase.lab.pages.plots import MARKERS, PERCENT, STYLE, arm_colour, legend_below
from antiphase.lab.pages.presentation import Drawing, Presentation
from antiphase.lab.pages.tables import Column, Table
from antiphase.lab.studies.outcomes import LearnedThreshold
from antiphase.lab.studies.tune import Rate, Tune


def end_of(found: Tune, row: Rate, threshold: float | None) -> tuple[Any, Any]:
    """Accuracy and loss at the end: medians, or counts and the range where some seeds learned and others did not."""
    runs = [run for run in found.runs if (run.arm, run.learning_rate) == (row.arm, row.learning_rate)]
    learned = LearnedThreshold.of(0.0, threshold)  # the record has no guess rate; without one the gap must be wider
    counts = learned.counts({"": [run.accuracy for run in runs]})
    if counts is None or row.loss_range is None:
        return row.accuracy, row.loss
    return "{} of {} learned".format(*counts[""]), "{:.3f}–{:.3f}".format(*row.loss_range)


def threshold_of(record: Record) -> float | None:
    """The accuracy whose first passing was counted."""
    found: float | None = (record.config.get("compare") or {}).get("threshold")
    return found


def rates(record: Record) -> Table | None:
    """What every arm reached with every rate."""
    found = Tune.read(record)
    if found is None or not found.rates:
        return None
    diverged = any(row.diverged for row in found.rates)
    cells = [
        [row.arm, row.learning_rate, row.seeds, *end_of(found, row, threshold_of(record)), row.passed, row.spikes,
         *([row.diverged] if diverged else []), found.chosen[row.arm] == row.learning_rate]
        for row in found.rates
    ]  # fmt: skip
    columns = [Column("Arm"), Column("Learning rate", "number"), Column("Seeds", "integer"),
               Column("Accuracy", "percent"), Column("Loss", "loss"), Column("Passed", "integer"),
               Column("Gradient spikes", "integer"), *([Column("Diverged", "integer")] if diverged else []),
               Column("Best")]  # fmt: skip
    note = (
        "Accuracy and loss: median at the end of training over the seeds that did not diverge; where some seeds "
        "learned and others did not, how many did, and from which to which loss. Passed: runs whose accuracy crossed "
        "the threshold. Gradient spikes: logged norms above five times the median of the ten before, over all runs."
    )
    for arm, chosen in found.chosen.items():
        own = [row.learning_rate for row in found.rates if row.arm == arm]
        if chosen in (min(own), max(own)):
            note += f" The best of {arm} is at the edge of its rates; others beyond it may be better."
    return Table(title="Learning rates", columns=columns, rows=cells, note=note)


@matplotlib.rc_context(STYLE)
@Tune.from_record
def by_rate(found: Tune) -> Figure | None:
    """Loss and accuracy of every arm over the learning rate: median and range over seeds."""
    rows = found.rates
    panels = [name for name in ("loss", "accuracy") if any(row.spread(name) for row in rows)]
    if not panels:
        return None
    arms = list(dict.fromkeys(row.arm for row in rows))
    figure = Figure(figsize=(4.6 * len(panels), 3.8), layout="constrained")
    for axes, name in zip(figure.subplots(1, len(panels), squeeze=False)[0], panels, strict=True):
        for index, arm in enumerate(arms):
            own = [(row.learning_rate, *spread) for row in rows if row.arm == arm and (spread := row.spread(name))]
            x, middle, low, high = numpy.array(sorted(own)).reshape(-1, 4).T
            axes.errorbar(
                x,
                middle,
                yerr=[middle - low, high - middle],
                color=arm_colour(arms, arm),
                marker=MARKERS[index % len(MARKERS)],
                capsize=3,
                label=arm,
            )
        axes.set_xscale("log")
        places = sorted({row.learning_rate for row in rows})
        axes.set_xticks(places, [f"{place:g}" for place in places])
        axes.minorticks_off()
        axes.set(title={"loss": "Held-out loss", "accuracy": "First-query accuracy"}[name], xlabel="learning rate")
        if name == "accuracy":
            axes.yaxis.set_major_formatter(PERCENT)
        else:
            axes.set_ylabel("nats per token")
    legend_below(figure, len(arms), fontsize=9)
    return figure


PRESENTATION = Presentation(
    introduction="Every arm trained at every learning rate of one grid, so that no arm is favoured by its tuning.",
    tables=lambda record: [rates(record)],
    figures={
        "learning-rates": Drawing(
            draw=by_rate,
            title="Every arm at every learning rate",
            caption="Marks are medians over seeds, bars their range. An arm whose curve is flatter is less sensitive "
            "to its rate.",
            alternative="Line charts of held-out loss and accuracy over the learning rate, a line for each arm.",
        )
    },
)
