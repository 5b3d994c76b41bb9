"""Records of ``antiphase probe`` as tables, and figures of sinks by layer and position, by head, and by token."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import matplotlib
import numpy
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from antiphase.base.records import Record
from antiphase.lab.measures.probe import Probe
from antiphase.lab.pages import tables
from antiphase.lab.pages.plots import COLOURS, PERCENT, STYLE, visible
from antiphase.lab.pages.presentation import Drawing, Presentation
from antiphase.lab.pages.tables import Table, columns_of

MOST_BARS, MOST_LAYERS = 25, 12
FIGURES = {
    "sinks": "Sinks|percent", "sinks_enough_queries": "Sinks that enough queries see|percent",
    "sink_share": "On other sinks|percent", "first_share": "On the first token|percent", "entropy": "Entropy|number",
    "top_logit": "Top logit|number", "unspent": "On no token|percent",
}  # fmt: skip
"""Fields and their columns."""


def name_layers(axes: Axes, layers: Sequence[int]) -> None:
    """Numbers of at most twelve layers at the rows of a map; not every layer of a model need have attention."""
    places = range(0, len(layers), -(-len(layers) // MOST_LAYERS))
    axes.set_yticks(places, [str(layers[place]) for place in places])


@Probe.from_record
@matplotlib.rc_context(STYLE)
def sink_map(found: Probe) -> Figure | None:
    """Share of maps and sequences in which a position is a sink, by layer and position."""
    rates = numpy.array(found.positions.sink_rate, dtype=float)
    layers = [row.layer for row in found.layers]
    figure = Figure(figsize=(10.2, max(2.6, 1.5 + 0.22 * len(layers))), layout="constrained")
    axes = figure.subplots()
    image = axes.imshow(
        rates, aspect="auto", cmap="magma_r", vmin=0, vmax=max(float(rates.max()), 1e-9), interpolation="nearest",
        extent=(0, found.length, len(layers) - 0.5, -0.5),
    )  # fmt: skip
    axes.set(title="Sinks beside the first token", xlabel="position in the sequence", ylabel="layer")
    if found.judged_positions < found.length:
        axes.axvspan(found.judged_positions, found.length, color="#dddddd")
        axes.text(
            0.5 * (found.judged_positions + found.length), 0.5 * (len(layers) - 1), "too few queries\nto judge",
            ha="center", va="center", fontsize=9.5, color="#444444",
        )  # fmt: skip
    name_layers(axes, layers)
    axes.grid(visible=False)
    figure.colorbar(image, ax=axes, format=PERCENT, label="of maps and sequences")
    return figure


@Probe.from_record
@matplotlib.rc_context(STYLE)
def sink_heads(found: Probe) -> Figure | None:
    """Weight on the first token and on sinks, by layer and head."""
    layers = [row.layer for row in found.layers]
    heads = 1 + max(row.head for row in found.heads)
    panels = {"first_share": "on the first token", "sink_share": "on other sinks"}
    figure = Figure(figsize=(10.2, max(2.8, 1.5 + 0.26 * len(layers))), layout="constrained")
    both = figure.subplots(1, 2, sharey=True)
    images = []
    largest = max(getattr(row, key) or 0.0 for row in found.heads for key in panels)
    for axes, (key, title) in zip(both, panels.items(), strict=True):
        grid = numpy.full((len(layers), heads), numpy.nan)
        for row in found.heads:
            if (share := getattr(row, key)) is not None:
                grid[layers.index(row.layer), row.head] = share
        images.append(axes.imshow(grid, aspect="auto", cmap="viridis", vmin=0, vmax=largest, interpolation="nearest"))
        axes.set(title=f"Attention {title}", xlabel="head (softmax map)")
        axes.xaxis.set_major_locator(MaxNLocator(12, integer=True))
        name_layers(axes, layers)
        axes.grid(visible=False)
    both[0].set_ylabel("layer")
    figure.colorbar(images[0], ax=list(both), format=PERCENT, label="share of a query's attention")
    return figure


@Probe.from_record
@matplotlib.rc_context(STYLE)
def sink_tokens(found: Probe) -> Figure | None:
    """Tokens that are sinks most often."""
    rows = [row for row in found.tokens if row.sink_rate][:MOST_BARS]
    if not rows:
        return None
    figure = Figure(figsize=(7.5, 1.2 + 0.27 * len(rows)), layout="constrained")
    axes = figure.subplots()
    axes.barh(range(len(rows)), [row.sink_rate for row in rows], color=COLOURS[0])
    axes.set_yticks(range(len(rows)), [f"{visible(row.token)!r} ({row.occurrences:,})" for row in rows])
    axes.invert_yaxis()
    axes.set(title="Tokens that are sinks most often", xlabel="share of maps, at its occurrences (number in brackets)")
    axes.xaxis.set_major_formatter(PERCENT)
    axes.grid(visible=False, axis="y")
    return figure


@Probe.from_record
def layers(found: Probe) -> Table | None:
    """Means over the maps of each layer."""
    names = _shown(found)
    rows = [[row.layer, *(getattr(row, name) for name in names)] for row in found.layers]
    return Table(title="Layers", columns=columns_of("Layer|integer", *names.values()), rows=rows)


@Probe.from_record
def heads(found: Probe) -> Table | None:
    """Each map of each layer."""
    names = _shown(found)
    rows = [[row.layer, row.head, *(getattr(row, name) for name in names)] for row in found.heads]
    return Table(title="Heads", columns=columns_of("Layer|integer", "Head|integer", *names.values()), rows=rows)


def _shown(found: Probe) -> dict[str, str]:
    """``FIGURES``; weight on no token only where there is any."""
    has_unspent = any(row.unspent is not None for row in found.layers)
    return {name: column for name, column in FIGURES.items() if name != "unspent" or has_unspent}


@Probe.from_record
def tokens(found: Probe) -> Table | None:
    """The tokens that are sinks most often."""
    if not found.tokens:
        return None
    rows: list[list[Any]] = [[row.token, row.occurrences, row.sink_rate] for row in found.tokens]
    return Table(title="Tokens", columns=columns_of("Token", "Occurrences|integer", "Sink rate|percent"), rows=rows)


def _numbers(record: Record) -> Table | None:
    return tables.scalars(record) if Probe.read(record) else None


def _positions(record: Record) -> str:
    """The definition of a sink, and how many sinks persist in the next layer."""
    found = Probe.read(record)
    words = (
        "A position is a sink of a map if it receives more than "
        f"{record.config.get('alpha', 5):g} / N of the attention "
        "on average, from enough queries that no single one decides."
    )
    if found is None or found.persistence is None or found.persistence_chance is None:
        return words
    return (
        f"{words} Of the positions that are sinks in a layer, {100 * found.persistence:.0f} % are in the next one too "
        f"({100 * found.persistence_chance:.0f} % if layers had nothing to do with each other)."
    )


PRESENTATION = Presentation(
    introduction="What attention does on this text: how much of it goes to the first token and to other sinks, "
    "positions that receive far more than their share. Local and uniform maps exceed the threshold at some positions "
    "even without any sink: compare the shares of sinks with null_local and null_uniform, the shares at those.",
    tables=lambda record: [layers(record), tokens(record), _numbers(record)],
    leading=3,
    figures={
        "sink-map": Drawing(
            draw=sink_map,
            title="Sinks by layer and position",
            caption=_positions,
            alternative="Heatmap of layers and positions: in how many maps and sequences a position is a sink.",
            is_raster=True,
        ),
        "sink-heads": Drawing(
            draw=sink_heads,
            title="Attention on sinks by head",
            caption="What a query gives on average to the first token, and to sinks beside it.",
            alternative="Two heatmaps of layers and heads: attention on the first token and on other sinks.",
            behind=lambda record: [heads(record)],
            is_raster=True,
        ),
        "sink-tokens": Drawing(
            draw=sink_tokens,
            title="Tokens that are sinks",
            caption="How often an occurrence of a token is a sink, over all maps.",
            alternative="Bars: tokens by how often they are sinks.",
        ),
    },
)
