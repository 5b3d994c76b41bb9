"""How records of ``antiphase calibrate study`` are shown."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.figure import Figure

from antiphase.base.records import Record
from antiphase.lab.pages.plots import COLOURS, STYLE
from antiphase.lab.pages.presentation import Drawing, Presentation
from antiphase.lab.pages.tables import Column, Table
from antiphase.lab.studies.calibrate.presentation import (
    EXACT,
    POINTS,
    RANDOM_HEADS,
    better_and_worse,
    format_share,
    head_changes,
    heads_drawing,
    judged,
    left_out_note,
    measures_table,
    next_command,
    signed,
    signed_interval,
    signed_or_none,
    spoken,
    standings,
)
from antiphase.lab.studies.calibrate.study import CalibrationStudy, Effect


def gains_of(found: CalibrationStudy) -> list[tuple[str, Effect, float]]:
    """Part, row and gain, but for what was refused."""
    return [(part, row, row.gain) for part, rows in found.rows.items() for row in rows if row.gain is not None]


def finding(record: Record) -> str:
    """What the kept heads do, and how much of it is shown."""
    found = CalibrationStudy.of(record)
    heads, count, score = found.heads, sum(map(len, found.kept.values())), spoken(found.score)
    alone = ""
    if heads is not None:
        improved, by_chance = map(format_share, (heads.improved, heads.null_improved))
        alone = f"Alone, {improved} of the heads raise the {score}, {by_chance} would by chance. "
    if not count:
        return f"{alone}No head raises the {score} on the samples that choose, so there is nothing to judge."
    gains = gains_of(found)
    gain, interval = next((gain, row.gain_interval) for part, row, gain in gains if part == "kept heads")
    random = [gain for part, row, gain in gains if part == "controls" and row.setting.startswith(RANDOM_HEADS)]
    return (
        f"{alone}{count} raise the {score} on the samples that choose; together they change it on the others by "
        f"{judged(gain, interval, random)}."
    )


def closing(record: Record, output: Path) -> str:
    """A confirmatory study, which is for classifications; of other tasks, the search that keeps a plan."""
    found = CalibrationStudy.of(record)
    return next_command(record, output, "confirm" if len(found.measures) == len(found.tasks) else "search")


@CalibrationStudy.from_record
def plain(found: CalibrationStudy) -> Table | None:
    """Each task without calibration."""
    return standings(found.tasks)


@CalibrationStudy.from_record
def measures(found: CalibrationStudy) -> Table | None:
    """Whether more than the labels' prior moved."""
    return measures_table(found.tasks, found.measures, found.measures_calibrated)


@CalibrationStudy.from_record
def effects(found: CalibrationStudy) -> Table:
    """Every setting."""
    rows = [[row.setting, row.heads, row.score, signed(gain), signed_interval(row.gain_interval),
             better_and_worse(row), row.p, signed_or_none(row.mean_centred_gain)]
            for _, row, gain in gains_of(found)]  # fmt: skip
    score = "Score" if found.score == "metric" else "p (right)"
    columns = [Column("Setting"), Column("Heads", "integer"), Column(score, "percent"), Column("Gain in points"),
               Column("95 % interval"), Column("Better / worse"), Column("p", "number"),
               Column("Mean-centred gain")]  # fmt: skip
    note = f"{EXACT} On the samples that chose no head. Without calibration: {format_share(found.held_out_before)}"
    copies = left_out_note(found.left_out)
    note += f". {copies}" if copies else ""
    return Table(title="What each setting does", columns=columns, rows=rows, note=note)


@CalibrationStudy.from_record
def single_heads(found: CalibrationStudy) -> Table | None:
    """How many heads improve, tie and worsen alone, beside what chance gives."""
    heads = found.heads
    if heads is None:
        return None
    rows = [["Improved", heads.improved, heads.null_improved, heads.sure_improved],
            ["Tied", heads.tied, heads.null_tied, None],
            ["Worsened", heads.worsened, heads.null_worsened, heads.sure_worsened]]  # fmt: skip
    columns = [Column("Calibrated alone, the score"), Column("Of the heads", "percent"), Column("By chance", "percent"),
               Column("Beyond chance (FDR 5 %)", "percent")]  # fmt: skip
    note = "By chance: with the signs of the samples' changes flipped. The paper: 76.8 % of heads improve alone."
    return Table(title="Each head alone", columns=columns, rows=rows, note=note)


@CalibrationStudy.from_record
def screening(found: CalibrationStudy) -> Table | None:
    """How well slopes predict exact changes."""
    screen = found.screen
    if screen is None:
        return None
    gains = {part: gain for part, _, gain in gains_of(found)}
    rows: list[list[Any]] = [
        ["Evaluations, of the exhaustive ones", format_share(screen.evaluations_share)],
        ["Rank correlation of slope and change of log p", screen.rank_correlation_log_probability],
        ["Rank correlation of slope and change of the metric", screen.rank_correlation_metric],
        ["Held-out gain in points, exhaustive", signed(gains["kept heads"])],
        ["Held-out gain in points, screened", signed(gains["screen"])],
    ]
    return Table(title="The gradient screen", columns=[Column("What"), Column("Value", "number")], rows=rows)


SWEEPS = {"alpha": "α (a sink receives more than α / N)", "beta": "β (left of a weight on a sink)",
          "samples": "samples of each task that chose the heads", "subsets": "best heads calibrated"}  # fmt: skip


@CalibrationStudy.from_record
def heads_alone(found: CalibrationStudy) -> Figure | None:
    """Change of the score by layer and head."""
    return head_changes({(row.layer, row.head): row.change for row in found.heads.rows} if found.heads else {})


@CalibrationStudy.from_record
@matplotlib.rc_context(STYLE)
def effect_rows(found: CalibrationStudy) -> Figure | None:
    """Held-out gain of each setting with its interval."""
    rows = [(part, row, gain) for part, row, gain in gains_of(found) if part not in SWEEPS]
    if not rows:
        return None
    parts = list(dict.fromkeys(part for part, _, _ in rows))
    figure = Figure(figsize=(8.6, 1.3 + 0.29 * len(rows)), layout="constrained")
    axes = figure.subplots()
    for place, (part, row, gain) in enumerate(rows):
        colour = COLOURS[parts.index(part) % len(COLOURS)]
        axes.plot([POINTS * end for end in row.gain_interval], [place, place], color=colour, linewidth=2)
        axes.plot(POINTS * gain, place, "o", color=colour)
    axes.axvline(0, color="#333333", linewidth=1.2)
    axes.set_yticks(range(len(rows)), [row.setting for _, row, _ in rows])
    axes.invert_yaxis()
    axes.set(title="Gain on samples that chose no head", xlabel="points, 95 % interval")
    axes.grid(visible=False, axis="y")
    return figure


@CalibrationStudy.from_record
@matplotlib.rc_context(STYLE)
def sweeps(found: CalibrationStudy) -> Figure | None:
    """Held-out gain against α, β, the number of samples and the number of heads."""
    panels = [name for name in SWEEPS if found.rows.get(name)]
    if not panels:
        return None
    figure = Figure(figsize=(3.6 * min(len(panels), 2) + 1.4, 2.9 * ((len(panels) + 1) // 2)), layout="constrained")
    grid = figure.subplots((len(panels) + 1) // 2, min(len(panels), 2), squeeze=False, sharey=True)
    for index, axes in enumerate(grid.flat):
        if index >= len(panels):
            axes.set_visible(False)
            continue
        rows = [(row.value, gain, *row.gain_interval) for part, row, gain in gains_of(found) if part == panels[index]]
        values = [row[0] for row in rows]
        gain, low, high = ([POINTS * number for number in numbers] for numbers in list(zip(*rows, strict=True))[1:])
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


@CalibrationStudy.from_record
@matplotlib.rc_context(STYLE)
def slopes(found: CalibrationStudy) -> Figure | None:
    """Exact change of each head against its slope."""
    screen = found.screen
    if screen is None:
        return None
    figure = Figure(figsize=(5.2, 4.0), layout="constrained")
    axes = figure.subplots()
    axes.plot([row.slope for row in screen.rows], [row.change for row in screen.rows], "o",
              color=COLOURS[0], alpha=0.7)  # fmt: skip
    axes.axhline(0, color="#333333", linewidth=1)
    axes.axvline(0, color="#333333", linewidth=1)
    rank = screen.rank_correlation_log_probability
    words = "" if rank is None else f" (rank correlation {rank:.2f})"
    axes.set(title=f"Slope and exact change{words}", xlabel="∂ log p / ∂ gate", ylabel="change of log p")
    return figure


PRESENTATION = Presentation(
    introduction="The experiments of the calibration paper on this model: heads were chosen on one part of the "
    "samples, and every gain is measured on the other, beside controls with random heads and random tokens.",
    tables=lambda record: [plain(record), measures(record), single_heads(record), screening(record), effects(record)],
    finding=finding,
    closing=closing,
    figures={
        **heads_drawing(heads_alone),
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
            caption="A dot for each head: what one backward pass predicts, and what calibrating the head does.",
            alternative="Scatter plot of slopes and exact changes of the log probability of right answers.",
        ),
    },
)
