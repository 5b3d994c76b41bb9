"""Records of ``antiphase calibrate`` → figures: change by head, gain by setting, sweeps, slopes."""

from __future__ import annotations

import matplotlib
import numpy
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from antiphase.records import Record
from antiphase.report.calibration import POINTS
from antiphase.report.plots import COLOURS, STYLE

SWEEPS = {"alpha": "α (a sink receives more than α / N)", "beta": "β (left of a weight on a sink)",
          "samples": "samples of each task that chose the heads", "subsets": "best heads calibrated"}  # fmt: skip


def _changes(record: Record) -> dict[tuple[int, int], float]:
    """Change of the score by (layer, head)."""
    if record.kind == "calibrate-search":
        return {
            (int(name.split(".")[0]), int(name.split(".")[1])): row["change"]
            for name, row in record.values["heads_alone"].items()
        }
    if record.kind == "calibrate-study" and record.values.get("heads"):
        return {(row["layer"], row["head"]): row["change"] for row in record.values["heads"]["rows"]}
    return {}


@matplotlib.rc_context(STYLE)
def head_changes(record: Record) -> Figure | None:
    """Change of the score by layer and head."""
    changes = _changes(record)
    if not changes:
        return None
    layers = sorted({layer for layer, _ in changes})
    heads = 1 + max(head for _, head in changes)
    grid = numpy.full((len(layers), heads), numpy.nan)
    for (layer, head), change in changes.items():
        grid[layers.index(layer), head] = POINTS * change
    largest = max(float(numpy.nanmax(numpy.abs(grid))), 1e-9)
    figure = Figure(figsize=(min(10.2, 3.4 + 0.34 * heads), max(2.6, 1.4 + 0.28 * len(layers))), layout="constrained")
    axes = figure.subplots()
    axes.set_facecolor("#dddddd")
    image = axes.imshow(grid, aspect="auto", cmap="RdBu", vmin=-largest, vmax=largest, interpolation="nearest")
    axes.set(title="Each head calibrated alone", xlabel="head (softmax map)", ylabel="layer")
    axes.xaxis.set_major_locator(MaxNLocator(16, integer=True))
    axes.set_yticks(range(len(layers)), [str(layer) for layer in layers])
    axes.grid(visible=False)
    figure.colorbar(image, ax=axes, label="change in points")
    return figure


@matplotlib.rc_context(STYLE)
def effect_rows(record: Record) -> Figure | None:
    """Held-out gain of each setting with its interval."""
    if record.kind != "calibrate-study":
        return None
    rows = [(part, row) for part, listed in record.values["rows"].items() for row in listed
            if "gain" in row and part not in SWEEPS]  # fmt: skip
    if not rows:
        return None
    parts = list(dict.fromkeys(part for part, _ in rows))
    figure = Figure(figsize=(8.6, 1.3 + 0.29 * len(rows)), layout="constrained")
    axes = figure.subplots()
    for place, (part, row) in enumerate(rows):
        low, high = row["gain_interval"]
        colour = COLOURS[parts.index(part) % len(COLOURS)]
        axes.plot([POINTS * low, POINTS * high], [place, place], color=colour, linewidth=2)
        axes.plot(POINTS * row["gain"], place, "o", color=colour)
    axes.axvline(0, color="#333333", linewidth=1.2)
    axes.set_yticks(range(len(rows)), [row["setting"] for _, row in rows])
    axes.invert_yaxis()
    axes.set(title="Gain on samples that chose no head", xlabel="points, 95 % interval")
    axes.grid(visible=False, axis="y")
    return figure


@matplotlib.rc_context(STYLE)
def sweeps(record: Record) -> Figure | None:
    """Held-out gain against α, β, the number of samples and the number of heads."""
    found = record.values.get("rows", {}) if record.kind == "calibrate-study" else {}
    panels = [name for name in SWEEPS if found.get(name)]
    if not panels:
        return None
    figure = Figure(figsize=(3.6 * min(len(panels), 2) + 1.4, 2.9 * ((len(panels) + 1) // 2)), layout="constrained")
    grid = figure.subplots((len(panels) + 1) // 2, min(len(panels), 2), squeeze=False, sharey=True)
    for index, axes in enumerate(grid.flat):
        if index >= len(panels):
            axes.set_visible(False)
            continue
        rows = found[panels[index]]
        values = [row["value"] for row in rows]
        gain, low, high = (
            [POINTS * number for number in numbers]
            for numbers in zip(*([row["gain"], *row["gain_interval"]] for row in rows), strict=True)
        )
        axes.fill_between(values, low, high, color=COLOURS[0], alpha=0.2, linewidth=0)
        axes.plot(values, gain, "o-", color=COLOURS[0])
        axes.axhline(0, color="#333333", linewidth=1.2)
        if panels[index] != "beta":
            axes.set_xscale("log")
            axes.set_xticks(values, [f"{value:g}" for value in values])
            axes.minorticks_off()
        axes.set_xlabel(SWEEPS[panels[index]])
        if index % 2 == 0:
            axes.set_ylabel("gain in points")
    return figure


@matplotlib.rc_context(STYLE)
def slopes(record: Record) -> Figure | None:
    """Exact change of each head against its slope."""
    values = record.values.get("screen") if record.kind == "calibrate-study" else None
    if not values:
        return None
    figure = Figure(figsize=(5.2, 4.0), layout="constrained")
    axes = figure.subplots()
    axes.plot([row["slope"] for row in values["rows"]], [row["change"] for row in values["rows"]], "o",
              color=COLOURS[0], alpha=0.7)  # fmt: skip
    axes.axhline(0, color="#333333", linewidth=1)
    axes.axvline(0, color="#333333", linewidth=1)
    rank = values["rank_correlation_log_probability"]
    words = "" if rank is None else f" (rank correlation {rank:.2f})"
    axes.set(title=f"Slope and exact change{words}", xlabel="∂ log p / ∂ gate", ylabel="change of log p")
    return figure
