"""Tables and figures of translators: the numbers of the record, and only of such records."""

import numpy
import pytest

from antiphase.base.records import Record
from antiphase.lab.lineage.commands.translate import presentation, tables
from antiphase.lab.pages.html import write_report


def score(exact, *, aligned):
    alignment = {
        "words": 16, "heads": [[0.25, 0.5]], "layers": [0.75], "mean_of_heads": 0.75, "best_head": 0.5, "chance": 0.1,
        "same_place": 0.2, "layer": 0, "head": [0, 1],
    }  # fmt: skip
    return {
        "exact_match": exact / 8, "exact": exact, "samples": 8, "loss": 1.25, "token_accuracy": 0.5, "ended": 0.875,
        "tokens_in_place": 0.25, "alignment": alignment if aligned else None,
    }  # fmt: skip


def record_of(*, aligned=True):
    run = {
        "model": "<b>", "seed": 0, **score(4, aligned=aligned), "parameters": 99, "epochs": 2, "seconds": 3.0,
        "untrained": score(0, aligned=aligned), "training_samples": 9, "vocabulary": 12, "folder": "<b>-seed0",
        "curve": [{"epoch": n, "step": n, "accuracy": n / 4, "loss": 3 - n, "train_loss": 2.5 - n} for n in (1, 2)],
    }  # fmt: skip
    parts = {"mean_of_heads": 0.75, "best_head": 0.5, "chance": 0.1, "same_place": 0.2}
    summary = {
        "model": "<b>", "loss": 1.25, "token_accuracy": 0.5,
        "seeds": 1, "ended": 0.875, "parameters": 99, "seconds": 3.0,
        **(parts if aligned else dict.fromkeys(parts)),
    }  # fmt: skip
    rows = [
        {**summary, "trained": False, "exact_match": 0.0, "interval": [0.0, 0.25]},
        {**summary, "trained": True, "exact_match": 0.5, "interval": [0.25, 0.75]},
    ]
    values = {
        "runs": [run], "models": rows, "baselines": [
            {"system": "copy", "samples": 8, "exact": 0, "tokens_in_place": 0.125, "exact_match": 0.0, "ended": 1.0}
        ],
        "data": {
            "generated": True, "split": "generated", "training_samples": 9, "test_samples": 8,
            "test_sources_in_train": 0,
        },
        "example": {
            "seed": 0, "source": ["a", "b"], "target": ["B", "A", "<|end|>"], "alignment": [1, 0] if aligned else None,
        },
    }  # fmt: skip
    maps = numpy.arange(12, dtype=numpy.float32).reshape(1, 2, 3, 2) - 3
    return Record(kind="translate", values=values, arrays={"alignment.<b>": maps})


def test_the_table_has_the_model_the_control_and_what_needs_no_learning():
    table = tables.models(record_of())
    assert table.text() == [
        ["<b>", "1.250", "50.0 %", "50.0 % [25.0–75.0]", "75.0 %", "50.0 %"],
        ["<b>, untrained", "1.250", "50.0 %", "0.0 % [0.0–25.0]", "75.0 %", "50.0 %"],
        ["copy", "–", "12.5 %", "0.0 %", "–", "–"],
        ["any source word", "–", "–", "–", "10.0 %", "10.0 %"],
        ["source word at the same place", "–", "–", "–", "20.0 %", "20.0 %"],
    ]
    assert tables.heads(record_of()).text() == [["<b>", "0", "0", "75.0 %", "25.0 %", "50.0 %"]]
    assert tables.runs(record_of()).text()[0][2:7] == ["4", "8", "50.0 %", "1.250", "87.5 %"]


def test_without_known_alignment_nothing_of_it_is_shown():
    table = tables.models(record_of(aligned=False))
    assert [column.name for column in table.columns] == ["Model", "Loss", "Tokens", "Exact match"]
    assert len(table.rows) == 3
    assert "ligned" not in table.note
    assert tables.heads(record_of(aligned=False)) is None


@pytest.mark.parametrize("aligned", [True, False])
def test_the_figure_of_alignment_is_the_mean_over_heads_with_rings_at_right_words(aligned):
    record = record_of(aligned=aligned)
    axes = presentation.alignment(record).axes[0]
    (image,) = axes.images
    numpy.testing.assert_allclose(image.get_array(), record.arrays["alignment.<b>"][0].mean(0))
    rings = axes.collections[0].get_offsets()
    assert rings.tolist() == ([[1, 0], [0, 1]] if aligned else [])
    assert [label.get_text() for label in axes.get_yticklabels()] == ["B", "A", "<|end|>"]


def test_the_curves_are_those_of_the_record():
    accuracy, loss = presentation.epochs(record_of()).axes
    assert accuracy.lines[0].get_ydata().tolist() == [0.25, 0.5]
    assert sorted(line.get_ydata().tolist() for line in loss.lines) == [[1.5, 0.5], [2, 1]]


def test_the_page_escapes_names(tmp_path):
    page = write_report([record_of()], tmp_path / "page.html").read_text()
    assert "<b>" not in page
    assert "&lt;b&gt;, untrained" in page
