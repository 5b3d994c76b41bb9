"""Records of ``antiphase reproduce`` → tables, the figure of all claims, and words."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import matplotlib
from matplotlib.figure import Figure

from antiphase.outcomes import NOT_SEEN
from antiphase.records import Record
from antiphase.report.plots import STYLE
from antiphase.report.presentation import Drawing, Presentation
from antiphase.report.tables import Column, Table, format_value, table_of
from antiphase.studies.reproduce import Judgement, Reproduction

COLOURS = {
    "reproduced": "#0072B2", "contradicted": "#D55E00", NOT_SEEN: "#D55E00", "inconclusive": "#6e7781",
    "not testable": "#afb8c1", "no verdict": "#afb8c1",
}  # fmt: skip


def claims(record: Record) -> Table | None:
    """Each claim with both arms' means or counts, the paired difference, the verdict, and that by Holm's correction."""
    listed = claims_of(record)
    rows = [[one.claim, *_numbers(one), one.verdict] for one in listed]
    columns = [Column("Claim"), Column("Softmax → differential"), Column("Difference, 95 %"), Column("Verdict")]
    if any(one.verdict_holm is not None for one in listed):  # older records keep no p
        for cells, one in zip(rows, listed, strict=True):
            corrected = None if one.p_holm is None else one.verdict_holm
            cells += [format_value(one.p), format_value(one.p_holm), corrected]
        columns += [Column("p", "number"), Column("p by Holm", "number"), Column("Verdict under Holm")]
    seeds = f"{len(record.seeds)} paired seed{'s' * (len(record.seeds) != 1)}"
    given = sum(one.p is not None for one in listed)
    note = (
        f"Means over {seeds}, or over those of them that learned alike; where models either learned or did not, the "
        "seeds that learned. A verdict takes five seeds, and an interval that excludes 0. A claim can be contradicted "
        "only at the paper's scale."
    )
    if given:
        note += (
            f" {given} claims were tested: of twenty without any difference, chance would give about one a verdict; "
            "Holm's correction allows for that."
        )
    if any(one.values is None and one.difference is not None for one in listed):
        note += (
            " An older record: intervals cover seeds alone, p is not kept, and of accuracies it is not told whether "
            "models either learned or did not, so the differences of seeds stand in the place of an interval."
        )
    if (record.config.get("registered") or {}).get("sha256") is None:
        note += " What is claimed was not written down before the run."
    return table_of("The paper's claims", columns, rows, note)


def _numbers(one: Judgement) -> list[str | None]:
    """Both arms, and their difference."""
    if one.learned:
        counts = [f"{count} of {seeds}" for count, seeds in (one.learned[arm] for arm in ("softmax", "differential"))]
        return [f"learned: {' → '.join(counts)} seeds", "–"]
    if one.difference is None:
        return ["–", "–"]
    return [f"{one.spoken(one.softmax)} → {one.spoken(one.differential)}", _difference(one, one.difference)]


def _difference(one: Judgement, difference: float) -> str:
    shown = one.spoken(difference, signed=True)
    if one.floor is not None and one.values is None:  # an older record, of an accuracy
        seeds = ", ".join(one.spoken(value, signed=True) for value in one.differences or [])
        return f"{shown} {one.unit}; by seed {seeds}"
    if one.interval is None:
        return f"{shown} {one.unit}".strip()
    low, high = (one.spoken(value, signed=True) for value in one.interval)
    return f"{shown} [{low} to {high}] {one.unit}".strip()


def published(record: Record) -> Table | None:
    """What each claim rests on here and in the paper, with its numbers, and why there is no verdict."""
    rows = [
        [one.claim, one.measured or "–", f"{one.source}: {one.paper}", one.reason or "–"] for one in claims_of(record)
    ]
    columns = [Column("Claim"), Column("Measured here"), Column("In the paper, softmax → differential"),
               Column("Why no verdict, and what was left out")]  # fmt: skip
    note = "Ye et al., 2410.05258: models of 0.8B to 13B parameters, most of them of 3B. "
    found = Reproduction.read(record)
    if found and (models := found.models):
        counts = [f"{models.parameters[arm]:,}" for arm in ("softmax", "differential")]
        note += (
            f"Here: {' and '.join(counts)} parameters, contexts of {models.sequence_length:,} tokens, "
            f"{models.tokens / 1e6:,.1f}M tokens of training. "
        )
    if found and found.unjudged:
        note += f"Measured, but no claim is judged by it: {found.unjudged}."
    return table_of("Beside the paper", columns, rows, note)


def claims_of(record: Record) -> list[Judgement]:
    """Claims; of an older record in today's words."""
    found = Reproduction.read(record)
    if found is None or found.own_scale:
        return [] if found is None else found.claims
    return [replace(one, verdict=NOT_SEEN) if one.verdict == "contradicted" else one for one in found.claims]


@Reproduction.from_record
def equal_loss(found: Reproduction) -> Table | None:
    """Parameters and tokens for the softmax arm's loss."""
    if not found.equal_loss:
        return None
    rows = [[row.axis, row.loss, row.baseline, row.needed, row.ratio] for row in found.equal_loss]
    columns = [Column("Over"), Column("Loss", "loss"), Column("Softmax has", "integer"),
               Column("Differential needs", "integer"), Column("Ratio", "number")]  # fmt: skip
    note = (
        "By laws through four sizes of one seed, so without an interval; where the ratio exceeds 1, more than was "
        "trained, so extrapolated. The paper: 6.8B for 11B, 160B tokens for 251B."
    )
    return Table(title="Needed for equal loss", columns=columns, rows=rows, note=note)


XLABEL = "better than softmax by, in per cent of its mean\n(logarithmic beyond 10 %; bars: 95 %, dots: seeds)"


@matplotlib.rc_context(STYLE)
def claims_figure(record: Record) -> Figure | None:
    """Differential against softmax, in per cent of the softmax arm's mean and turned so that better is to the right.

    Only what was put to the test; small dots are seeds.
    """
    rows = [
        row for row in claims_of(record)
        if (row.difference is not None or row.learned) and row.softmax and row.verdict != "not testable"
    ]  # fmt: skip
    if not rows:
        return None
    figure = Figure(figsize=(9.2, 1.4 + 0.42 * len(rows)), layout="constrained")
    axes = figure.subplots()
    for place, row in enumerate(rows):
        scale = (-100 if row.lower_is_better else 100) / abs(row.softmax or 1.0)
        colour = COLOURS[row.verdict]
        # accuracies of older records may be of models that learned and models that did not: seeds alone are drawn
        if row.difference is not None and (row.floor is None or row.values is not None):
            if row.interval is not None:
                axes.plot([scale * end for end in row.interval], [place, place], color=colour, linewidth=2.5)
            axes.plot(scale * row.difference, place, "o", color=colour)
        seeds = [scale * value for value in row.differences or []]
        axes.plot(seeds, [place + 0.25] * len(seeds), ".", color=colour, markersize=4, alpha=0.7)
    for word in dict.fromkeys(row.verdict for row in rows):
        axes.plot([], [], "o-", color=COLOURS[word], label=word)
    axes.axvline(0, color="#333333", linewidth=1.2)
    axes.set_yticks(range(len(rows)), [row.claim for row in rows])
    axes.invert_yaxis()
    axes.set_xscale("symlog", linthresh=10)
    low, high = axes.get_xlim()
    ticks = [-3000, -300, -30, -5, 0, 5, 30, 300, 3000] if max(-low, high) > 10 else [-10, -5, -2, 0, 2, 5, 10]
    axes.set_xticks([tick for tick in ticks if low <= tick <= high])
    axes.set_xticklabels([f"{tick:+d} %" if tick else "0" for tick in ticks if low <= tick <= high])
    axes.set_title("Differential against softmax")
    axes.set_xlabel(XLABEL, loc="right")
    axes.grid(visible=False, axis="y")
    axes.legend(loc="best", fontsize="small")
    return figure


def _introduction(record: Record) -> str:
    found = Reproduction.read(record)
    trained = found.models.description if found and found.models else ""
    return (
        "The experiments of the Differential Transformer paper at a small scale: pairs of models that differ in their "
        "attention alone, equal in parameters, data and order of data. Each claim has the paper's numbers and a "
        "verdict by rule: reproduced or not seen where the paired 95 % interval excludes 0, contradicted only at the "
        "paper's own scale, not testable where the models cannot do what would show it. Sections of single models "
        "show the first seed. Models this small prove nothing of large ones."
    ) + (f"\nThe models: {trained}" if trained else "")


def _parts(record: Record, output: Path) -> list[Record]:
    """The records of the parts; of single models those of the first seed."""
    folders = [folder for listed in record.values.get("parts", {}).values() for folder in listed]
    seeds = [folder.rpartition("seed")[2] for folder in folders]
    return [
        Record.load(output / folder) for folder, seed in zip(folders, seeds, strict=True)
        if not seed.isdecimal() or int(seed) == record.seeds[0]
    ]  # fmt: skip


PRESENTATION = Presentation(
    further=_parts,
    introduction=_introduction,
    tables=lambda record: [claims(record), published(record), equal_loss(record)],
    figures={
        "claims": Drawing(
            draw=claims_figure,
            title="The paper's claims",
            caption="Dots are mean paired differences in per cent of the softmax arm, bars their 95 % intervals; "
            "to the right the differential arm is better. The axis is linear to 10 % and logarithmic beyond. Colours "
            "are verdicts.",
            alternative="Differences with intervals, a line for each claim.",
        )
    },
)
