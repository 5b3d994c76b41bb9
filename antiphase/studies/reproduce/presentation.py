"""Records of ``antiphase reproduce`` and of what a run takes → tables, the figure of all claims, and words."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.figure import Figure

from antiphase.outcomes import NOT_SEEN
from antiphase.records import Record
from antiphase.report.plots import STYLE
from antiphase.report.presentation import Drawing, Presentation
from antiphase.report.tables import Column, Table, format_value

COLOURS = {
    "reproduced": "#1a7f37", "contradicted": "#b3261e", NOT_SEEN: "#b3261e", "inconclusive": "#6e7781",
    "not testable": "#afb8c1", "no verdict": "#afb8c1",
}  # fmt: skip


def claims(record: Record) -> Table | None:
    """Each claim with both arms' means or counts, the paired difference, the verdict, and that by Holm's correction."""
    listed = claims_of(record)
    rows = [[row["claim"], *_numbers(row), row["verdict"]] for row in listed]
    columns = [Column("Claim"), Column("Softmax → differential"), Column("Difference, 95 %"), Column("Verdict")]
    if any("p_holm" in row for row in listed):  # older records keep no p
        for cells, row in zip(rows, listed, strict=True):
            corrected = None if row["p_holm"] is None else row["verdict_holm"]
            cells += [*(format_value(row.get(name)) for name in ("p", "p_holm")), corrected]
        columns += [Column("p", "number"), Column("p by Holm", "number"), Column("Verdict under Holm")]
    seeds = f"{len(record.seeds)} paired seed{'s' * (len(record.seeds) != 1)}"
    given = sum(row["verdict"] not in ("not testable", "no verdict") for row in listed)
    note = (
        f"Means over {seeds}, or over those of them that learned alike; where models either learned or did not, the "
        "seeds that learned. A verdict takes five seeds, and an interval that excludes 0. A claim can be contradicted "
        f"only at the paper's scale. {given} claims were tested: of twenty without any difference, chance would give "
        "about one a verdict; Holm's correction allows for that."
    )
    if any("values" not in row and row.get("difference") is not None for row in listed):
        note += (
            " An older record: intervals cover seeds alone, p is not kept, and of accuracies it is not told whether "
            "models either learned or did not, so the differences of seeds stand in the place of an interval."
        )
    if (record.config.get("registered") or {}).get("sha256") is None:
        note += " What is claimed was not written down before the run."
    return Table(title="The paper's claims", columns=columns, rows=rows, note=note) if rows else None


def _numbers(row: dict[str, Any]) -> list[str]:
    """Both arms, and their difference."""
    if learned := row.get("learned"):
        counts = [f"{count} of {seeds}" for count, seeds in (learned[arm] for arm in ("softmax", "differential"))]
        return [f"learned: {' → '.join(counts)} seeds", "–"]
    if row.get("difference") is None:
        return ["–", "–"]
    return [f"{spoken(row, row.get('softmax'))} → {spoken(row, row.get('differential'))}", _difference(row)]


def published(record: Record) -> Table | None:
    """What each claim rests on here and in the paper, with its numbers, and why there is no verdict."""
    rows = [
        [row["claim"], row.get("measured") or "–", f"{row['source']}: {row['paper']}", row.get("reason") or "–"]
        for row in claims_of(record)
    ]
    columns = [Column("Claim"), Column("Measured here"), Column("In the paper, softmax → differential"),
               Column("Why no verdict, and what was left out")]  # fmt: skip
    note = "Ye et al., 2410.05258: models of 0.8B to 13B parameters, most of them of 3B. "
    if models := record.values.get("models"):
        counts = [f"{models['parameters'][arm]:,}" for arm in ("softmax", "differential")]
        note += (
            f"Here: {' and '.join(counts)} parameters, contexts of {models['sequence_length']:,} tokens, "
            f"{models['tokens'] / 1e6:,.1f}M tokens of training. "
        )
    if unjudged := record.values.get("unjudged"):
        note += f"Measured, but no claim is judged by it: {unjudged}."
    return Table(title="Beside the paper", columns=columns, rows=rows, note=note) if rows else None


def claims_of(record: Record) -> list[dict[str, Any]]:
    """Rows of claims; of an older record in today's words."""
    listed = record.values.get("claims") or [] if record.kind == "reproduce" else []
    if record.values.get("own_scale"):
        return list(listed)
    return [row | {"verdict": NOT_SEEN} if row["verdict"] == "contradicted" else row for row in listed]


def equal_loss(record: Record) -> Table | None:
    """Parameters and tokens for the softmax arm's loss."""
    listed = record.values.get("equal_loss") if record.kind == "reproduce" else None
    if not listed:
        return None
    rows = [[row["axis"], row["loss"], row["baseline"], row["needed"], row["ratio"]] for row in listed]
    columns = [Column("Over"), Column("Loss", "loss"), Column("Softmax has", "integer"),
               Column("Differential needs", "integer"), Column("Ratio", "number")]  # fmt: skip
    note = (
        "By laws through four sizes of one seed, so without an interval; where the ratio exceeds 1, more than was "
        "trained, so extrapolated. The paper: 6.8B for 11B, 160B tokens for 251B."
    )
    return Table(title="Needed for equal loss", columns=columns, rows=rows, note=note)


def budgets(record: Record) -> Table | None:
    """What runs take."""
    if record.kind != "budget":
        return None
    rows = [
        [row["arm"], row["parameters"], row["parameters"] - row["embedding_parameters"], f"{row['tokens']:.2e}",
         f"{row['flops']:.2e}", f"{row['state_bytes'] / 2**30:,.0f} GiB",
         f"{row['activation_bytes'] / 2**30:,.1f} GiB", f"{row['days']:,.1f}"]
        for row in record.values["rows"]
    ]  # fmt: skip
    columns = [Column("Arm"), Column("Parameters", "integer"), Column("Without embeddings", "integer"),
               Column("Tokens"), Column("Operations"), Column("Weights and optimizer"),
               Column("Activations of a micro-batch"), Column("Days")]  # fmt: skip
    fleet = record.config["fleet"]
    note = (
        f"On {fleet['devices']} devices of {fleet['flops']:.1e} operations a second each. Weights, gradients "
        "and Adam in fp32, shared out over the fleet where they are sharded; activations are a lower bound."
    )
    return Table(title="What it takes", columns=columns, rows=rows, note=note)


def spoken(row: dict[str, Any], value: float | None, *, signed: bool = False) -> str:
    """A value of a claim with its digits; shares in points."""
    if value is None:
        return "–"
    text = f"{value * (100 if row['is_share'] else 1):+,.{row['digits']}f}"
    if not any(digit in text for digit in "123456789"):
        return text[1:]  # neither +0.0 nor -0.0
    return text if signed else text.removeprefix("+")


def _difference(row: dict[str, Any]) -> str:
    if row.get("difference") is None:
        return "–"
    shown = spoken(row, row["difference"], signed=True)
    if row.get("floor") is not None and "values" not in row:  # an older record, of an accuracy
        seeds = ", ".join(spoken(row, value, signed=True) for value in row.get("differences") or [])
        return f"{shown} {row['unit']}; by seed {seeds}"
    if row.get("interval") is None:
        return f"{shown} {row['unit']}".strip()
    low, high = (spoken(row, value, signed=True) for value in row["interval"])
    return f"{shown} [{low} to {high}] {row['unit']}".strip()


XLABEL = "better than softmax by, in per cent of its mean\n(logarithmic beyond 10 %; bars: 95 %, dots: seeds)"


@matplotlib.rc_context(STYLE)
def claims_figure(record: Record) -> Figure | None:
    """Differential against softmax, in per cent of the softmax arm's mean and turned so that better is to the right.

    Only what was put to the test; small dots are seeds.
    """
    rows = [
        row for row in claims_of(record)
        if (row.get("difference") is not None or row.get("learned"))
        and row.get("softmax") and row["verdict"] != "not testable"
    ]  # fmt: skip
    if not rows:
        return None
    figure = Figure(figsize=(9.2, 1.4 + 0.42 * len(rows)), layout="constrained")
    axes = figure.subplots()
    for place, row in enumerate(rows):
        scale = (-100 if row["lower_is_better"] else 100) / abs(row["softmax"])
        colour = COLOURS[row["verdict"]]
        # accuracies of older records may be of models that learned and models that did not: seeds alone are drawn
        has_mean = row.get("difference") is not None and (row.get("floor") is None or "values" in row)
        if has_mean and row["interval"] is not None:
            axes.plot([scale * end for end in row["interval"]], [place, place], color=colour, linewidth=2.5)
        if has_mean:
            axes.plot(scale * row["difference"], place, "o", color=colour)
        seeds = [scale * value for value in row.get("differences") or []]
        axes.plot(seeds, [place + 0.25] * len(seeds), ".", color=colour, markersize=4, alpha=0.7)
    for word in dict.fromkeys(row["verdict"] for row in rows):
        axes.plot([], [], "o-", color=COLOURS[word], label=word)
    axes.axvline(0, color="#333333", linewidth=1.2)
    axes.set_yticks(range(len(rows)), [row["claim"] for row in rows])
    axes.invert_yaxis()
    axes.set_xscale("symlog", linthresh=10)
    low, high = axes.get_xlim()
    ticks = [-1000, -100, -10, 0, 10, 100, 1000] if max(-low, high) > 10 else [-10, -5, -2, 0, 2, 5, 10]
    axes.set_xticks([tick for tick in ticks if low <= tick <= high])
    axes.set_xticklabels([f"{tick:+d} %" if tick else "0" for tick in ticks if low <= tick <= high])
    axes.set_title("Differential against softmax")
    axes.set_xlabel(XLABEL, loc="right")
    axes.grid(visible=False, axis="y")
    axes.legend(loc="best", fontsize="small")
    return figure


BUDGET = "What a training run takes, from its settings alone; the model was built on the meta device."


def _introduction(record: Record) -> str:
    trained = (record.values.get("models") or {}).get("description")
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
    introduction=lambda record: BUDGET if record.kind == "budget" else _introduction(record),
    tables=lambda record: [claims(record), published(record), equal_loss(record), budgets(record)],
    figures={
        "claims": Drawing(
            draw=claims_figure,
            title="The paper's claims",
            caption="Dots are mean paired differences in per cent of the softmax arm, bars 95 % intervals over seeds; "
            "to the right the differential arm is better. The axis is linear to 10 % and logarithmic beyond. Colours "
            "are verdicts.",
            alternative="Differences with intervals, a line for each claim.",
        )
    },
)
