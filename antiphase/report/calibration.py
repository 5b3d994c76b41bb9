"""Records of ``antiphase calibrate`` → tables, figures and words."""

from __future__ import annotations

from typing import Any

import matplotlib
import numpy
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from antiphase.records import Record
from antiphase.report.plots import COLOURS, STYLE
from antiphase.report.presentation import Drawing, Presentation
from antiphase.report.tables import Column, Table

POINTS = 100
"""Shares are told in points of a hundred."""


def standings(record: Record) -> Table | None:
    """Each task without calibration, beside chance."""
    rows = [
        [row["task"], row["metric"], row["samples"], row["score"], row["chance"], row["above_chance"]]
        for row in record.values.get("tasks") or []
    ]
    if not rows or record.kind == "calibrate-apply":
        return None
    columns = [Column("Task"), Column("Metric"), Column("Samples", "integer"), Column("Score", "percent"),
               Column("Chance", "percent"), Column("Above chance")]  # fmt: skip
    return Table(title="Tasks without calibration", columns=columns, rows=rows,
                 note="Chance: the best of guessing, the commonest answer, the longest and the shortest.")  # fmt: skip


def search_result(record: Record) -> Table | None:
    """What the search found, judged on samples that it has not seen."""
    values = record.values
    if record.kind != "calibrate-search":
        return None
    low, high = values["held_out_gain_interval"]
    kept = ", ".join(f"{layer}: {' '.join(map(str, heads))}" for layer, heads in values["heads"].items()) or "none"
    score = "score" if record.config.get("score") == "metric" else "probability of right answers"
    rows: list[list[Any]] = [
        [f"Held-out {score} before", format_share(values["held_out_before"])],
        [f"Held-out {score} after", format_share(values["held_out_after"])],
        ["Gain, 95 % interval", f"{_signed(values['held_out_gain'])} [{_signed(low)} to {_signed(high)}]"],
        ["Heads kept (layer: heads)", kept],
        ["Evaluations", f"{values['evaluations']:,} of {values['exhaustive_evaluations']:,} ({values['method']})"],
    ]  # fmt: skip
    return Table(title="Calibration found", columns=[Column("What"), Column("Value")], rows=rows)


def applied(record: Record) -> Table | None:
    """Tasks with and without a plan."""
    if record.kind != "calibrate-apply" or not record.values.get("tasks"):
        return None
    rows = [
        [row["task"], row["metric"], row["samples"], row["left_out"], row["chance"], row["score"], row["calibrated"],
         f"{_signed(row['gain'])} [{_signed(row['gain_interval'][0])} to {_signed(row['gain_interval'][1])}]",
         f"{row['improved']} / {row['worsened']}"]
        for row in record.values["tasks"]
    ]  # fmt: skip
    columns = [Column("Task"), Column("Metric"), Column("Samples", "integer"), Column("Left out", "integer"),
               Column("Chance", "percent"), Column("Plain", "percent"), Column("Calibrated", "percent"),
               Column("Gain in points, 95 %"), Column("Better / worse")]  # fmt: skip
    note = "Left out: samples that chose the plan's heads."
    return Table(title="With and without the plan", columns=columns, rows=rows, note=note)


def continued(record: Record) -> Table | None:
    """Texts gone on with."""
    if record.kind != "calibrate-apply" or not record.values.get("texts"):
        return None
    columns = [Column("Text"), Column("Plain"), Column("Calibrated")]
    rows = [[row["text"], row["plain"], row["calibrated"]] for row in record.values["texts"]]
    return Table(title="Texts gone on with", columns=columns, rows=rows)


def effects(record: Record) -> Table | None:
    """Every setting of a study."""
    if record.kind != "calibrate-study":
        return None
    rows = [
        [row["setting"], row.get("heads"), row.get("score"), _signed(row["gain"]),
         f"{_signed(row['gain_interval'][0])} to {_signed(row['gain_interval'][1])}"]
        for listed in record.values["rows"].values()
        for row in listed
        if "gain" in row
    ]  # fmt: skip
    score = "Score" if record.config.get("score") == "metric" else "p (right)"
    columns = [Column("Setting"), Column("Heads", "integer"), Column(score, "percent"), Column("Gain in points"),
               Column("95 % interval")]  # fmt: skip
    note = "On the samples that chose no head. Without calibration: " + format_share(record.values["held_out_before"])
    return Table(title="What each setting does", columns=columns, rows=rows, note=note)


def single_heads(record: Record) -> Table | None:
    """How many heads improve, tie and worsen alone, beside what chance gives."""
    values = record.values.get("heads") if record.kind == "calibrate-study" else None
    if not values:
        return None
    rows = [[word.capitalize(), values[word], values[f"null_{word}"], values.get(f"sure_{word}")]
            for word in ("improved", "tied", "worsened")]  # fmt: skip
    columns = [Column("Calibrated alone, the score"), Column("Of the heads", "percent"), Column("By chance", "percent"),
               Column("Beyond chance (FDR 5 %)", "percent")]  # fmt: skip
    note = "By chance: with the signs of the samples' changes flipped. The paper: 76.8 % of heads improve alone."
    return Table(title="Each head alone", columns=columns, rows=rows, note=note)


def screening(record: Record) -> Table | None:
    """How well slopes foretell exact changes."""
    values = record.values.get("screen") if record.kind == "calibrate-study" else None
    if not values:
        return None
    kept, screened = (record.values["rows"][part][0]["gain"] for part in ("kept heads", "screen"))
    rows: list[list[Any]] = [
        ["Evaluations, of the exhaustive ones", format_share(values["evaluations_share"])],
        ["Rank correlation of slope and change of log p", values["rank_correlation_log_probability"]],
        ["Rank correlation of slope and change of the metric", values["rank_correlation_metric"]],
        ["Held-out gain in points, exhaustive", _signed(kept)],
        ["Held-out gain in points, screened", _signed(screened)],
    ]
    return Table(title="The gradient screen", columns=[Column("What"), Column("Value", "number")], rows=rows)


def format_share(value: float | None) -> str:
    """``0.25`` as ``25.0 %``."""
    return "–" if value is None else f"{100 * value:.1f} %"


def _signed(value: float | None) -> str:
    """A change of a share, in points."""
    return "–" if value is None else f"{POINTS * value:+.1f}"


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


HEADS = {
    "calibrated-heads": Drawing(
        draw=head_changes,
        title="Each head calibrated alone",
        caption="Change of the score in points, in a search on its part of the samples, in a study on all; grey: not "
        "tried.",
        alternative="Heatmap of layers and heads: change of the score when one head is calibrated.",
        is_raster=True,
    )
}
SEARCH = Presentation(
    introduction="Every head was calibrated alone on one part of the samples and kept if the score rose; the kept "
    "ones were then judged together on the other part. Chance alone lets many heads “improve”: read the held-out gain "
    "and its interval.",
    tables=lambda record: [standings(record), search_result(record)],
    figures=HEADS,
)
APPLY = Presentation(
    introduction="The model as it is and with the plan's heads calibrated, on the same samples.",
    tables=lambda record: [applied(record), continued(record)],
)
STUDY = Presentation(
    introduction="The experiments of the calibration paper on this model: heads were chosen on one part of the "
    "samples, and every gain is measured on the other, beside controls with random heads and random tokens.",
    tables=lambda record: [standings(record), single_heads(record), screening(record), effects(record)],
    figures={
        **HEADS,
        "calibration-effects": Drawing(
            draw=effect_rows,
            title="What each setting gains",
            caption="Dots are gains on samples that chose no head, bars paired 95 % intervals; one over zero shows "
            "nothing.",
            alternative="Gains in points with intervals, a line for each setting.",
        ),
        "calibration-sweeps": Drawing(
            draw=sweeps,
            title="Sweeps",
            caption="Gain on samples that chose no head, with its paired 95 % interval, over one setting at a time.",
            alternative="Line charts of the gain over α, β, the number of samples and the number of heads.",
        ),
        "calibration-screen": Drawing(
            draw=slopes,
            title="Slopes against exact changes",
            caption="A dot for each head: what one backward pass foretells, and what calibrating the head does.",
            alternative="Scatter plot of slopes and exact changes of the log probability of right answers.",
        ),
    },
)
