"""What records of search, application and studies share: tables, the figure, words of verdicts, the next command."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Protocol

import matplotlib
import numpy
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from antiphase.base.errors import named, worded
from antiphase.base.records import Record
from antiphase.lab.pages.plots import STYLE
from antiphase.lab.pages.presentation import Drawing
from antiphase.lab.pages.tables import Column, Table
from antiphase.lab.studies.calibrate.settings import ControlEffect, Measures, Standing

EXACT = "p: exact, that as many samples become better as worse (McNemar's test, where they are right or wrong)."
POINTS = 100
"""Changes of shares are shown in percentage points."""


RANDOM_HEADS = "random heads"
"""How settings of controls with other heads begin."""
SURE = 0.05
"""Largest share of random choices of heads that gain as much where the choice is said to matter."""


def spoken(score: str | None) -> str:
    """The score that chooses heads, in words."""
    return "score" if score == "metric" else "probability of right answers"


def judged(gain: float, interval: Sequence[float], random: Sequence[float]) -> str:
    """A gain with its interval, what it shows, and how many of the gains of random heads are as large."""
    words, (low, high) = f"{signed(gain)} points (95 % {signed_interval(interval)})", interval
    if low <= 0:
        return f"{words}: {'a loss' if high < 0 else 'no gain'} is shown"
    if not random:
        return f"{words}: a gain is shown, but random heads, which may gain as much, were not tried"
    as_much = sum(one >= gain for one in random)
    matters = "" if (1 + as_much) / (1 + len(random)) < SURE else ", so the choice of heads is not shown to matter"
    return f"{words}: a gain is shown; {as_much} of {len(random)} draws of random heads gain as much{matters}"


def next_command(record: Record, output: Path, command: str, *tasks: str, plan: Path | None = None) -> str:
    """What to type next, for the terminal, with the same tasks if none is given."""
    given = [*([("plan", plan)] if plan else []), *(("task", task) for task in tasks or record.config.get("tasks", ()))]
    flags = [(worded(named(name)), str(value)) for name, value in (*given, ("output", f"{output}-{command}"))]
    return f"next:   {shlex.join(['antiphase', 'calibrate', command, record.values['model'], *sum(flags, ())])}"


def left_out_note(left_out: Mapping[str, int]) -> str:
    """How many samples judge nothing because they stand among the others already; empty if none."""
    listed = [f"{count} of {name}" for name, count in left_out.items() if count]
    return (
        f"Copies of samples that choose heads, or judge already, judge nothing: {', '.join(listed)}." if listed else ""
    )


def standings(tasks: Sequence[Standing]) -> Table | None:
    """Each task without calibration, beside chance."""
    if not tasks:
        return None
    rows = [[row.task, row.metric, row.samples, row.score, row.chance, row.above_chance] for row in tasks]
    columns = [Column("Task"), Column("Metric"), Column("Samples", "integer"), Column("Score", "percent"),
               Column("Chance", "percent"), Column("Above chance")]  # fmt: skip
    return Table(title="Tasks without calibration", columns=columns, rows=rows,
                 note="Chance: the best of guessing, the commonest answer, the longest and the shortest.")  # fmt: skip


def measures_table(
    tasks: Sequence[Standing], plain: Mapping[str, Measures], calibrated: Mapping[str, Measures]
) -> Table | None:
    """Each classification without and with the plan, by measures that a moved prior changes and others."""
    if not plain:
        return None
    chance = {row.task: row.chance for row in tasks}
    rows = [
        [task, words, chance[task], row.accuracy, row.balanced_accuracy, row.auc, row.mean_centred_accuracy,
         row.content_free_accuracy]
        for task in plain
        for words, row in (("plain", plain[task]), ("calibrated", calibrated[task]))
    ]  # fmt: skip
    columns = [Column("Task"), Column("Heads"), Column("Chance", "percent"), Column("Accuracy", "percent"),
               Column("Balanced", "percent"), Column("AUC", "percent"), Column("Mean-centred", "percent"),
               Column("Content-free", "percent")]  # fmt: skip
    note = ("A model that merely favours another label moves its accuracy; the area under the curve (AUC) and the "
            "mean-centred accuracy stay. Chance is that of the accuracy.")  # fmt: skip
    return Table(title="What moved: the reading or the prior", columns=columns, rows=rows, note=note)


def controls_table(rows: Sequence[ControlEffect]) -> Table | None:
    """Gains of the controls beside those of the kept heads."""
    if not rows:
        return None
    columns = [Column("Setting"), Column("Heads", "integer"), Column("Gain in points"), Column("95 % interval"),
               Column("Better / worse"), Column("p", "number"), Column("Mean-centred gain")]  # fmt: skip
    told = [[row.setting, row.heads, signed(row.gain), signed_interval(row.gain_interval), better_and_worse(row),
             row.p, signed_or_none(row.mean_centred_gain)] for row in rows]  # fmt: skip
    note = f"On the samples that chose no head. A gain that random heads reach as well shows nothing. {EXACT}"
    return Table(title="Controls", columns=columns, rows=told, note=note)


class Directed(Protocol):
    """What an effect says about the samples whose score changed."""

    @property
    def improved(self) -> int | None: ...
    @property
    def worsened(self) -> int | None: ...


def better_and_worse(row: Directed) -> str | None:
    """``4 / 2``; None: not counted."""
    return None if row.improved is None else f"{row.improved} / {row.worsened}"


def signed_or_none(value: float | None) -> str | None:
    """As ``signed``, where there is a value."""
    return None if value is None else signed(value)


def format_share(value: float) -> str:
    """``0.25`` as ``25.0 %``."""
    return f"{100 * value:.1f} %"


def signed(value: float) -> str:
    """A change of a share, in points."""
    return f"{POINTS * value:+.1f}"


def signed_interval(interval: Sequence[float]) -> str:
    """The ends of an interval, in points."""
    return " to ".join(map(signed, interval))


@matplotlib.rc_context(STYLE)
def head_changes(
    changes: Mapping[tuple[int, int], float], *, unit: str = "change in points", factor: float = POINTS
) -> Figure | None:
    """Change of the score by layer and head."""
    if not changes:
        return None
    layers = sorted({layer for layer, _ in changes})
    heads = 1 + max(head for _, head in changes)
    grid = numpy.full((len(layers), heads), numpy.nan)
    for (layer, head), change in changes.items():
        grid[layers.index(layer), head] = factor * change
    largest = max(float(numpy.nanmax(numpy.abs(grid))), 1e-9)
    figure = Figure(figsize=(min(10.2, 3.4 + 0.34 * heads), max(2.6, 1.4 + 0.28 * len(layers))), layout="constrained")
    axes = figure.subplots()
    axes.set_facecolor("#dddddd")
    image = axes.imshow(grid, aspect="auto", cmap="RdBu", vmin=-largest, vmax=largest, interpolation="nearest")
    axes.set(title="Each head calibrated alone", xlabel="head (softmax map)", ylabel="layer")
    axes.xaxis.set_major_locator(MaxNLocator(16, integer=True))
    axes.set_yticks(range(len(layers)), [str(layer) for layer in layers])
    axes.grid(visible=False)
    figure.colorbar(image, ax=axes, label=unit)
    return figure


def heads_drawing(
    draw: Callable[[Record], Figure | None],
    caption: str = "Change of the score in points, in a search on its part of the samples, in a study on all; grey: "
    "not tried.",
) -> Mapping[str, Drawing]:
    """The figure of ``head_changes``, by the name of its file."""
    return {
        "calibrated-heads": Drawing(
            draw=draw,
            title="Each head calibrated alone",
            caption=caption,
            alternative="Heatmap of layers and heads: change of the score when one head is calibrated.",
            is_raster=True,
        )
    }
