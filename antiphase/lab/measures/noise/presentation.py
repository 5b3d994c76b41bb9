"""Records of ``antiphase evaluate noise`` as tables and a figure."""

from __future__ import annotations

import matplotlib
from matplotlib.figure import Figure

from antiphase.base.records import Record
from antiphase.lab.measures.noise import Changed, Estimate, Measured, Noise
from antiphase.lab.measures.retrieval_results import OnSpan
from antiphase.lab.pages.plots import COLOURS, STYLE, legend_below, visible
from antiphase.lab.pages.presentation import Drawing, Presentation
from antiphase.lab.pages.tables import Table, columns_of, depth_text, format_value, table_of

PARTS = {"filler": "filler", "other_needles": "other facts"}
SPANS = {"answer": "answer", "other_needles": "other facts", "filler": "filler", "first_token": "first token"}
NO_NOISE = "no noise"


@Noise.from_record
def resampled(found: Noise) -> Table | None:
    """How much the log-odds of the right answer vary."""
    cells = [
        [
            *_place(row), PARTS[row.part], row.accuracy, found.guess_rate, _text(row.log_odds), _text(row.sd),
            NO_NOISE if row.ratio is None else _text(row.ratio), row.contexts,
        ]
        for row in found.resampled
    ]  # fmt: skip
    columns = columns_of(
        "Model", "", "Tokens|integer", "Depth", "Drawn again", "Right|percent", "Guess|percent", "Log-odds [95 %]",
        "sd [95 %]", "Mean / sd [95 %]", "Contexts|integer",
    )  # fmt: skip
    note = (
        "Log-odds of the right answer, log p - log(1 - p), in nats, when the filler, or all facts that are not asked "
        "for, are drawn again and nothing else moves. The sd is over draws of one context (root mean square over "
        "contexts), so the ratio says how far the answer stands above what irrelevant tokens do to it; where the mean "
        "is below zero the answer is not found, and the ratio says nothing of noise. Intervals over contexts: "
        "Student's for the mean, the jackknife's for the others."
    )
    return table_of("The answer when irrelevant tokens are drawn again", columns, cells, note)


@Noise.from_record
def changed(found: Noise) -> Table | None:
    """What happens to the answer when attention is changed."""
    cells = [
        [
            *_place(row), _change(row), "all" if row.layers is None else ", ".join(map(str, row.layers)),
            row.accuracy_before, row.accuracy, _text(row.log_probability, signed=True),
            _text(row.log_odds, signed=True),
        ]
        for row in found.changed
    ]  # fmt: skip
    columns = columns_of(
        *("Model", "", "Tokens|integer", "Depth", "Change", "In layers", "Right before|percent", "Right|percent"),
        *("Change of log p [95 %]", "Change of log-odds [95 %]"),
    )
    note = (
        "Hidden: from the tokens that predict the answer, in the layers that retrieve (in which hiding the answer "
        "alone lowers its log-probability) and in all. Second map removed: λ = 0; exchanged: the two maps of each head "
        "in each other's place; for all tokens, layer by layer and in all. Changes in nats, with Student's 95 % "
        "interval over contexts."
    )
    if one_map := sorted(
        {row.arm for row in found.allocation} - {row.arm for row in found.changed if row.part is None}
    ):
        note += f" {', '.join(one_map)}: no second map."
    return table_of("The answer when attention is changed", columns, cells, note)


def _place(row: Measured) -> list[object]:
    return [row.arm, "trained" if row.trained else "untrained", row.length, depth_text(row.depth)]


def _change(row: Changed) -> str:
    return f"second map {row.change}" if row.part is None else f"{PARTS[row.part]} hidden"


def _text(estimate: Estimate, *, signed: bool = False) -> str:
    sign = "+" if signed else ""
    text = f"{estimate.value:{sign}.2f}"
    return (
        text
        if estimate.interval is None
        else f"{text} [{' to '.join(f'{end:{sign}.2f}' for end in estimate.interval)}]"
    )


@Noise.from_record
def by_layer(found: Noise) -> Table | None:
    """Where each map of each layer of the trained models looks, and what that gives to the layer's output."""
    rows = [row for row in found.allocation if row.trained and row.layer != "all"]
    cells = [
        [
            row.arm, row.length, depth_text(row.depth), row.layer, row.map,
            *(_signed_and_given(row.spans[span]) for span in SPANS),
        ]
        for row in rows
    ]  # fmt: skip
    columns = columns_of("Model", "Tokens|integer", "Depth", "Layer", "Map", *map(str.capitalize, SPANS.values()))
    note = (
        "From the last prompt position: the signed sum of the weights, and the part of the layer's output along the "
        "whole of it. The parts of the first and the second map, which counts with -λ, add up to that of their "
        "difference. The record has the untrained models and the shares of Σ|A| too."
    )
    return table_of("Attention by layer and map", columns, cells, note)


def _signed_and_given(on: OnSpan) -> str:
    return f"{on.signed:+.2f}, {format_value(on.contribution, 'percent')}"


def _tables(record: Record) -> list[Table | None]:
    return [resampled(record), changed(record), by_layer(record)]


@Noise.from_record
@matplotlib.rc_context(STYLE)
def by_length(found: Noise) -> Figure | None:
    """Mean / sd of the right answer's log-odds by length, with intervals; dashed: untrained models."""
    rows = [(row, row.ratio) for row in found.resampled if row.depth is None and row.ratio is not None]
    if not rows:
        return None
    figure = Figure(figsize=(9.0, 4.2), layout="constrained")
    arms = list(dict.fromkeys(row.arm for row, _ in rows))
    for axes, (part, words) in zip(figure.subplots(1, 2, sharey=True), PARTS.items(), strict=True):
        for index, arm in enumerate(arms):
            for trained in (True, False):
                points = [
                    (row.length, ratio)
                    for row, ratio in rows
                    if (row.arm, row.trained, row.part) == (arm, trained, part)
                ]
                if not points:
                    continue
                errors = [
                    [abs(end - ratio.value) for end in ratio.interval or [ratio.value] * 2] for _, ratio in points
                ]
                axes.errorbar(
                    [length for length, _ in points], [ratio.value for _, ratio in points],
                    yerr=list(zip(*errors, strict=True)), fmt="o-" if trained else "o--", capsize=3,
                    color=COLOURS[index % len(COLOURS)], markerfacecolor=None if trained else "white",
                    label=f"{visible(arm)}, {'trained' if trained else 'untrained'}",
                )  # fmt: skip
        lengths = sorted({row.length for row, _ in rows})
        axes.set_xscale("log")
        axes.set_xticks(lengths, [f"{length:,}" for length in lengths])
        axes.minorticks_off()
        axes.axhline(0, color="#333333", linewidth=0.8)
        axes.set(title=f"{words.capitalize()} drawn again", xlabel="tokens", ylabel="mean / sd of the log-odds")
    legend_below(figure, 4, fontsize=9)
    return figure


_NONE = Noise(resampled=[], changed=[], allocation=[])

PRESENTATION = Presentation(
    introduction="How much the right answer changes when irrelevant tokens change, when they are hidden, and when the "
    "second map of each head is removed or exchanged with the first. Unlike shares of attention, this is fair to "
    "weights that are signed.",
    tables=_tables,
    figures={
        "noise": Drawing(
            draw=by_length,
            title="The answer against irrelevant tokens",
            caption="Mean of the right answer's log-odds over their standard deviation when irrelevant tokens are "
            "drawn again; bars are 95 % intervals over contexts, dashed lines untrained models. It also rises with "
            "accuracy, so compare models that are equally often right.",
            alternative="Line charts of mean over standard deviation by length, for filler and for other facts.",
        )
    },
    arms=lambda record: list(dict.fromkeys(row.arm for row in (Noise.read(record) or _NONE).resampled)),
)
