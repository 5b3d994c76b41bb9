"""How records of ``antiphase calibrate confirm`` are shown."""

from __future__ import annotations

import re
from statistics import fmean

import matplotlib
from matplotlib.figure import Figure

from antiphase.lab.pages.plots import COLOURS, STYLE
from antiphase.lab.pages.presentation import Drawing, Presentation
from antiphase.lab.pages.tables import Column, Table
from antiphase.lab.studies.calibrate.confirm import Confirm
from antiphase.lab.studies.calibrate.presentation import (
    POINTS,
    head_changes,
    heads_drawing,
    measures_table,
    next_command,
    signed,
    signed_interval,
    standings,
)


@Confirm.from_record
def outcomes(found: Confirm) -> Table:
    """The primary measure and the secondary ones."""
    rows = [
        [f"{row.measure}{' (primary)' if row is found.primary else ''}", row.task or "all", row.samples, row.plain,
         row.calibrated, f"{POINTS * row.gain:+.2f} [{signed_interval(row.gain_interval)}]",
         "–" if row.better is None else f"{row.better} / {row.worse}", row.p if row is found.primary else None]
        for row in (found.primary, *found.secondary)
    ]  # fmt: skip
    columns = [Column("Measure"), Column("Task"), Column("Samples", "integer"), Column("Plain", "percent"),
               Column("Calibrated", "percent"), Column("Gain in points, 95 %"), Column("Better / worse"),
               Column("p", "number")]  # fmt: skip
    return Table(title="What the chosen heads gain", columns=columns, rows=rows)


@Confirm.from_record
def likelihood(found: Confirm) -> Table | None:
    """What the score that chooses does."""
    if not found.likelihood:
        return None
    words = {"kept heads": "change with the kept heads, on samples that judge, nats",
             "a head alone": "change with one head alone, mean over heads, on samples that choose, nats",
             "share that gains": "share of heads whose change alone is above 0"}  # fmt: skip
    rows = []
    for row in found.likelihood:
        spell = (lambda value: f"{POINTS * value:.1f} %") if row.of == "share that gains" else "{:+.5f}".format
        interval = " to ".join(map(spell, row.interval)) if row.interval else "–"
        rows.append([words[row.of], row.samples, spell(row.value), interval])
    columns = [Column("What"), Column("Samples", "integer"), Column("Value"), Column("95 % over samples")]
    return Table(title="Log probability of right labels after mean-centring", columns=columns, rows=rows)


@Confirm.from_record
def plain(found: Confirm) -> Table | None:
    """Each task without calibration, beside chance."""
    return standings(found.tasks)


@Confirm.from_record
def measures(found: Confirm) -> Table | None:
    """Whether more than the labels' prior moved."""
    return measures_table(found.tasks, found.measures, found.measures_calibrated)


@Confirm.from_record
def acting(found: Confirm) -> Table | None:
    """How often calibration changes anything."""
    if not found.acting:
        return None
    columns = [Column("Task"), Column("Prompts", "integer"), Column("Maps with a sink", "percent"),
               Column("with one that N / α queries see", "percent")]  # fmt: skip
    rows = [[row.task, row.prompts, row.any_sink, row.seen_by_enough] for row in found.acting]
    note = (
        "Of the tried heads' maps, on the prompts that choose heads. A sink is a token beside the first that gets more "
        "than α / N of the attention of the queries that see it. Calibration changes no map without one; few queries "
        "see a token near the end, which can get as much by chance. In short texts α / N is large, and few "
        "tokens reach it."
    )
    return Table(title="Where calibration acts", columns=columns, rows=rows, note=note)


def grouped(found: Confirm) -> dict[str, list[float]]:
    """Gains by setting, draws together."""
    groups: dict[str, list[float]] = {}
    for row in found.controls:
        groups.setdefault(re.sub(r" \d+$", "", row.setting), []).append(row.gain)
    return groups


@Confirm.from_record
def controls(found: Confirm) -> Table | None:
    """What the gain must be compared with."""
    if not found.controls:
        return None
    rows = [[words, len(gains), signed(fmean(gains)), f"{signed(min(gains))} to {signed(max(gains))}"]
            for words, gains in grouped(found).items()]  # fmt: skip
    columns = [Column("Setting"), Column("Draws", "integer"), Column("Mean gain in points"), Column("Range")]
    note = (f"Mean-centred accuracy of {found.control_samples:,} samples. Random heads gain as much as the kept ones "
            f"with p = {found.p_random_heads:.3g}.")  # fmt: skip
    return Table(title="Controls", columns=columns, rows=rows, note=note)


@Confirm.from_record
@matplotlib.rc_context(STYLE)
def control_dots(found: Confirm) -> Figure | None:
    """The gain of every control, a dot for each draw."""
    groups = grouped(found)
    if not groups:
        return None
    figure = Figure(figsize=(7.6, 1.3 + 0.36 * len(groups)), layout="constrained")
    axes = figure.subplots()
    for place, gains in enumerate(groups.values()):
        axes.plot([POINTS * gain for gain in gains], [place] * len(gains), "o", alpha=0.6, color=COLOURS[place > 0])
    axes.axvline(0, color="#333333", linewidth=1.2)
    axes.set_yticks(range(len(groups)), list(groups))
    axes.invert_yaxis()
    axes.set(title=f"Gain on {found.control_samples:,} samples that chose no head",
             xlabel="points of mean-centred accuracy")  # fmt: skip
    axes.grid(visible=False, axis="y")
    return figure


@Confirm.from_record
def heads_alone(found: Confirm) -> Figure | None:
    """Change of the score that chooses, by layer and head."""
    changes = {(row.layer, row.head): row.change for row in found.tried}
    return head_changes(changes, unit="change of the log probability, nats", factor=1)


PRESENTATION = Presentation(
    introduction="A confirmatory study: what is measured was written down before, heads were chosen on one part of the "
    "samples, and every gain is measured on the other. The primary measure does not change when a model merely "
    "favours another label.",
    tables=lambda record: [table(record) for table in (outcomes, likelihood, plain, measures, controls, acting)],
    finding=lambda record: Confirm.of(record).verdict,
    closing=lambda record, output: next_command(record, output, "study"),
    figures={
        "confirm-controls": Drawing(
            draw=control_dots,
            title="The chosen heads beside controls",
            caption="A dot for each draw: as many random heads, as many random tokens in the place of sinks, the first "
            "token alone, weight moved to the sinks, all tried heads.",
            alternative="Dot plot of gains in points, a line for each setting.",
        ),
        **heads_drawing(heads_alone, "Change of the score that chooses, on the samples that choose; grey: not tried."),
    },
)
