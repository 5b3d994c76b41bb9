"""Records of ``antiphase evaluate quantization`` as tables, a figure and text."""

from __future__ import annotations

import matplotlib
from matplotlib.figure import Figure

from antiphase.lab.measures.quantization import Bits, Quantization
from antiphase.lab.pages.plots import COLOURS, PERCENT, STYLE
from antiphase.lab.pages.presentation import Drawing, Presentation
from antiphase.lab.pages.tables import Column, Table, percents_text


@Quantization.from_record
def few_bits(found: Quantization) -> Table | None:
    """Loss and retrieval with quantized attention logits."""
    columns = [Column("Bits"), Column("Loss, nats per token", "loss"), Column("Retrieval", "percent"),
               Column("95 %")]  # fmt: skip
    cells = [
        ["all" if row.bits is None else str(row.bits), row.loss, row.retrieval, percents_text(row.interval)]
        for row in found.rows
    ]
    note = (
        f"One step for each {found.granularity}. Retrieval is the first question's answer; naming any "
        f"number of the context is right in {100 * found.guess_rate:.3g} %."
    )
    return Table(title="Attention logits in few bits", columns=columns, rows=cells, note=note)


@Quantization.from_record
def few_bit_weights(found: Quantization) -> Table | None:
    """Loss and retrieval with quantized weights of linear layers."""
    if not found.weights:
        return None
    whole = _whole(found)
    columns = [Column("Bits"), Column("Weights in few bits", "percent"), Column("Share a scale"),
               Column("Loss, nats per token", "loss"), Column("More than all bits", "signed"),
               Column("Retrieval", "percent"), Column("95 %")]  # fmt: skip
    cells = [
        [
            str(row.bits), row.share, ", ".join("a row" if group == 0 else str(group) for group in row.groups),
            row.loss, row.loss - whole.loss, row.retrieval, percents_text(row.interval),
        ]
        for row in found.weights
    ]  # fmt: skip
    note = "Linear layers, through torchao; embeddings, norms and λ keep all bits, and so do activations."
    return Table(title="Weights in few bits", columns=columns, rows=cells, note=note)


def _whole(found: Quantization) -> Bits:
    return next(row for row in found.rows if row.bits is None)


@Quantization.from_record
@matplotlib.rc_context(STYLE)
def loss_by_bits(found: Quantization) -> Figure | None:
    """Loss and retrieval by bits of attention logits, compared with the unquantized model."""
    few = sorted((row for row in found.rows if row.bits is not None), key=lambda row: row.bits or 0)
    whole = _whole(found)
    places = range(len(few))
    figure = Figure(figsize=(8.4, 3.6), layout="constrained")
    left, right = figure.subplots(1, 2)
    left.plot(places, [row.loss for row in few], "o-", color=COLOURS[0])
    left.axhline(whole.loss, color="#333333", linewidth=1.2, linestyle="--", label="all bits")
    left.set(title="Held-out loss", ylabel="nats per token")
    errors = [[row.retrieval - row.interval[0] for row in few], [row.interval[1] - row.retrieval for row in few]]
    right.errorbar(places, [row.retrieval for row in few], yerr=errors, fmt="o-", color=COLOURS[0], capsize=3)
    right.axhline(whole.retrieval, color="#333333", linewidth=1.2, linestyle="--", label="all bits")
    right.axhline(found.guess_rate, color="#999999", linewidth=1.2, linestyle=":", label="guess")
    right.set(title="Retrieval", ylim=(-0.03, 1.03))
    right.yaxis.set_major_formatter(PERCENT)
    for axes in (left, right):
        axes.set_xticks(places, [str(row.bits) for row in few])
        axes.set_xlabel("bits of attention logits")
        axes.legend(fontsize=9)
    return figure


PRESENTATION = Presentation(
    introduction="Attention logits were rounded to few bits before the softmax, in every map.",
    tables=lambda record: [few_bits(record), few_bit_weights(record)],
    figures={
        "quantization": Drawing(
            draw=loss_by_bits,
            title="Attention logits in few bits",
            caption="Dashed: all bits. Dotted: what naming any number of the context reaches.",
            alternative="Line charts of held-out loss and retrieval over bits.",
        )
    },
)
