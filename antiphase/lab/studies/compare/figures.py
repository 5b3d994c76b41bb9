"""Figures of trained arms: learning curves, attention on one input, λ by layer."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import matplotlib
import numpy
from matplotlib.cm import ScalarMappable
from matplotlib.colors import FuncNorm
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from matplotlib.ticker import FuncFormatter, MaxNLocator

from antiphase.base.records import Record
from antiphase.lab.pages.plots import (
    LABELLED_TOKENS,
    LINES,
    MARKERS,
    PERCENT,
    STYLE,
    arm_colour,
    label_tokens,
    legend_below,
    mark_levels,
    signed_power,
    visible,
)
from antiphase.lab.pages.tables import present
from antiphase.lab.studies.compare import ComparedRun
from antiphase.lab.studies.compare.reading import comparison_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes


@matplotlib.rc_context(STYLE)
def learning_curves(record: Record) -> Figure | None:
    """First-query accuracy and held-out loss against steps: seeds thin, their median thick."""
    found = comparison_of(record)
    runs, arms = found.runs, found.arms
    titles = {"accuracy": "First-query accuracy", "loss": "Held-out loss, nats per token"}
    panels = [key for key in titles if any(_curve(run, key) for run in runs)]
    if "loss" not in panels and any(_curve(run, "train_loss") for run in runs):
        panels, titles = [*panels, "train_loss"], titles | {"train_loss": "Training loss, nats per token"}
    if not panels:
        return None
    figure = Figure(figsize=(5.1 * len(panels) if len(panels) > 1 else 7, 4.1), layout="constrained")
    for axes, key in zip(figure.subplots(1, len(panels), squeeze=False)[0], panels, strict=True):
        for index, arm in enumerate(arms):
            curves = [(run, _curve(run, key)) for run in runs if run.arm == arm and _curve(run, key)]
            colour = arm_colour(arms, arm)
            for run, curve in curves:
                label = f"_{arm} seed {run.seed}"  # the underscore keeps it out of the legend
                axes.plot(list(curve), list(curve.values()), color=colour, linewidth=0.9, alpha=0.45, label=label)
            shared = sorted(set.intersection(*[set(curve) for _, curve in curves])) if curves else []
            middle = [statistics.median(curve[step] for _, curve in curves) for step in shared]
            name = f"{visible(arm)}, {'median of ' if len(curves) > 1 else ''}{_seeds(len(curves))}"
            if middle:
                dots = MARKERS[index % len(MARKERS)] if len(middle) == 1 else None
                axes.plot(
                    shared, middle, color=colour, linewidth=2.6, linestyle=LINES[index % 4], label=name, marker=dots
                )
        axes.set(title=titles[key], xlabel="optimizer steps", ylabel=titles[key])
        axes.xaxis.set_major_locator(MaxNLocator(6, integer=True))
        if key == "accuracy":
            axes.set_ylim(0, 1.03)
            axes.yaxis.set_major_formatter(PERCENT)
            mark_levels(axes, {"threshold": found.threshold, "guess rate": found.guess_rate})
    legend_below(figure, len(arms))
    return figure


@dataclass(frozen=True, kw_only=True)
class HeadChoice:
    """The head that an attention-map figure shows, and why."""

    layer: int
    head: int
    answer_weight: float
    """Σ|A| on the answer in the row of the last prompt position."""
    answer_share: float
    """The same as a share of the row's Σ|A|."""


def attention_weights(record: Record) -> dict[str, numpy.ndarray]:
    """Signed weights of each arm that has a map, (layers, heads, rows, tokens)."""
    names = comparison_of(record).attention_map.arrays
    found = {arm: record.arrays[name] for arm, name in names.items() if name in record.arrays}
    return {arm: numpy.nan_to_num(weights.astype(numpy.float32)) for arm, weights in found.items()}


def strongest_heads(record: Record) -> dict[str, HeadChoice]:
    """For each arm the layer and head whose last prompt position puts most |weight| on the answer."""
    picture = comparison_of(record).attention_map
    choices = {}
    for arm, weights in attention_weights(record).items():
        query = numpy.abs(weights[:, :, picture.rows.index(picture.query), :])  # (layers, heads, tokens)
        on_answer = query[..., picture.answer].sum(-1)
        layer, head = numpy.unravel_index(int(on_answer.argmax()), on_answer.shape)
        weight, total = float(on_answer[layer, head]), float(query[layer, head].sum())
        share = weight / total if total else 0.0
        choices[arm] = HeadChoice(layer=int(layer), head=int(head), answer_weight=weight, answer_share=share)
    return choices


@matplotlib.rc_context(STYLE)
def attention_maps(record: Record) -> Figure | None:
    """Signed weights of every arm on one input: its strongest head, one row of it, the mean of all heads."""
    found, maps, choices = comparison_of(record), attention_weights(record), strongest_heads(record)
    if not maps:
        return None
    arms, picture, answer = found.arms, found.attention_map, found.attention_map.answer
    tokens = [visible(token, 14) for token in picture.tokens]
    panels = {
        arm: (weights[choices[arm].layer, choices[arm].head], weights.mean((0, 1))) for arm, weights in maps.items()
    }
    shape = max(panel.shape for pair in panels.values() for panel in pair)
    largest = max(float(numpy.abs(panel).max()) for pair in panels.values() for panel in pair) or 1.0
    # The square root lets noise of 0.01 be seen beside a weight of 1.
    norm = FuncNorm((partial(signed_power, power=0.5), partial(signed_power, power=2)), -largest, largest)
    map_height = max(1.6, 6.2 * shape[0] / shape[1])
    ratios = [map_height, 1.7, map_height]
    figure = Figure(figsize=(6.4 * len(maps) + 1, sum(ratios) + 2.6), layout="constrained")
    grid = figure.subplots(3, len(maps), squeeze=False, sharex="col", sharey="row", height_ratios=ratios)
    for column, (arm, pair) in enumerate(panels.items()):
        choice, colour, row = choices[arm], arm_colour(arms, arm), picture.rows.index(picture.query)
        titles = (f"layer {choice.layer}, head {choice.head}", "mean over all heads and layers")
        for axes, weights, title in zip(grid[::2, column], pair, titles, strict=True):
            axes.imshow(weights, cmap="RdBu_r", norm=norm, aspect="auto", interpolation="nearest")
            axes.set_title(f"{visible(arm)}: {title}", color=colour, weight="bold", pad=18)
            _mark_answer(axes, answer, row, weights.shape)
            axes.grid(visible=False)
            axes.set_ylabel("query token" if column == 0 else "")
            first = picture.rows[0]
            label_tokens(axes.yaxis, tokens[first:] if len(tokens) <= LABELLED_TOKENS else [], weights.shape[0], first)
        profile = grid[1, column]
        shades = [colour if token in answer else "#9a9a9a" for token in range(shape[1])]
        profile.bar(range(shape[1]), pair[0][row], color=shades, width=0.9)
        profile.axhline(0, color="#444444", linewidth=0.8)
        profile.set_title("the marked row as bars; the answer in colour", fontsize=10)
        profile.set_ylabel("weight" if column == 0 else "")
        bottom = grid[2, column]
        bottom.set_xlabel("key token")
        label_tokens(bottom.xaxis, tokens if len(tokens) <= LABELLED_TOKENS else [], shape[1], 0)
        bottom.tick_params(axis="x", labelrotation=90 if 0 < len(tokens) <= LABELLED_TOKENS else 0)
    words = "signed weight (colour follows its square root)"
    bar = figure.colorbar(ScalarMappable(norm, "RdBu_r"), ax=grid, shrink=0.5, aspect=35, label=words)
    bar.set_ticks([sign * largest * part for sign in (-1, 1) for part in (1, 0.25, 0.05)] + [0])
    bar.formatter = FuncFormatter(lambda weight, _: f"{weight:.2g}")
    return figure


@matplotlib.rc_context(STYLE)
def lambdas(record: Record) -> Figure | None:
    """λ of each layer at the end of training: a thin line for each seed, their median thick."""
    found = comparison_of(record)
    arms, runs = found.arms, [(run.arm, run.lambdas) for run in found.runs if run.lambdas and present(run.lambdas)]
    if not runs:
        return None
    figure = Figure(figsize=(7.6, 4), layout="constrained")
    axes = figure.subplots()
    for arm in arms:
        lines = [[math.nan if lam is None else lam for lam in by_layer] for of, by_layer in runs if of == arm]
        colour, marker = arm_colour(arms, arm), MARKERS[arms.index(arm) % len(MARKERS)]
        for line in lines:
            axes.plot(range(len(line)), line, color=colour, linewidth=0.9, alpha=0.5, label=f"_{arm}")
        if lines and len({len(line) for line in lines}) == 1:
            name = f"{visible(arm)}, {'median of ' if len(lines) > 1 else ''}{_seeds(len(lines))}"
            middle = numpy.median(lines, axis=0)
            axes.plot(range(len(middle)), middle, color=colour, linewidth=2.6, marker=marker, label=name)
    axes.set(title="λ after training", xlabel="layer (0 is the first)", ylabel="λ")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    legend_below(figure, 3)
    return figure


def _curve(run: ComparedRun, key: str) -> dict[int, float]:
    """Values by step, without nulls."""
    return {point.step: value for point in run.curve if (value := getattr(point, key)) is not None}


def _seeds(number: int) -> str:
    return f"{number} seed{'' if number == 1 else 's'}"


def _mark_answer(axes: Axes, answer: Sequence[int], row: int, shape: tuple[int, ...]) -> None:
    """Frames round the answer's columns and the last prompt position's row, named at the edge."""
    frame: dict[str, Any] = {"fill": False, "edgecolor": "black", "linewidth": 0.8, "linestyle": (0, (3, 2))}
    axes.add_patch(Rectangle((-0.5, row - 0.5), shape[1], 1, clip_on=False, **frame))
    for start in [token for token in answer if token - 1 not in answer]:
        width = next(width for width in range(1, shape[1] + 2) if start + width not in answer)
        axes.add_patch(Rectangle((start - 0.5, -0.5), width, shape[0], **frame))
        place = (start + (width - 1) / 2, -0.5)
        axes.annotate("answer", place, (0, 4), textcoords="offset points", ha="center", fontsize=10)
    axes.annotate(
        "last prompt position", (shape[1] - 0.6, row), (0.97, 0.72), textcoords="axes fraction", ha="right",
        fontsize=10, bbox={"facecolor": "white", "edgecolor": "none", "alpha": 0.8, "pad": 2},
        arrowprops={"arrowstyle": "->", "color": "black"},
    )  # fmt: skip
