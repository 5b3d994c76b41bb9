"""Presentation of records of ``antiphase study gradients``."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

import matplotlib
import numpy
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from antiphase.lab.lineage.studies.gradients import Gradients, MeasuredGradients
from antiphase.lab.lineage.studies.style import plain_logarithm, style_of
from antiphase.lab.pages.plots import LINES, STYLE, legend_below
from antiphase.lab.pages.presentation import Drawing, Presentation
from antiphase.lab.pages.tables import Column, Table, present, readable

Form = tuple[str, str | None, str | None, int]
"""Model, position of its norms, kind of norm, step."""


@Gradients.from_record
def gradient_ratios(read: Gradients) -> Table | None:
    """Ratio of the last layer's gradient to the first layer's, for each model, norm, position and step."""
    found = by_form(read)
    if not found:
        return None
    steps = sorted({step for _, _, _, step in found})
    forms = list(dict.fromkeys(key[:3] for key in found))
    rows = []
    for model, place, norm in forms:
        members = [found[model, place, norm, step] for step in steps]
        losses = present(row.loss for row in members[-1])
        loss = statistics.fmean(losses) if len(losses) == len(members[-1]) else None
        rows.append([model, place, norm and readable(norm), *map(last_over_first, members), loss])
    columns = [
        Column("Model"), Column("Norms"), Column("Kind"),
        *(Column(f"Step {step:,}", "number") for step in steps),
        Column("Loss", "loss"),
    ]  # fmt: skip
    note = (
        "Gradient norm of the last layer over that of the first: geometric mean over seeds; far from 1 the layers "
        "learn at different speeds. Loss in nats, after the most steps."
    )
    return Table(
        title=f"Gradients of the last layer over the first, {read.layers} layers",
        columns=columns, rows=rows, note=note,
    ).without_empty_columns()  # fmt: skip


@Gradients.from_record
def gradient_details(read: Gradients) -> Table | None:
    """Gradient norms of every layer, seed and step."""
    rows = [[row.model, row.place, row.norm, row.seed, row.step, row.loss, *row.gradient_norms] for row in read.rows]
    columns = [
        Column("Model"), Column("Norms"), Column("Kind"), Column("Seed", "integer"), Column("Step", "integer"),
        Column("Loss", "loss"), *(Column(f"Layer {layer}", "number") for layer in range(read.layers)),
    ]  # fmt: skip
    return Table(title="Gradient norms by layer", columns=columns, rows=rows)


def by_form(read: Gradients) -> dict[Form, list[MeasuredGradients]]:
    """The rows of all seeds."""
    found: dict[Form, list[MeasuredGradients]] = {}
    for row in read.rows:
        found.setdefault((row.model, row.place, row.norm, row.step), []).append(row)
    return found


def last_over_first(rows: Sequence[MeasuredGradients]) -> float | None:
    """Gradient norm of the last layer over that of the first, geometric mean; None if one is 0 or not finite."""
    ratios = [last / first for row in rows if (first := row.gradient_norms[0]) and (last := row.gradient_norms[-1])]
    return statistics.geometric_mean(ratios) if len(ratios) == len(rows) else None


@Gradients.from_record
@matplotlib.rc_context(STYLE)
def gradients_by_depth(read: Gradients) -> Figure | None:
    """Gradient norm of each layer: one column per step, one row per kind of norm and for models without norms."""
    found = by_form(read)
    if not found:
        return None
    steps = sorted({step for _, _, _, step in found})
    norms = list(dict.fromkeys(norm for _, _, norm, _ in found))
    norms.sort(key=lambda norm: norm is None)
    figure = Figure(figsize=(3.9 * len(steps) + 0.4, 3.0 * len(norms) + 1.0), layout="constrained")
    grid = figure.subplots(len(norms), len(steps), squeeze=False, sharex=True, sharey="row")
    for (model, place, norm, step), members in found.items():
        axes = grid[norms.index(norm)][steps.index(step)]
        style = style_of(model) | {"linestyle": LINES[place == "post"]}
        values = numpy.array([row.gradient_norms for row in members], dtype=float)  # (seeds, layers)
        layers = range(values.shape[1])
        axes.plot(layers, numpy.exp(numpy.log(values).mean(0)), markersize=4.5, linewidth=1.4, **style)
        axes.fill_between(layers, values.min(0), values.max(0), color=style["color"], alpha=0.15, linewidth=0)
    for norm, line in zip(norms, grid, strict=True):
        for step, axes in zip(steps, line, strict=True):
            axes.set_yscale("log")
            plain_logarithm(axes)
            kind = "no norms" if norm is None else readable(norm)
            axes.set_title(f"{kind}, {'at the start' if step == 0 else f'after {step} steps'}")
            axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        line[0].set_ylabel("gradient norm")
    for axes in grid[-1]:
        axes.set_xlabel("layer (0 is the first)")
    handles = [Line2D([], [], label=name, **(style_of(name) | {"linestyle": "-"})) for name in read.models]
    if any(norm is not None for norm in norms):
        words = {"pre": "norms before sublayers (pre)", "post": "norms behind them (post)"}
        handles += [Line2D([], [], color="#333333", linestyle=LINES[i], label=words[p]) for i, p in enumerate(words)]
    legend_below(figure, min(5, 1 + len(steps)), handles)
    return figure


PRESENTATION = Presentation(
    introduction="How large the gradients of each layer are in deep models of one width, before training and after "
    "some steps, with norms before the sublayers of the Transformer and behind them.",
    tables=lambda record: [gradient_ratios(record)],
    figures={
        "study-gradients": Drawing(
            draw=gradients_by_depth,
            title="Gradient norms by depth",
            caption="L2 norm of the loss's gradient over all parameters of a layer, on sentences that are not trained "
            "on: geometric mean over seeds, bands from the smallest to the largest. Solid: norms before the "
            "sublayers; dashed: behind them (2002.04745, figure 3).",
            alternative="Line charts of gradient norms over layers, logarithmic.",
        )
    },
    details=lambda record: [gradient_details(record)],
)
