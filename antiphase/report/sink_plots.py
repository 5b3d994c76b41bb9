"""Records of ``antiphase probe`` → figures: sinks by layer and position, by head, by token."""

from __future__ import annotations

from typing import Any

import matplotlib
import numpy
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from antiphase.records import Record
from antiphase.report.plots import COLOURS, PERCENT, STYLE, visible

MOST_BARS = 25


def _probe(record: Record) -> dict[str, Any]:
    return record.values if record.kind == "probe" and record.values.get("layers") else {}


@matplotlib.rc_context(STYLE)
def sink_map(record: Record) -> Figure | None:
    """Share of maps and sequences in which a position is a sink, by layer and position."""
    values = _probe(record)
    if not values:
        return None
    rates = numpy.array(values["positions"]["sink_rate"], dtype=float)
    layers = [row["layer"] for row in values["layers"]]
    figure = Figure(figsize=(10.2, max(2.6, 1.5 + 0.22 * len(layers))), layout="constrained")
    axes = figure.subplots()
    image = axes.imshow(
        rates, aspect="auto", cmap="magma_r", vmin=0, vmax=max(float(rates.max()), 1e-9), interpolation="nearest",
        extent=(0, values["length"], len(layers) - 0.5, -0.5),
    )  # fmt: skip
    axes.set(title="Sinks beside the first token", xlabel="position in the sequence", ylabel="layer")
    axes.axvspan(values["judged_positions"], values["length"], color="#dddddd")
    axes.text(
        0.5 * (values["judged_positions"] + values["length"]), 0.5 * (len(layers) - 1), "too few queries\nto judge",
        ha="center", va="center", fontsize=9.5, color="#444444",
    )  # fmt: skip
    axes.yaxis.set_major_locator(MaxNLocator(12, integer=True))
    axes.grid(visible=False)
    figure.colorbar(image, ax=axes, format=PERCENT, label="of maps and sequences")
    return figure


@matplotlib.rc_context(STYLE)
def sink_heads(record: Record) -> Figure | None:
    """Weight on the first token, and on sinks, by layer and head."""
    values = _probe(record)
    if not values:
        return None
    layers = [row["layer"] for row in values["layers"]]
    heads = 1 + max(row["head"] for row in values["heads"])
    panels = {"first_share": "on the first token", "sink_share": "on other sinks"}
    figure = Figure(figsize=(10.2, max(2.8, 1.5 + 0.26 * len(layers))), layout="constrained")
    both = figure.subplots(1, 2, sharey=True)
    images = []
    largest = max((row[key] or 0.0 for row in values["heads"] for key in panels), default=1.0)
    for axes, (key, title) in zip(both, panels.items(), strict=True):
        grid = numpy.full((len(layers), heads), numpy.nan)
        for row in values["heads"]:
            if row[key] is not None:
                grid[layers.index(row["layer"]), row["head"]] = row[key]
        images.append(axes.imshow(grid, aspect="auto", cmap="viridis", vmin=0, vmax=largest, interpolation="nearest"))
        axes.set(title=f"Attention {title}", xlabel="head (softmax map)")
        axes.xaxis.set_major_locator(MaxNLocator(12, integer=True))
        axes.yaxis.set_major_locator(MaxNLocator(12, integer=True))
        axes.grid(visible=False)
    both[0].set_ylabel("layer")
    figure.colorbar(images[0], ax=list(both), format=PERCENT, label="share of a query's attention")
    return figure


@matplotlib.rc_context(STYLE)
def sink_tokens(record: Record) -> Figure | None:
    """Tokens that are sinks most often."""
    rows = _probe(record).get("tokens") or []
    rows = [row for row in rows if row["sink_rate"]][:MOST_BARS]
    if not rows:
        return None
    figure = Figure(figsize=(7.5, 1.2 + 0.27 * len(rows)), layout="constrained")
    axes = figure.subplots()
    axes.barh(range(len(rows)), [row["sink_rate"] for row in rows], color=COLOURS[0])
    axes.set_yticks(range(len(rows)), [f"{visible(row['token'])!r} ({row['occurrences']:,})" for row in rows])
    axes.invert_yaxis()
    axes.set(title="Tokens that are sinks most often", xlabel="share of maps, at its occurrences (number in brackets)")
    axes.xaxis.set_major_formatter(PERCENT)
    axes.grid(visible=False, axis="y")
    return figure
