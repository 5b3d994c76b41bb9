"""Records of ``antiphase evaluate document-gain`` as a table and a histogram of gains."""

from __future__ import annotations

import matplotlib
from matplotlib.figure import Figure

from antiphase.lab.measures.document_gain import DocumentGain
from antiphase.lab.pages.plots import COLOURS, STYLE, visible
from antiphase.lab.pages.presentation import Drawing, Presentation
from antiphase.lab.pages.tables import Column, Table, interval_text, percents_text, table_of


@DocumentGain.from_record
def losses(found: DocumentGain) -> Table | None:
    """Losses of the references after three kinds of documents, and the gain."""
    columns = [Column("Data"), Column("Rows", "integer"), Column("Loss: own document", "loss"),
               Column("Another one", "loss"), Column("None", "loss"), Column("Gain", "signed"), Column("Gain, 95 %"),
               Column("Rows with a gain", "percent"), Column("95 %")]  # fmt: skip
    rows = [
        [
            name, task.samples, task.own_loss, task.other_loss, task.no_loss, task.gain, interval_text(task.interval),
            task.above / task.samples, percents_text(task.above_interval),
        ]
        for name, task in found.tasks.items()
    ]  # fmt: skip
    note = (
        "Loss: mean -log p of the reference in nats per token. Gain: the loss after another document of nearly the "
        "same length minus the loss after its own. A model that ignores the document has a gain of 0; if the gains "
        "were chance, half of the rows would have one."
    )
    left_out = [f"{task.left_out} of {name}" for name, task in found.tasks.items() if task.left_out]
    if left_out:
        note += f" Too long for the model, so passed over: {', '.join(left_out)}."
    return table_of("How much a document raises the likelihood of its reference", columns, rows, note)


@DocumentGain.from_record
@matplotlib.rc_context(STYLE)
def histogram(found: DocumentGain) -> Figure | None:
    """A panel per data set with the rows' gains."""
    if not found.tasks:
        return None
    figure = Figure(figsize=(6.4, 0.6 + 2.4 * len(found.tasks)), layout="constrained")
    panels = figure.subplots(len(found.tasks), 1, squeeze=False, sharex=True)[:, 0]
    for axes, (name, task) in zip(panels, found.tasks.items(), strict=True):
        axes.hist(task.gains, bins=40, color=COLOURS[0])
        axes.axvline(0, color="#333333", linewidth=1)
        axes.axvline(task.gain, color=COLOURS[1], linewidth=1.5, label=f"mean {task.gain:+.2f}")
        axes.set(title=visible(name, 60), ylabel="rows")
        axes.legend()
    panels[-1].set_xlabel("gain, nats per token")
    return figure


PRESENTATION = Presentation(
    introduction="A grounded model finds a summary or answer likelier after the document it belongs to than after "
    "another one. This needs no judge and no generated text. It says whether the model uses its context, not whether "
    "what it writes is true.",
    tables=lambda record: [losses(record)],
    figures={
        "document-gain": Drawing(
            draw=histogram,
            title="Gain from the own document",
            caption="Loss of each row's reference after another document minus its loss after its own.",
            alternative="Histogram of gains for each data set.",
        )
    },
)
