"""Records of ``antiphase ablations`` → what each part is worth, and gradients by layer: tables, figures and words."""

from __future__ import annotations

import math
from typing import Any

import matplotlib
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator

from antiphase.base.records import Record
from antiphase.lab.pages.plots import COLOURS, LINES, MARKERS, STYLE
from antiphase.lab.pages.presentation import Drawing, Presentation
from antiphase.lab.pages.tables import Column, Table, columns_of, table_of
from antiphase.lab.studies.ablations import Ablations, Losses

FEWEST_HITS = 200
"""AR-hits below which their loss is not shown: the losses of single tokens spread by about 3 nats, so that a mean of
fewer is uncertain by ±0.4 and more, twenty times the differences that the paper finds there."""
SLICES = {"loss": "Loss", "ar_hit": "AR-hit", "others": "Others"}


def losses(record: Record) -> Table | None:
    """Every row's losses, its difference to the row that it departs from, and the paper's losses."""
    found, seeds = Ablations.of(record), len(record.seeds)
    if not found.rows:
        return None
    shown, slices = shown_slices(found), found.slices
    cells = []
    for row in found.rows:
        paper, difference = row.paper or Losses(), row.difference("loss")
        about = f"{row.about} ({row.diverged} of {seeds} diverged)" if row.diverged else row.about
        cells.append([
            row.arm, about, row.parameters, *(getattr(row, name) for name in shown), row.against,
            difference.mean, interval_words(difference.interval),
            *(getattr(paper, name) for name in SLICES),
        ])  # fmt: skip
    columns = [Column("Row"), Column("What"), Column("Parameters", "integer"),
               *(Column(words, "loss") for words in shown.values()), Column("Against"),
               Column("Difference", "signed"), Column("95 % over seeds"),
               *(Column(f"Paper: {words}", "loss") for words in SLICES.values())]  # fmt: skip
    left = (
        f"{slices.left_out:,} more are others, because training shows their pair more than {slices.frequent} "
        f"times (in {slices.training_tokens:,} tokens)"
        if slices.training_tokens
        else "in a synthetic task no pair is left out for being frequent"
    )
    note = (
        f"Nats per token, mean of {seeds} seed{'s' * (seeds != 1)}; differences are paired. AR-hits: {slices.hits:,} "
        f"tokens whose pair with the token before stood earlier in the sequence; {left}. The paper's models have 1.4B "
        "parameters (2410.05258, table 6)."
    )
    if "ar_hit" not in shown:
        note += f" Of fewer than {FEWEST_HITS} AR-hits no loss is shown."
    return Table(title="Ablations and rivals", columns=columns, rows=cells, note=note)


@Ablations.from_record
def slices(found: Ablations) -> Table | None:
    """Where each difference lies: in what can be looked up, or in the rest."""
    titles = {name: words for name, words in shown_slices(found).items() if name != "loss"}
    cells: list[list[Any]] = []
    for row in found.rows:
        parts = [row.difference(name) for name in titles]
        if row.against and any(part.values for part in parts):
            pairs = [cell for part in parts for cell in (part.mean, interval_words(part.interval))]
            cells.append([row.arm, row.against, *pairs])
    columns = [Column("Row"), Column("Against")]
    for words in titles.values():
        columns += [Column(words, "signed"), Column(f"{words}, 95 %")]
    note = "Paired differences in nats per token, the row minus the one it departs from."
    if "ar_hit" not in titles:
        note += f" {found.slices.hits} AR-hits: of fewer than {FEWEST_HITS} no difference is shown."
    return table_of("Differences by slice", columns, cells, note)


@Ablations.from_record
def gradients(found: Ablations) -> Table | None:
    """Gradient norm of each layer."""
    layers = max((len(row.gradient_norms) for row in found.rows), default=0)
    return table_of(
        "Gradient norm by layer",
        [Column("Row"), *(Column(f"Layer {layer}", "number") for layer in range(layers))],
        [[row.arm, *row.gradient_norms] for row in found.rows if row.gradient_norms],
        "Before clipping, mean over the logged steps and over seeds.",
    )


@Ablations.from_record
def left_out(found: Ablations) -> Table | None:
    """Rows that these sizes cannot have."""
    return table_of("Rows left out", columns_of("Row", "Why"), [list(row) for row in found.left_out.items()])


def shown_slices(found: Ablations) -> dict[str, str]:
    """Names and titles of the slices that rest on enough tokens, AR-hits with their number beside them."""
    hits = found.slices.hits
    titles = SLICES | {"ar_hit": f"AR-hit (n = {hits:,})"}
    return {name: words for name, words in titles.items() if name != "ar_hit" or hits >= FEWEST_HITS}


def interval_words(interval: list[float] | None) -> str | None:
    """``-0.012 to +0.003``; None: one seed has none."""
    return None if interval is None else f"{interval[0]:+.3f} to {interval[1]:+.3f}"


ALIGNED = ("softmax", "softmax-half-heads-norm", "differential", "no-norm", "no-factor", "no-norm-no-factor")
"""Rows whose gradients_by_layer are drawn."""


@Ablations.from_record
@matplotlib.rc_context(STYLE)
def differences(found: Ablations) -> Figure | None:
    """A panel for each slice of the loss: each row minus the one it departs from, and the paper's difference."""
    rows = [row for row in found.rows if row.loss_difference]
    titles = shown_slices(found)
    panels = [name for name in titles if any(row.difference(name).values for row in rows)]
    if not rows or not panels:
        return None
    paper = {row.arm: row.paper for row in found.rows if row.paper}
    places = range(len(rows))
    figure = Figure(figsize=(3.6 + 2.9 * len(panels), 1.6 + 0.34 * len(rows)), layout="constrained")
    for axes, name in zip(figure.subplots(1, len(panels), squeeze=False, sharey=True)[0], panels, strict=True):
        for place, row in zip(places, rows, strict=True):
            difference = row.difference(name)
            if difference.mean is None:
                continue
            low, high = difference.interval or [difference.mean] * 2
            axes.plot([low, high], [place, place], color=COLOURS[0], linewidth=1.6)
            axes.plot(difference.mean, place, "o", color=COLOURS[0])
            axes.plot(difference.values, [place] * len(difference.values), ".", color="#333333", markersize=4)
            if row.arm in paper and row.against in paper:
                there = getattr(paper[row.arm], name) - getattr(paper[row.against], name)
                axes.plot(there, place, "D", color=COLOURS[1], fillstyle="none")
        axes.axvline(0, color="#333333", linewidth=1.0)
        axes.set(title=titles[name], xlabel="nats per token")
        axes.set_yticks(list(places), [f"{row.arm} – {row.against}" for row in rows])
    figure.axes[0].invert_yaxis()
    handles = [
        Line2D([], [], color=COLOURS[0], marker="o", label="here: mean, 95 % interval, seeds"),
        Line2D([], [], color=COLOURS[1], marker="D", fillstyle="none", linestyle="", label="paper, 1.4B"),
    ]
    figure.legend(handles=handles, loc="outside lower center", ncols=2, fontsize=9)
    return figure


@Ablations.from_record
@matplotlib.rc_context(STYLE)
def gradients_by_layer(found: Ablations) -> Figure | None:
    """Gradient norm of each layer, mean over training, with and without the parts that are said to align them."""
    rows = [row for row in found.rows if row.gradient_norms and row.arm in ALIGNED]
    if len(rows) < 2:
        return None
    figure = Figure(figsize=(8.4, 3.9), layout="constrained")
    axes = figure.subplots()
    for index, row in enumerate(rows):
        axes.plot(
            range(len(row.gradient_norms)),
            [math.nan if norm is None else norm for norm in row.gradient_norms],
            color=COLOURS[index % len(COLOURS)],
            linestyle=LINES[index // len(COLOURS) % len(LINES)],
            marker=MARKERS[index % len(MARKERS)],
            label=row.arm,
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


PRESENTATION = Presentation(
    introduction="Differential attention with parts removed or replaced, and rival methods, each trained on the same "
    "data in the same order. Each row shows its parameters; the MLP's width compensates for parameters that rivals "
    "add.",
    tables=lambda record: [losses(record), slices(record), gradients(record), left_out(record)],
    figures={
        "ablations": Drawing(
            draw=differences,
            title="What each part is worth",
            caption="Each row minus the one that it departs from: below zero it is better. Dots are seeds, bars paired "
            "95 % intervals, and a bar over zero shows nothing. Diamonds: the paper's difference, of models with 1.4B "
            "parameters.",
            alternative="Differences in loss with intervals, a line for each row, a panel for each slice of the loss.",
        ),
        "gradient-norms": Drawing(
            draw=gradients_by_layer,
            title="Gradients by layer",
            caption="Norm of each layer's gradient before clipping, mean over the logged steps and seeds. The paper "
            "says that the factor 1 - λinit brings them to the softmax model's.",
            alternative="Line chart of the gradient norm over layers, a line for each row.",
        ),
    },
)
