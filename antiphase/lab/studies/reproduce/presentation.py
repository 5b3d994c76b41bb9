"""Records of ``antiphase reproduce`` → tables, the figure of all claims, and words."""

from __future__ import annotations

from pathlib import Path

import matplotlib
from matplotlib.figure import Figure

from antiphase.base.records import Record
from antiphase.base.typed import build
from antiphase.lab.pages.plots import STYLE
from antiphase.lab.pages.presentation import Drawing, Presentation
from antiphase.lab.pages.tables import Column, Table, table_of
from antiphase.lab.studies.claims import Registration
from antiphase.lab.studies.reproduce import Judgement, Reproduction

COLOURS = {"agrees": "#0072B2", "disagrees": "#D55E00", "cannot tell": "#6e7781"}


def claims(record: Record) -> Table | None:
    """Each claim with both arms' means or counts, the difference, what could be seen, the paper's effect, the word."""
    found = Reproduction.of(record)
    rows = [
        [one.claim, *_numbers(one), None if one.interval is None else one.seeds,
         None if one.detectable is None else one.spoken(one.detectable), one.spoken(one.effect, signed=True),
         f"{one.verdict} (MDE > the paper's effect)" if one.reason.startswith("MDE") else one.verdict]
        for one in found.claims
    ]  # fmt: skip
    columns = [Column("Claim"), Column("Softmax → differential"), Column("Difference, 95 %"), Column("n", "integer"),
               Column("MDE"), Column("The paper's effect"), Column("Verdict")]  # fmt: skip
    claim = build(Registration, record.config.get("claim"), "config.claim")
    planned = "" if claim.detectable is None else f" (MDE {claim.detectable:.3f})"
    note = (
        f"The primary contrast, {claim.contrast}, was written down before the run{planned}; the others stand beside "
        "it. Means over n paired seeds with Student's interval; where models either learned or did not, the seeds "
        "that learned. MDE: the difference that is seen with a power of 80 %. A claim agrees where the interval "
        "excludes 0 on its side, and disagrees where it excludes 0 on the other, or does not reach the paper's "
        "effect (its smallest number) although the MDE is no larger."
    )
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
    ends = [one.spoken(value, signed=True) for value in one.interval or []]
    between = f"[{' to '.join(ends)}] " if ends else ""
    return f"{one.spoken(difference, signed=True)} {between}{one.unit}".strip()


def published(record: Record) -> Table | None:
    """What each claim rests on here and in the paper, with its numbers, and why there is no other word."""
    found = Reproduction.of(record)
    rows = [[one.claim, one.measured or "–", f"{one.source}: {one.paper}", one.reason or "–"] for one in found.claims]
    columns = [Column("Claim"), Column("Measured here"), Column("In the paper, softmax → differential"),
               Column("Why it cannot tell")]  # fmt: skip
    note = "Ye et al., 2410.05258: models of 0.8B to 13B parameters, most of them of 3B. "
    if models := found.models:
        counts = [f"{models.parameters[arm]:,}" for arm in ("softmax", "differential")]
        note += (
            f"Here: {' and '.join(counts)} parameters, contexts of {models.sequence_length:,} tokens, "
            f"{models.tokens / 1e6:,.1f}M tokens of training. "
        )
    if found.unjudged:
        note += f"Measured, but no claim is judged by it: {found.unjudged}."
    return table_of("Beside the paper", columns, rows, note)


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

    Only what was measured; small dots are seeds.
    """
    rows = [
        row for row in Reproduction.of(record).claims if (row.difference is not None or row.learned) and row.softmax
    ]  # fmt: skip
    if not rows:
        return None
    figure = Figure(figsize=(9.2, 1.4 + 0.42 * len(rows)), layout="constrained")
    axes = figure.subplots()
    for place, row in enumerate(rows):
        scale = (-100 if row.lower_is_better else 100) / abs(row.softmax or 1.0)
        colour = COLOURS[row.verdict]
        if row.difference is not None:
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
        "word by rule: agrees, disagrees, or cannot tell. Sections of single models show the first seed. Models this "
        "small prove nothing of large ones."
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
