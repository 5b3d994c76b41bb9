"""Presentation of records of ``antiphase study throughput``."""

from __future__ import annotations

import matplotlib
from matplotlib.figure import Figure
from matplotlib.ticker import NullLocator

from antiphase.base.records import Record
from antiphase.lab.lineage.studies.style import handles, plain_logarithm, style_of
from antiphase.lab.lineage.studies.throughput import Throughput
from antiphase.lab.pages.benchmarks import ratio_text
from antiphase.lab.pages.plots import STYLE, legend_below
from antiphase.lab.pages.presentation import Drawing, Presentation
from antiphase.lab.pages.tables import Column, Table, table_of


def speeds(record: Record) -> Table | None:
    """Training tokens per second of each model by sequence length."""
    found = Throughput.of(record)
    known = {(one.model, one.length): one.tokens_per_second for one in found.speeds}
    rows = [[name, *(f"{known[name, length] / 1000:.1f}" for length in found.lengths)] for name in found.models]
    threads = record.environment.get("threads")
    note = (
        f"Median over paired rounds of a step on at most {record.config['tokens']:,} tokens: forward, backward, Adam; "
        f"{threads} thread{'' if threads == 1 else 's'}."
    )
    columns = [Column("Model"), *(Column(f"{length:,}", "number") for length in found.lengths)]
    title = "Thousand training tokens per second by sequence length"
    return Table(title=title, columns=columns, rows=rows, note=note, is_matrix=True)


@Throughput.from_record
def speed_ratios(found: Throughput) -> Table | None:
    """Time of each model relative to the baseline's."""
    if not found.rows:
        return None
    known = {(row.subject, row.length): row.ratio for row in found.rows}
    names = [name for name in found.models if name != found.baseline]
    return Table(
        title=f"Time against the {found.baseline}",
        columns=[Column("Model"), *(Column(f"{length:,}", "number") for length in found.lengths)],
        rows=[[name, *(f"{known[name, length]:.2f}" for length in found.lengths)] for name in names],
        note="Median over paired rounds; below 1 the model is faster.",
        is_matrix=True,
    )


@Throughput.from_record
def speed_details(found: Throughput) -> Table | None:
    """All timing results."""
    ratios = {(row.subject, row.length): ratio_text(vars(row)) for row in found.rows}
    rows = [
        [
            one.model, found.parameters[one.model], one.length, one.tokens_per_second,
            f"{one.quartiles[0]:,.0f}–{one.quartiles[1]:,.0f}", 1000 * one.seconds,
            ratios.get((one.model, one.length)), one.rounds,
        ]
        for one in found.speeds
    ]  # fmt: skip
    columns = [
        Column("Model"), Column("Parameters", "integer"), Column("Tokens of a sequence", "integer"),
        Column("Tokens per second", "integer"), Column("Quartiles", "number"), Column("Step, ms", "number"),
        Column(f"Time against the {found.baseline}", "number"),
        Column("Rounds", "integer"),
    ]  # fmt: skip
    return table_of("Training speed in full", columns, rows)


@Throughput.from_record
@matplotlib.rc_context(STYLE)
def speed_by_length(found: Throughput) -> Figure | None:
    """Training tokens per second by sequence length, and each model's time relative to the baseline's."""
    speeds = [(one.model, one.length, one.tokens_per_second, one.quartiles) for one in found.speeds]
    ratios = [(row.subject, row.length, row.ratio, row.quartiles) for row in found.rows]
    panels = [("Training speed", "tokens per second", speeds)]
    panels += [(f"Time against the {found.baseline}", "time ratio", ratios)] if ratios else []
    figure = Figure(figsize=(5.75 * len(panels), 4.9), layout="constrained")
    for axes, (title, words, rows) in zip(figure.subplots(1, len(panels), squeeze=False)[0], panels, strict=True):
        for name in found.models:
            own = sorted(row[1:] for row in rows if row[0] == name)
            if own:
                lengths, middle, quartiles = zip(*own, strict=True)
                style = style_of(name)
                axes.plot(lengths, middle, markersize=5.5, linewidth=1.4, label=name, **style)
                axes.fill_between(
                    lengths, *zip(*quartiles, strict=True), color=style["color"], alpha=0.18, linewidth=0
                )  # fmt: skip
        axes.set_xscale("log", base=2)
        axes.set_yscale("log")
        axes.set_xticks(found.lengths, [f"{length:,}" for length in found.lengths])
        axes.xaxis.set_minor_locator(NullLocator())
        plain_logarithm(axes)
        axes.set(title=title, xlabel="tokens of a sequence", ylabel=words)
        if rows is ratios:
            axes.axhline(1.0, color=style_of(found.baseline)["color"], linewidth=1.4)
    legend_below(figure, min(4, len(found.models)), handles(found.models))
    return figure


def _caption(record: Record) -> str:
    return (
        f"Training steps on at most {record.config['tokens']:,} tokens, in sequences of equal length, without padding. "
        "Medians over rounds in which the models take turns; bands are quartiles. A recurrent network reads one token "
        "after the other, whatever the length; attention sees a sequence at once; its price grows with the square."
    )


def _alternative(record: Record) -> str:
    found = Throughput.of(record)
    longest = found.lengths[-1]
    ends = [f"{one.model} {one.tokens_per_second:,.0f}" for one in found.speeds if one.length == longest]
    return f"Line charts over sequence length. Tokens per second at {longest:,}: {', '.join(ends)}."


PRESENTATION = Presentation(
    introduction="Training steps of models of one width, from recurrent networks to differential attention, on the "
    "same number of tokens in sequences of growing length.",
    tables=lambda record: [speeds(record), speed_ratios(record)],
    figures={
        "study-throughput": Drawing(
            draw=speed_by_length, title="Training speed by sequence length", caption=_caption, alternative=_alternative
        )
    },
    details=lambda record: [speed_details(record)],
)
