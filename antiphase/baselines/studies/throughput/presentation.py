"""Presentation of records of ``antiphase study throughput``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import matplotlib
from matplotlib.figure import Figure
from matplotlib.ticker import NullLocator

from antiphase.records import Record
from antiphase.report.benchmarks import ratio_text
from antiphase.report.plots import STYLE
from antiphase.report.tables import Column, Table

if TYPE_CHECKING:
    pass
from antiphase.baselines.studies.style import handles, plain_logarithm, style_of
from antiphase.report.presentation import Drawing, Presentation


def speeds(record: Record) -> Table | None:
    """Training tokens per second of each model by sequence length."""
    lengths = sorted({row["length"] for row in record.values["speeds"]})
    known = {(row["model"], row["length"]): row["tokens_per_second"] for row in record.values["speeds"]}
    rows = [[name, *(f"{known[name, length] / 1000:.1f}" for length in lengths)] for name in record.values["models"]]
    threads = record.environment.get("threads")
    note = (
        f"Median over paired rounds of a step on {record.config['tokens']:,} tokens: forward, backward, Adam; "
        f"{threads} thread{'' if threads == 1 else 's'}."
    )
    columns = [Column("Model"), *(Column(f"{length:,}", "number") for length in lengths)]
    title = "Thousand training tokens per second by sequence length"
    return Table(title=title, columns=columns, rows=rows, note=note, is_matrix=True)


def speed_ratios(record: Record) -> Table | None:
    """Time of each model relative to the baseline's."""
    if not record.values["rows"]:
        return None
    lengths = sorted({row["length"] for row in record.values["rows"]})
    known = {(row["subject"], row["length"]): row for row in record.values["rows"]}
    names = [name for name in record.values["models"] if name != record.values["baseline"]]
    return Table(
        title=f"Time against the {record.values['baseline']}",
        columns=[Column("Model"), *(Column(f"{length:,}", "number") for length in lengths)],
        rows=[[name, *(f"{known[name, length]['ratio']:.2f}" for length in lengths)] for name in names],
        note="Median over paired rounds; below 1 the model is faster.",
        is_matrix=True,
    )


def speed_details(record: Record) -> Table | None:
    """All timing results."""
    ratios = {(row["subject"], row["length"]): ratio_text(row) for row in record.values["rows"]}
    rows = [
        [
            row["model"], record.values["parameters"][row["model"]], row["length"], row["tokens_per_second"],
            f"{row['quartiles'][0]:,.0f}–{row['quartiles'][1]:,.0f}", 1000 * row["seconds"],
            ratios.get((row["model"], row["length"])), row["rounds"],
        ]
        for row in record.values["speeds"]
    ]  # fmt: skip
    columns = [
        Column("Model"), Column("Parameters", "integer"), Column("Tokens of a sequence", "integer"),
        Column("Tokens per second", "integer"), Column("Quartiles", "number"), Column("Step, ms", "number"),
        Column(f"Time against the {record.values['baseline']}", "number"),
        Column("Rounds", "integer"),
    ]  # fmt: skip
    return Table(title="Training speed in full", columns=columns, rows=rows)


@matplotlib.rc_context(STYLE)
def speed_by_length(record: Record) -> Figure | None:
    """Training tokens per second by sequence length, and each model's time relative to the baseline's."""
    models, baseline = record.values["models"], record.values["baseline"]
    drawn = {"Training speed": record.values["speeds"]}
    if record.values["rows"]:
        drawn[f"Time against the {baseline}"] = record.values["rows"]
    figure = Figure(figsize=(5.75 * len(drawn), 4.9), layout="constrained")
    for axes, (title, rows) in zip(figure.subplots(1, len(drawn), squeeze=False)[0], drawn.items(), strict=True):
        is_ratio = "ratio" in rows[0]
        for name in models:
            own = sorted((row for row in rows if name in (row.get("model"), row.get("subject"))), key=_length)
            if own:
                lengths = [row["length"] for row in own]
                middle = [row["ratio" if is_ratio else "tokens_per_second"] for row in own]
                style = style_of(name)
                axes.plot(lengths, middle, markersize=5.5, linewidth=1.4, label=name, **style)
                axes.fill_between(
                    lengths, *zip(*(row["quartiles"] for row in own), strict=True), color=style["color"], alpha=0.18,
                    linewidth=0,
                )  # fmt: skip
        axes.set_xscale("log", base=2)
        axes.set_yscale("log")
        lengths = sorted({row["length"] for row in rows})
        axes.set_xticks(lengths, [f"{length:,}" for length in lengths])
        axes.xaxis.set_minor_locator(NullLocator())
        plain_logarithm(axes)
        axes.set(title=title, xlabel="tokens of a sequence", ylabel="time ratio" if is_ratio else "tokens per second")
        if is_ratio:
            axes.axhline(1.0, color=style_of(baseline)["color"], linewidth=1.4)
    figure.legend(handles=handles(models), loc="outside lower center", ncols=min(4, len(models)), handlelength=3)
    return figure


def _length(row: dict[str, Any]) -> int:
    return int(row["length"])


def _caption(record: Record) -> str:
    return (
        f"Training steps on {record.config['tokens']:,} tokens, in sequences of equal length, without padding. Medians "
        "over rounds in which the models take turns; bands are quartiles. A recurrent network reads one token after "
        "the other, whatever the length; attention sees a whole sequence at once; its price grows with the square."
    )


def _alternative(record: Record) -> str:
    longest = max(row["length"] for row in record.values["speeds"])
    ends = [
        f"{row['model']} {row['tokens_per_second']:,.0f}" for row in record.values["speeds"] if row["length"] == longest
    ]
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
