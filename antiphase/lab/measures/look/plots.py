"""Records of ``antiphase look`` as figures: every head, one head with its maps, masks, sinusoidal positions."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import matplotlib
import numpy
from matplotlib import pyplot
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colorbar import Colorbar
from matplotlib.colors import FuncNorm
from matplotlib.figure import Figure
from matplotlib.image import AxesImage
from matplotlib.patheffects import withStroke
from matplotlib.ticker import FuncFormatter, MaxNLocator

from antiphase.base.records import Record
from antiphase.lab.measures.look import Look
from antiphase.lab.measures.look.tables import chosen_head, layers_of, mask_words, used_in
from antiphase.lab.pages.figures import NotebookFigure
from antiphase.lab.pages.plots import LABELLED_TOKENS, STYLE, label_tokens, signed_power, visible

THUMBNAIL = 64
"""Largest side of a map in the overview of heads; larger maps show the strongest weight of each block."""
GAP = 3
DEEP = 2
"""With more layers than this times the heads, a row of the overview is a head."""
ALIGNED = 3
"""Number of layers side by side in the figure of alignments."""


@matplotlib.rc_context(STYLE)
def every_head(record: Record) -> Figure | None:
    """A small map per head on one scale: layers downwards and heads to the right; of deep models, the other way."""
    layers = layers_of(record)
    if not layers:
        return None
    small = [list(map(_thumbnail, layer.weights)) for layer in layers]
    heads = max(map(len, small))
    tall, wide = (max(picture.shape[side] for row in small for picture in row) + GAP for side in (0, 1))
    is_pair = any(layer.queries != layer.keys for layer in layers)  # its layers have long names
    is_deep = len(small) > DEEP * heads and not is_pair
    rows, columns = (heads, len(small)) if is_deep else (len(small), heads)
    sheet = numpy.full((rows * tall, columns * wide), numpy.nan)
    for number, of_layer in enumerate(small):
        hidden = ~_blocks(layers[number].visible.astype(float))[0].astype(bool)
        for head, picture in enumerate(of_layer):
            row, column = (head, number) if is_deep else (number, head)
            top, left = row * tall, column * wide
            shown = numpy.where(hidden, numpy.nan, picture)
            sheet[top : top + picture.shape[0], left : left + picture.shape[1]] = shown
    norm, colours = _scale([picture for row in small for picture in row])
    width = min(14.0, max(5.0, 1.1 + 0.95 * columns))
    names = {"layer": [layer.name for layer in layers], "head": [str(head) for head in range(heads)]}
    down, across = ("head", "layer") if is_deep else ("layer", "head")
    beside = 0.08 * (max(map(len, names[down])) - 1)
    height = 1.2 + (width - 1.1) * sheet.shape[0] / sheet.shape[1]
    figure = NotebookFigure(figsize=(width + beside, height), layout="constrained")
    axes = figure.subplots()
    axes.set_facecolor("#e4e7eb")
    axes.imshow(sheet, cmap=colours, norm=norm, interpolation="nearest", aspect="auto")
    axes.set_yticks(numpy.arange(rows) * tall + (tall - GAP) / 2, names[down])
    axes.set_xticks(numpy.arange(columns) * wide + (wide - GAP) / 2, names[across])
    axes.tick_params(length=0)
    axes.set(title="Every head on this text", xlabel=across, ylabel=down)
    axes.grid(visible=False)
    for spine in axes.spines.values():
        spine.set_visible(False)
    _colour_bar(figure, [axes], norm, colours)
    return figure


@matplotlib.rc_context(STYLE)
def one_head(record: Record) -> Figure | None:
    """The head with the most attention to tokens other than the first and the query's own; its maps and difference."""
    chosen = chosen_head(record)
    if chosen is None:
        return None
    layer, head = chosen
    panels = {"weights": layer.weights[head]}
    if layer.lam is not None:
        panels = {
            "first map": layer.maps[head, 0], "second map": layer.maps[head, 1],
            f"first − λ · second, λ = {layer.lam[head].mean():.2f}": panels["weights"],
        }  # fmt: skip
    names, unit = _token_names(record), unit_of(Look.of(record).segment)
    norm, colours = _scale(list(panels.values()))
    height = _height(layer.visible.shape)
    figure = Figure(figsize=(5.4 * len(panels) + 1, height), layout="constrained")
    grid = figure.subplots(1, len(panels), squeeze=False, sharey=True)[0]
    for axes, (title, weights) in zip(grid, panels.items(), strict=True):
        shown = numpy.where(layer.visible, weights, numpy.nan)
        draw_map(axes, shown, names[layer.queries], names[layer.keys], norm, colours)
        axes.set(title=f"layer {layer.name}, head {head}: {title}", xlabel=f"key {unit}")
    grid[0].set_ylabel(f"query {unit}")
    _colour_bar(figure, list(grid), norm, colours)
    return figure


def unit_of(segment: int | None) -> str:
    """What a row and a column are."""
    return "token" if segment is None else f"segment of {segment} tokens"


def one_map(
    weights: numpy.ndarray,
    title: str,
    queries: Sequence[str],
    keys: Sequence[str],
    axes: Axes | None = None,
    *,
    unit: str = "token",
) -> Axes:
    """Draw a map (N, M), NaN where hidden, on ``axes`` or those of a new figure of pyplot, and its colour bar.

    Args:
        unit: what a row and a column are.
    """
    size = {"figsize": (6.4, _height(weights.shape)), "layout": "constrained"}
    # outside the context, which would undo the settings with which a notebook shows figures
    figure = pyplot.figure(**size) if axes is None else axes.figure
    norm, colours = _scale([numpy.nan_to_num(weights)])
    names = [[visible(text, 14) for text in side] for side in (queries, keys)]
    with matplotlib.rc_context(STYLE):
        axes = axes or figure.subplots()
        image = draw_map(axes, weights, names[0], names[1], norm, colours)
        axes.set(title=title, xlabel=f"key {unit}", ylabel=f"query {unit}")
        _label_scale(figure.colorbar(image, ax=axes, label="weight"))
    return axes


def draw_map(
    axes: Axes, weights: numpy.ndarray, queries: list[str], keys: list[str], norm: FuncNorm, colours: str
) -> AxesImage:
    """A map (N, M), NaN where hidden, with the names of its tokens where there are few."""
    axes.set_facecolor("#e4e7eb")
    image = axes.imshow(weights, cmap=colours, norm=norm, aspect="auto", interpolation="nearest")
    axes.grid(visible=False)
    rows, columns = weights.shape
    label_tokens(axes.xaxis, keys if columns <= LABELLED_TOKENS else [], columns, 0)
    axes.tick_params(axis="x", labelrotation=90 if columns <= LABELLED_TOKENS else 0)
    label_tokens(axes.yaxis, queries if rows <= LABELLED_TOKENS else [], rows, 0)
    return image


def _height(shape: tuple[int, ...]) -> float:
    """Inches of a figure of a map (N, M)."""
    return min(9.0, max(3.0, 5.2 * shape[0] / shape[1])) + 1.2


@matplotlib.rc_context(STYLE)
def alignment(record: Record) -> Figure | None:
    """A panel per cross-attention layer, the mean over its heads: rows are target tokens, columns source tokens."""
    layers = [layer for layer in layers_of(record) if layer.queries != layer.keys and not layer.is_span]
    if not layers:
        return None
    first = layers[0]
    names = _token_names(record)
    panels = [
        (f"layer {layer.layer}", numpy.where(layer.visible, layer.weights.mean(0), numpy.nan)) for layer in layers
    ]
    return aligned(panels, (first.queries, names[first.queries]), (first.keys, names[first.keys]), across=ALIGNED)


def aligned(
    panels: Sequence[tuple[str, numpy.ndarray]],
    queries: tuple[str, list[str]],
    keys: tuple[str, list[str]],
    *,
    across: int,
    right: Sequence[int] = (),
) -> Figure:
    """A panel per title and map (N, M), which is NaN where hidden; ``queries`` and ``keys`` are a name and tokens.

    A ring marks the key in ``right`` in each of the first rows.
    """
    norm, colours = _scale([numpy.nan_to_num(weights) for _, weights in panels])
    rows, columns = panels[0][1].shape
    across = min(across, len(panels))
    down = -(-len(panels) // across)
    width = min(4.6, max(2.6, 1.4 + 0.28 * columns))
    height = min(5.4, max(1.6, 1.1 + 0.28 * rows))
    figure = Figure(figsize=(width * across + 1.2, height * down + 0.5), layout="constrained")
    grid = list(figure.subplots(down, across, squeeze=False).flat)
    for axes, (title, weights) in zip(grid, panels, strict=False):
        draw_map(axes, weights, queries[1], keys[1], norm, colours)
        halo = [withStroke(linewidth=3.5, foreground="white")]  # visible on dark cells
        axes.scatter(
            right, range(len(right)), s=60, facecolors="none", edgecolors="#111111", linewidths=1.2, path_effects=halo
        )
        axes.set(title=title, xlabel=keys[0], ylabel=queries[0])
    for axes in grid[len(panels) :]:
        axes.set_axis_off()
    _colour_bar(figure, grid[: len(panels)], norm, colours)
    return figure


@matplotlib.rc_context(STYLE)
def masks(record: Record) -> Figure | None:
    """The masks of the model's layers, with causal and global ones for comparison."""
    layers = layers_of(record)
    if not layers:
        return None
    look = Look.of(record)
    found = [(mask_words(look, mask), record.arrays[mask.array].astype(bool)) for mask in look.masks]
    used = [used_in([layer for layer in layers if layer.mask == index]) for index in range(len(found))]
    rows, columns = found[0][1].shape
    whole = numpy.ones((rows, columns), bool)
    plain = {"causal": numpy.tril(whole, columns - rows), "global": whole}
    for words, mask in () if layers[0].is_span else plain.items():
        if words not in [known for known, _ in found]:
            found.append((words, mask))
            used.append("not in this model")
    figure = Figure(figsize=(3.4 * len(found), 4.2), layout="constrained")
    for axes, (words, mask), where in zip(figure.subplots(1, len(found), squeeze=False)[0], found, used, strict=True):
        axes.imshow(mask, cmap="Blues", vmin=0, vmax=1.3, interpolation="nearest")
        axes.set(title=f"{words}\n{where}", xlabel="key", ylabel="query")
        for axis in (axes.xaxis, axes.yaxis):
            axis.set_major_locator(MaxNLocator(5, integer=True))
        axes.grid(visible=False)
    return figure


@matplotlib.rc_context(STYLE)
def positions(record: Record) -> Figure | None:
    """The sinusoidal position matrix."""
    if not layers_of(record) or "positions" not in record.arrays:
        return None
    figure = Figure(figsize=(9.6, 4.2), layout="constrained")
    axes = figure.subplots()
    image = axes.imshow(
        record.arrays["positions"], cmap="RdBu_r", vmin=-1, vmax=1, aspect="auto", interpolation="nearest"
    )
    axes.set(title="Sinusoidal positions", xlabel="dimension", ylabel="position")
    axes.grid(visible=False)
    figure.colorbar(image, ax=axes)
    return figure


def _token_names(record: Record) -> dict[str, list[str]]:
    """The tokens of each sequence as the axes show them."""
    sequences = Look.of(record).sequences
    return {name: [visible(token.text, 14) for token in one.tokens] for name, one in sequences.items()}


def _blocks(weights: numpy.ndarray) -> tuple[numpy.ndarray, numpy.ndarray]:
    """Largest and smallest weight of each block, with at most ``THUMBNAIL`` blocks per side."""
    steps = [max(1, -(-size // THUMBNAIL)) for size in weights.shape]
    padding = [(0, -size % step) for size, step in zip(weights.shape, steps, strict=True)]
    padded = numpy.pad(weights, padding, mode="edge")
    parts = padded.reshape(padded.shape[0] // steps[0], steps[0], padded.shape[1] // steps[1], steps[1])
    return parts.max((1, 3)), parts.min((1, 3))


def _thumbnail(weights: numpy.ndarray) -> numpy.ndarray:
    """The strongest weight of each block, with its sign."""
    largest, smallest = _blocks(weights)
    return numpy.where(-smallest > largest, smallest, largest)


def _scale(maps: Sequence[numpy.ndarray]) -> tuple[FuncNorm, str]:
    """The colour scale is a square root, so that small weights are visible; in signed maps, blue is negative."""
    largest = max(float(numpy.abs(weights).max()) for weights in maps) or 1.0
    signed = any((weights < 0).any() for weights in maps)
    functions = (partial(signed_power, power=0.5), partial(signed_power, power=2))
    return FuncNorm(functions, -largest if signed else 0.0, largest), "RdBu_r" if signed else "Reds"


def _colour_bar(figure: Figure, axes: list[Any], norm: FuncNorm, colours: str) -> None:
    _label_scale(figure.colorbar(ScalarMappable(norm, colours), ax=axes, shrink=0.7, aspect=35, label="weight"))


def _label_scale(bar: Colorbar) -> None:
    """Label a root scale at its end, a quarter and a twentieth of it."""
    signs = (-1, 1) if (bar.norm.vmin or 0) < 0 else (1,)
    largest = float(bar.norm.vmax or 1)
    bar.set_ticks(sorted({0.0, *(sign * largest * part for sign in signs for part in (1, 0.25, 0.05))}))
    bar.formatter = FuncFormatter(lambda weight, _: f"{weight:.2g}")
