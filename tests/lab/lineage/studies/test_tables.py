"""Tables and figures of the studies: the numbers of the record, every model told apart, and only of such records."""

import math

import numpy
import pytest

from antiphase.base.records import Record
from antiphase.lab.lineage.studies.dependency.presentation import accuracy_details
from antiphase.lab.lineage.studies.style import style_of
from antiphase.lab.lineage.studies.throughput.presentation import speed_details
from antiphase.lab.pages import figures, summary
from antiphase.lab.pages.html import write_report

MODELS = ["rnn", "birnn", "lstm", "bilstm", "cnn", "transformer", "differential", "differential_v2"]


@pytest.fixture
def dependency():
    def row(model, trained, distance):
        accuracy = 0.5 if not trained else 1 - 0.001 * distance - 0.05 * MODELS.index(model)
        return {
            "model": model, "trained": trained, "distance": distance, "held_out": distance in (12, 64), "seeds": 2,
            "accuracy": accuracy, "interval": [accuracy - 0.4, accuracy + 0.3], "interval_is": "Student over seeds",
            "misled": {"accuracy": accuracy / 2, "interval": None},
        }  # fmt: skip

    rows = [row(model, trained, d) for model in MODELS for trained in (False, True) for d in (4, 12, 24, 64)]
    runs = [
        {"model": model, "seed": 0, "parameters": 12345, "development_accuracy": 0.75, "best_epoch": 3,
         "seconds": 4.4, "curve": []}
        for model in MODELS
    ]  # fmt: skip
    values = {"guess_rate": 0.5, "models": MODELS, "summary": rows, "rows": [], "runs": runs,
              "trained_distances": [4, 24], "shortcuts": []}  # fmt: skip
    return Record(kind="study-dependency", values=values, seeds=[0, 1])


@pytest.fixture
def throughput():
    speeds = [
        {"model": model, "length": length, "seconds": 0.5, "tokens_per_second": 8192 / place,
         "quartiles": [8000 / place, 8400 / place], "rounds": 5}
        for place, model in enumerate(("lstm", "transformer"), start=1)
        for length in (32, 128)
    ]  # fmt: skip
    rows = [
        {"subject": "lstm", "baseline": "transformer", "length": length, "ratio": 0.5, "quartiles": [0.4, 0.7],
         "rounds": 5, "subject_seconds": 0.5, "baseline_seconds": 1.0}
        for length in (32, 128)
    ]  # fmt: skip
    values = {"models": ["lstm", "transformer"], "baseline": "transformer", "speeds": speeds, "rows": rows,
              "parameters": {"lstm": 1000, "transformer": 2000}}  # fmt: skip
    return Record(
        kind="study-throughput", values=values, config={"tokens": 4096}, seeds=[0], environment={"threads": 2}
    )


@pytest.fixture
def gradients():
    forms = [("transformer", place, norm) for norm in ("layer_norm", "rms_norm") for place in ("pre", "post")]
    rows = [
        {"model": model, "place": place, "norm": norm, "seed": seed, "step": step, "loss": 0.7 - step / 1000,
         "gradient_norms": [1.0, 2.0, 3.0, (4.0 if place == "post" else 0.5) * (1, 4)[seed]]}
        for model, place, norm in [("rnn", None, None), *forms]
        for seed in (0, 1)
        for step in (0, 10)
    ]  # fmt: skip
    values = {"models": ["rnn", "transformer"], "layers": 4, "rows": rows}
    return Record(kind="study-gradients", values=values, seeds=[0, 1])


def test_accuracy_stands_by_distance_and_held_out_lengths_are_marked(dependency):
    (table,) = summary.main_tables(dependency)
    assert [column.name for column in table.columns] == ["Model", "4", "12*", "24", "64*"]
    assert table.text()[1] == ["birnn", "95", "94", "93", "89"]
    assert "Guess: 50 %, untrained models 50 to 50 %" in table.note
    whole = accuracy_details(dependency)
    assert len(whole.rows) == 64
    assert whole.text()[4] == ["rnn", "trained", "4", "yes", "99.6 %", "59.6–129.6", "49.8 %", "–"]


def test_the_figure_of_distances_shows_every_model_and_which_lengths_were_trained(dependency):
    panels = figures.figures_of(dependency)["study-dependency"].axes
    assert len(panels) == 2
    marks = [one for one in panels[0].lines if one.get_marker() not in (None, "None") and len(one.get_xdata()) == 1]
    assert len(marks) == 4 * len(MODELS)
    hollow = [one for one in marks if one.get_markerfacecolor() == "white"]
    assert {round(float(one.get_xdata()[0])) for one in hollow} <= {11, 12, 13, 61, 62, 63, 64, 65, 66, 67}
    assert len(hollow) == 2 * len(MODELS)
    bars = [segment for part in panels[0].collections for segment in part.get_segments()]
    assert len(bars) == 4 * len(MODELS)
    assert max(point[1] for bar in bars for point in bar) == 1.0


def test_a_mean_of_seeds_that_learned_and_seeds_that_did_not_is_no_point(dependency):
    summary_row = next(row for row in dependency.values["summary"] if row["trained"])
    summary_row["learned"] = [1, 2]
    score = {"samples": 400, "correct": 0, "interval": [0.0, 1.0]}
    dependency.values["rows"] = [
        {**score, "model": summary_row["model"], "distance": summary_row["distance"], "trained": trained, "seed": seed,
         "accuracy": accuracy, "misled": {**score, "accuracy": 0.3}}
        for trained, accuracies in ((True, (0.42, 0.97)), (False, (0.5, 0.5)))
        for seed, accuracy in enumerate(accuracies)
    ]  # fmt: skip
    panel = figures.figures_of(dependency)["study-dependency"].axes[0]
    lines = {one.get_label(): list(one.get_ydata()) for one in panel.lines}
    assert sum(math.isnan(value) for value in lines[summary_row["model"]]) == 1
    assert [0.42, 0.97] in [list(one.get_ydata()) for one in panel.lines]  # its seeds
    assert [0.5, 0.5] not in [list(one.get_ydata()) for one in panel.lines if one.get_marker() != "None"]  # untrained
    assert panel.get_ylim()[0] < 0.3


def test_no_two_models_look_alike():
    looks = [style_of(name) for name in MODELS]
    assert len({look["color"] for look in looks}) == len({look["marker"] for look in looks}) == len(MODELS)


def test_speeds_and_ratios_are_those_of_the_record(throughput):
    speeds, ratios = summary.main_tables(throughput)
    assert speeds.text() == [["lstm", "8.2", "8.2"], ["transformer", "4.1", "4.1"]]
    assert "4,096 tokens" in speeds.note
    assert "2 threads" in speeds.note
    assert ratios.text() == [["lstm", "0.50", "0.50"]]
    assert [row[6] for row in speed_details(throughput).text()] == ["0.50 [0.40–0.70]"] * 2 + ["–"] * 2
    speed, ratio = figures.figures_of(throughput)["study-throughput"].axes
    assert [list(one.get_ydata()) for one in speed.lines] == [[8192, 8192], [4096, 4096]]
    assert list(ratio.lines[0].get_ydata()) == [0.5, 0.5]
    throughput.values["rows"] = []  # one model alone
    assert len(summary.main_tables(throughput)) == 1
    assert len(figures.figures_of(throughput)["study-throughput"].axes) == 1


def test_gradients_have_a_row_for_each_norm_and_a_column_for_each_step(gradients):
    (table,) = summary.main_tables(gradients)
    assert [column.name for column in table.columns][3:] == ["Step 0", "Step 10", "Loss"]
    assert table.text()[0] == ["rnn", "–", "–", "1", "1", "0.690"]  # geometric mean of 0.5 and 2
    assert table.text()[2] == ["transformer", "post", "layer norm", "8", "8", "0.690"]
    axes = figures.figures_of(gradients)["study-gradients"].axes
    assert [one.get_title() for one in axes] == [
        f"{kind}, {when}"
        for kind in ("layer norm", "rms norm", "no norms")
        for when in ("at the start", "after 10 steps")
    ]
    (pre, post), (none,) = axes[0].lines, axes[4].lines
    numpy.testing.assert_allclose(pre.get_ydata(), [1, 2, 3, 1])
    assert (pre.get_linestyle(), post.get_linestyle()) == ("-", "--")
    assert math.isclose(none.get_ydata()[3], 1.0)


@pytest.mark.slow
def test_pages_carry_the_studies(dependency, throughput, gradients, tmp_path):
    page = write_report([dependency, throughput, gradients], tmp_path / "page.html").read_text()
    for words in ("Accuracy by dependency length in full", "Runs of the study", "Training speed in full",
                  "Gradient norms by layer", "record-1-study-dependency", "record-2-study-throughput",
                  "record-3-study-gradients"):  # fmt: skip
        assert words in page
    assert "mathdefault" not in page
