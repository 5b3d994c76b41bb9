"""Presentation of records of ``antiphase classify``."""

from __future__ import annotations

from antiphase.base.records import Record
from antiphase.lab.lineage.commands.classify import Classify, figures, tables
from antiphase.lab.pages.presentation import Drawing, Presentation
from antiphase.lab.pages.tables import Table


def _accuracies(record: Record) -> str:
    return ", ".join(f"{row.model} {100 * row.accuracy:.1f} %" for row in Classify.of(record).models)


@Classify.from_record
def answers(found: Classify) -> Table | None:
    """What each model said of the first texts."""
    return tables.outputs("Answers", ((run.model, run.shown) for run in found.runs), seed=found.runs[0].seed)


PRESENTATION = Presentation(
    introduction="Text classifiers, each trained on one part, stopped by a second and judged once on a third. Where "
    "intervals overlap, the order may be chance.",
    tables=lambda record: [
        tables.data(record),
        tables.models(record),
        answers(record),
        *(tables.confusions(record) or []),
    ],
    figures={
        "classifier-epochs": Drawing(
            draw=figures.epochs,
            title="Training of the classifiers",
            caption="A line for each run. The dot is the epoch whose weights are kept; the test part has no say in it. "
            "Where the training loss falls and the other rises, a model learns its texts by heart.",
            alternative=lambda record: (
                "Line charts of development accuracy and of losses over epochs. On the test "
                f"part: {_accuracies(record)}."
            ),
        ),
        "classifier-confusion": Drawing(
            draw=figures.confusions,
            title="Which labels are taken for which",
            caption="Colour is the share of a right label's texts, numbers are counts over all runs.",
            alternative=lambda record: (
                f"Heat maps of right against predicted labels. Test accuracy: {_accuracies(record)}."
            ),
            is_raster=True,
        ),
    },
    details=lambda record: [tables.model_details(record), tables.runs(record)],
    closing=lambda record, output: f"model:  the best run, {Classify.of(record).best}, is copied to --output",
)
