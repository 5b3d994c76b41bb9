"""Records of ``antiphase classify`` as tables."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from antiphase.lab.lineage.commands.classify import ClassifierMean, ClassifierRun, Classify
from antiphase.lab.lineage.results import ShownOutput
from antiphase.lab.pages.tables import Column, Table

LARGEST_CONFUSION = 12
"""Largest number of labels for which a confusion matrix is shown as a table."""
SHOWN_ERRORS = 15


@Classify.from_record
def models(found: Classify) -> Table | None:
    """Scores, one row per model."""
    rows = [
        [row.model, row.accuracy, _interval(row.interval), row.macro_f1, row.unseen_accuracy, row.seconds]
        for row in found.models
    ]
    columns = [
        Column("Model"), Column("Accuracy", "percent"), Column("95 %", "number"), Column("Macro-F1", "percent"),
        Column("Unseen", "percent"), Column("Seconds", "integer"),
    ]  # fmt: skip
    note = (
        "On the test part; interval: Wilson's over its rows. Unseen: accuracy on the test rows whose text occurs "
        "neither in training nor in development. Seconds are of one run."
    )
    return Table(title="Test accuracy", columns=columns, rows=rows, note=note)


def outputs(title: str, runs: Iterable[tuple[str, list[ShownOutput] | None]], *, seed: int) -> Table | None:
    """The first held-out texts, with a column for each model; ``runs``: their models and outputs, first seed first."""
    by_model: dict[str, list[ShownOutput]] = {}
    for model, shown in runs:
        if shown is not None:
            by_model.setdefault(model, shown)
    if not by_model:
        return None
    rows = [
        [first.text, first.right, *(one.output for one in (first, *others))]
        for first, *others in zip(*by_model.values(), strict=True)
    ]
    columns = [Column("Text"), Column("Right"), *map(Column, by_model)]
    return Table(title=title, columns=columns, rows=rows, note=f"The first {len(rows)} held out, seed {seed}.")


@Classify.from_record
def model_details(found: Classify) -> Table | None:
    """Size and training of each model, and its difference from the first."""
    rows = [
        [row.model, row.parameters, row.seeds, row.folds, row.development_accuracy, _difference(row)]
        for row in found.models
    ]
    columns = [
        Column("Model"), Column("Parameters", "integer"), Column("Seeds", "integer"), Column("Folds", "integer"),
        Column("Development accuracy", "percent"), Column("Test accuracy against the first model, points", "number"),
    ]  # fmt: skip
    note = "Differences are paired by seed, in brackets the 95 % interval over seeds."
    return Table(title="Models of classifiers", columns=columns, rows=rows, note=note)


def _interval(bounds: Sequence[float]) -> str:
    low, high = (f"{100 * bound:.1f}" for bound in bounds)
    return f"{low}–{high}"


def _difference(row: ClassifierMean) -> str | None:
    if row.difference is None:
        return None
    bounds = row.difference_interval
    spread = f" [{100 * bounds[0]:+.1f} to {100 * bounds[1]:+.1f}]" if bounds else ""
    return f"{100 * row.difference:+.1f}{spread}"


@Classify.from_record
def runs(found: Classify) -> Table | None:
    """One row per run."""
    rows = [
        [
            run.model, run.seed, run.fold, run.test_accuracy, run.correct, run.samples, run.macro_f1,
            run.unseen.accuracy, run.unseen.samples, run.development.accuracy, run.best_epoch, run.epochs, run.seconds,
            run.folder,
        ]
        for run in found.runs
    ]  # fmt: skip
    columns = [
        Column("Model"), Column("Seed", "integer"), Column("Fold", "integer"), Column("Test accuracy", "percent"),
        Column("Right", "integer"), Column("of", "integer"), Column("Macro-F1", "percent"),
        Column("Unseen", "percent"), Column("of unseen", "integer"),
        Column("Development accuracy", "percent"), Column("Best epoch", "integer"), Column("Epochs", "integer"),
        Column("Seconds", "integer"), Column("Folder"),
    ]  # fmt: skip
    return Table(title="Runs of classifiers", columns=columns, rows=rows)


@Classify.from_record
def data(found: Classify) -> Table | None:
    """The data that was read, and its duplicates."""
    if found.data is None:
        return None
    rows: list[list[Any]] = [["Tested on", found.data.split]]
    for part, counts in (("train", found.data.train), ("test", found.data.test)):
        if counts is not None:
            rows += [
                [f"Rows of --{part}", counts.rows],
                [f"… that repeat an earlier text of --{part}", counts.repeated_rows],
                ["… texts with several labels", counts.texts_with_several_labels],
            ]
    if found.data.test_rows_in_train is not None:
        rows.append(["Test rows whose text occurs in --train", found.data.test_rows_in_train])
    else:
        first = [run for run in found.runs if run.model == found.runs[0].model]
        count = sum(run.samples for run in first)
        seen = count - sum(run.unseen.samples for run in first)
        runs = f" (rows of {len(first)} runs)" if len(first) > 1 else ""
        rows.append(["Test rows whose text was trained or stopped on", f"{seen:,} of {count:,}{runs}"])
    return Table(
        title="Texts", columns=[Column("What"), Column("Value", "integer")], rows=rows,
        note="Texts count as one where they differ in capitals and white space alone.",
    )  # fmt: skip


def confusion_of(runs: Sequence[ClassifierRun], model: str) -> list[list[int]]:
    """Counts over all runs of a model; rows are the true labels."""
    found = [run.confusion for run in runs if run.model == model]
    return [[sum(cells) for cells in zip(*rows, strict=True)] for rows in zip(*found, strict=True)]


@Classify.from_record
def confusions(found: Classify) -> list[Table]:
    """One matrix per model, or with many labels its most frequent errors."""
    if len(found.labels) > LARGEST_CONFUSION:
        errors = [_errors(found.labels, row.model, confusion_of(found.runs, row.model)) for row in found.models]
        return [table for table in errors if table.rows]
    return [
        Table(
            title=f"Confusion of {row.model}",
            columns=[Column("Right label"), *(Column(f"→ {label}", "integer") for label in found.labels)],
            rows=[
                [label, *counts]
                for label, counts in zip(found.labels, confusion_of(found.runs, row.model), strict=True)
            ],
            note="Columns are the predicted labels; counts over all runs.",
            is_matrix=True,
        )
        for row in found.models
    ]


def _errors(labels: Sequence[str], model: str, confusion: Sequence[Sequence[int]]) -> Table:
    counts = sorted(
        ((count, right, given) for right, row in enumerate(confusion) for given, count in enumerate(row)
         if given != right and count), key=lambda one: (-one[0], one[1], one[2]),
    )  # fmt: skip
    return Table(
        title=f"Most frequent errors of {model}",
        columns=[Column("Right label"), Column("Predicted"), Column("Times", "integer"),
                 Column("Of the right label", "percent")],
        rows=[
            [labels[right], labels[given], count, count / sum(confusion[right])]
            for count, right, given in counts[:SHOWN_ERRORS]
        ],
        note=f"At most {SHOWN_ERRORS} of {len(counts):,} pairs of labels that were confused, over all runs.",
    )  # fmt: skip
