"""Tables and figures of classifiers: the numbers of the record, and only of such records."""

import numpy
import pytest

from antiphase.base.records import Record
from antiphase.lab.lineage.commands.classify import figures, tables
from antiphase.lab.lineage.commands.predict.presentation import predictions
from antiphase.lab.pages.figures import figure_bytes
from antiphase.lab.pages.html import write_report


def run(model, seed, confusion):
    right = confusion[0][0] + confusion[1][1]
    return {
        "model": model, "seed": seed, "fold": None, "test_accuracy": right / 10, "correct": right, "samples": 10,
        "macro_f1": 0.5, "confusion": confusion,
        "unseen": {"samples": 9 - seed, "correct": 2, "accuracy": 0.25, "macro_f1": 0.5},
        "development": {"accuracy": 0.75, "samples": 4, "loss": 1.0}, "best_epoch": 1, "epochs": 2, "seconds": 3.0,
        "curve": [
            {"epoch": 1, "step": 3, "accuracy": 0.75, "loss": 1.0, "train_loss": 1.25, "best": True},
            {"epoch": 2, "step": 6, "accuracy": 0.5, "loss": 1.5, "train_loss": 0.25, "best": False},
        ],
        "training_samples": 16, "parameters": 1234, "vocabulary": 9, "words_with_vectors": None,
        "folder": f"{model}-seed{seed}",
    }  # fmt: skip


def summary(model, **fields):
    return {
        "model": model, "accuracy": 0.65, "interval": [0.31, 0.9],
        "macro_f1": 0.5, "unseen_accuracy": 0.25, "seconds": 3.0, "parameters": 1234, "seeds": 2, "folds": 1,
        "development_accuracy": 0.75, "difference": None, "difference_interval": None, **fields,
    }  # fmt: skip


@pytest.fixture
def record():
    matrices = [[[3, 2], [1, 4]], [[5, 0], [4, 1]]]
    runs = [run(model, seed, matrices[seed]) for seed in (0, 1) for model in ("cnn", "$lstm")]
    models = [summary("cnn"), summary("$lstm", difference=-0.125, difference_interval=[-0.5, 0.25])]
    counts = {"rows": 30, "texts": 28, "repeated_rows": 2, "texts_with_several_labels": 1}
    data = {"split": "held-out tenth", "train": counts, "test": None, "test_rows_in_train": None, "rows_by_label": {}}
    return Record(kind="classify", values={"labels": ["a", "<b>"], "data": data, "models": models, "runs": runs})


def test_tables_say_what_the_record_says(record):
    assert tables.models(record).text()[0] == ["cnn", "65.0 %", "31.0–90.0", "50.0 %", "25.0 %", "3"]
    assert tables.model_details(record).text()[1][-1] == "-12.5 [-50.0 to +25.0]"
    counts = ["held-out tenth", "30", "2", "1", "3 of 20 (rows of 2 runs)"]
    assert [row[1] for row in tables.data(record).text()] == counts
    assert [row[4] for row in tables.runs(record).text()] == ["7", "7", "6", "6"]


def test_confusion_is_summed_over_runs(record):
    first, _ = tables.confusions(record)
    assert first.rows == [["a", 8, 2], ["<b>", 5, 5]]
    assert [column.name for column in first.columns] == ["Right label", "→ a", "→ <b>"]


def test_of_many_labels_the_most_frequent_errors_are_named(record):
    record.values["labels"] = [str(number) for number in range(20)]
    counts = 3 * numpy.eye(20, dtype=int)
    counts[4, 7], counts[7, 4], counts[:, 19] = 5, 1, 2
    for one in record.values["runs"]:
        one["confusion"] = counts.tolist()
    first, second = tables.confusions(record)
    assert (first.title, second.title) == ("Most frequent errors of cnn", "Most frequent errors of $lstm")
    assert len(first.rows) == tables.SHOWN_ERRORS
    assert first.text()[:2] == [["4", "7", "10", "50.0 %"], ["0", "19", "4", "40.0 %"]]  # over both runs
    assert "At most 15 of 21 pairs" in first.note
    for one in record.values["runs"]:
        one["confusion"] = numpy.eye(20, dtype=int).tolist()
    assert tables.confusions(record) == []
    assert figure_bytes(figures.confusions(record), "png")


def test_figures_show_each_model_and_the_kept_epoch(record):
    axes = figures.epochs(record).axes[0]
    dots = [line for line in axes.lines if line.get_marker() == "o"]
    assert [(line.get_xdata()[0], line.get_ydata()[0]) for line in dots] == [(1, 0.75)] * 4
    assert len(axes.get_legend_handles_labels()[1]) == 2
    losses = figures.epochs(record).axes[1]
    found = {line.get_label(): list(line.get_ydata()) for line in losses.lines}
    assert found == {"_train_loss": [1.25, 0.25], "_loss": [1.0, 1.5], "_kept": [1.0]}
    assert len(losses.lines) == 4 * 3
    matrices = [axes for axes in figures.confusions(record).axes if axes.images]
    assert [axes.get_title() for axes in matrices[:2]] == ["cnn", "$lstm"]
    assert numpy.allclose(matrices[0].images[0].get_array(), [[0.8, 0.2], [0.5, 0.5]])


def test_cells_without_a_model_are_empty(record):
    record.values["models"] += [summary("rnn"), summary("lstm")]
    record.values["runs"] += [run(model, 0, [[1, 0], [0, 1]]) for model in ("rnn", "lstm")]
    found = [axes for axes in figures.confusions(record).axes if axes.get_label() != "<colorbar>"]
    assert [bool(axes.images) for axes in found] == [axes.axison for axes in found]
    assert sum(axes.axison for axes in found) == 4


def test_page_has_everything_and_escapes_labels(record, tmp_path):
    page = write_report([record], tmp_path / "page.html").read_text()
    for words in (
        "Which labels are taken for which",
        "Training of the classifiers",
        "Runs of classifiers",
        "&lt;b&gt;",
    ):
        assert words in page
    assert "<b>" not in page


def test_probabilities_of_many_labels_stand_in_one_cell():
    shares = {str(number): number / 45 for number in range(10)}
    rows = [{"text": "t", "label": "9", "probabilities": shares}]
    table = predictions(Record(kind="predict", values={"rows": rows}))
    assert table.text()[0][2].startswith("9 20.0 %, 8 17.8 %")
    assert table.text()[0][2].endswith("0 0.0 %")
