"""Presentation of records of ``antiphase study gradients``."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import TYPE_CHECKING

import matplotlib
import numpy
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from antiphase.records import Record
from antiphase.report.plots import LINES, STYLE
from antiphase.report.tables import Column, Table, readable

if TYPE_CHECKING:
    pass
from antiphase.baselines.studies.style import plain_logarithm, style_of
from antiphase.report.presentation import Drawing, Presentation

Form = tuple[str, str | None, str | None, int]
"""Model, position of its norms, kind of norm, step."""


def gradient_ratios(record: Record) -> Table | None:
    """Ratio of the last layer's gradient to the first layer's, for each model, norm, position and step."""
    found = gradients_of(record)
    if not found:
        return None
    steps = sorted({step for _, _, _, step in found})
    forms = list(dict.fromkeys(key[:3] for key in found))
    rows = []
    for model, place, norm in forms:
        members = [found[model, place, norm, step] for step in steps]
        ratios = [geometric_mean([norms[-1] / norms[0] for norms, _ in one]) for one in members]
        losses = [statistics.fmean(loss for _, loss in one) for one in members]
        rows.append([model, place, norm and readable(norm), *ratios, losses[-1]])
    columns = [
        Column("Model"), Column("Norms"), Column("Kind"),
        *(Column(f"Step {step:,}", "number") for step in steps),
        Column("Loss", "loss"),
    ]  # fmt: skip
    shown = [index for index in range(len(columns)) if any(row[index] is not None for row in rows)]
    note = (
        "Gradient norm of the last layer over that of the first: geometric mean over seeds; far from 1 the layers "
        "learn at different speeds. Loss in nats, after the most steps."
    )
    return Table(
        title=f"Gradients of the last layer over the first, {record.values['layers']} layers",
        columns=[columns[index] for index in shown], rows=[[row[index] for index in shown] for row in rows], note=note,
    )  # fmt: skip


def gradient_details(record: Record) -> Table | None:
    """Gradient norms of every layer, seed and step."""
    rows = [
        [row["model"], row["place"], row["norm"], row["seed"], row["step"], row["loss"], *row["gradient_norms"]]
        for row in record.values["rows"]
    ]
    layers = range(record.values["layers"])
    columns = [
        Column("Model"), Column("Norms"), Column("Kind"), Column("Seed", "integer"), Column("Step", "integer"),
        Column("Loss", "loss"), *(Column(f"Layer {layer}", "number") for layer in layers),
    ]  # fmt: skip
    return Table(title="Gradient norms by layer", columns=columns, rows=rows)


def gradients_of(record: Record) -> dict[Form, list[tuple[list[float], float]]]:
    """Gradient norms by layer and the loss, for every seed; empty for other records."""
    found: dict[Form, list[tuple[list[float], float]]] = {}
    for row in record.values["rows"]:
        key = (row["model"], row["place"], row["norm"], row["step"])
        found.setdefault(key, []).append((row["gradient_norms"], row["loss"]))
    return found


def geometric_mean(values: Sequence[float]) -> float | None:
    """Geometric mean; None if a value is not positive."""
    return statistics.geometric_mean(values) if min(values) > 0 else None


@matplotlib.rc_context(STYLE)
def gradients_by_depth(record: Record) -> Figure | None:
    """Gradient norm of each layer: one column per step, one row per kind of norm and for models without norms."""
    found = gradients_of(record)
    if not found:
        return None
    models = record.values["models"]
    steps = sorted({step for _, _, _, step in found})
    norms = list(dict.fromkeys(norm for _, _, norm, _ in found))
    norms.sort(key=lambda norm: norm is None)
    figure = Figure(figsize=(3.9 * len(steps) + 0.4, 3.0 * len(norms) + 1.0), layout="constrained")
    grid = figure.subplots(len(norms), len(steps), squeeze=False, sharex=True, sharey="row")
    for (model, place, norm, step), members in found.items():
        axes = grid[norms.index(norm)][steps.index(step)]
        style = style_of(model) | {"linestyle": LINES[place == "post"]}
        values = numpy.array([gradient for gradient, _ in members])  # (seeds, layers)
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
    handles = [Line2D([], [], label=name, **(style_of(name) | {"linestyle": "-"})) for name in models]
    if any(norm is not None for norm in norms):
        words = {"pre": "norms before sublayers (pre)", "post": "norms behind them (post)"}
        handles += [Line2D([], [], color="#333333", linestyle=LINES[i], label=words[p]) for i, p in enumerate(words)]
    figure.legend(handles=handles, loc="outside lower center", ncols=min(5, 1 + len(steps)), handlelength=3)
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
