"""Tables and figures of ablations, learning rates and cancellation: their cells and marks are the record's numbers."""

import numpy
import pytest

from antiphase.base.records import Record
from antiphase.lab.pages import figures, summary, write_report

PAPER = {
    "softmax": {"loss": 3.087, "ar_hit": 0.898, "others": 3.272},
    "differential": {"loss": 3.062, "ar_hit": 0.880, "others": 3.247},
}


def difference(*values):
    mean = sum(values) / len(values)
    return {"mean": mean, "interval": None if len(values) < 2 else [mean - 0.1, mean + 0.1], "values": list(values)}


def ablation_record(*, seeds=2, tokens=5000):
    rows = []
    for arm, against in (("softmax", None), ("differential", "softmax"), ("no-norm", "differential")):
        row = {
            "arm": arm, "about": f"what {arm} is", "against": against, "parameters": 1234, "intermediate_size": 40,
            "paper": PAPER.get(arm), "gradient_norms": [0.5, 0.02], "loss": 2.5, "ar_hit": None, "others": 2.75,
        }  # fmt: skip
        if against:
            row["loss_difference"] = difference(*[0.25, -0.125][:seeds])
            row["ar_hit_difference"], row["others_difference"] = None, difference(*[0.5, 0.25][:seeds])
        rows.append(row)
    values = {
        "rows": rows, "arms": [row["arm"] for row in rows], "left_out": {"gated": "no room <here>"},
        "slices": {"frequent": 5, "repeated": 90, "left_out": 20, "training_tokens": tokens, "hits": 700},
    }  # fmt: skip
    return Record(kind="ablations", values=values, seeds=list(range(seeds)))


def tune_record():
    rates = [
        {"arm": arm, "learning_rate": rate, "seeds": 2, "accuracy": 0.5, "accuracy_range": [0.25, 0.75], "loss": loss,
         "loss_range": [loss - 0.5, loss + 0.25], "passed": 1, "spikes": 3, "diverged": 0}
        for arm, loss in (("softmax", 2.0), ("differential", 1.5))
        for rate in (4e-3, 1e-3)
    ]  # fmt: skip
    return Record(kind="tune", values={"runs": [], "rates": rates, "chosen": {"softmax": 1e-3, "differential": 4e-3}})


def cancellation_record(*, pairs=True):
    names = ("first", "second", "difference") if pairs else ("softmax",)
    layers, heads = [], []
    for trained in (True, False):
        for layer in (0, 1, "all"):
            maps = {
                name: {"effective_keys": 3.5, "near_zero": 0.75, "noise": 0.5 if trained else 0.9, "answer": 0.1}
                for name in names
            }
            layers.append({
                "trained": trained, "layer": layer, "correlation": 0.25 if layer == 0 else None,
                "cancelled": 0.4 if pairs else None, "negative_share": 0.2 if pairs else None, "output_rms": 1.5,
                "output_to_value": 0.3, "maps": maps,
            })  # fmt: skip
        heads += [
            {"trained": trained, "layer": layer, "head": head, "output_to_value": 0.25 * (head + 1)}
            for layer in (0, 1) for head in range(3)
        ]  # fmt: skip
    whole = {"attention_type": "differential", "samples": 6, "length": 40, "layers": layers, "heads": heads}
    return Record(kind="evaluate-cancellation", values=whole)


def cells(record, title):
    (table,) = [table for table in summary.main_tables(record) if table.title == title]
    return {row[0]: row for row in table.text()}


def test_the_table_of_ablations_has_the_paper_s_numbers_beside_ours():
    rows = cells(ablation_record(), "Ablations and rivals")
    assert rows["differential"] == [
        "differential", "what differential is", "1,234", "2.500", "–", "2.750", "softmax", "+0.062",
        "-0.038 to +0.163", "3.062", "0.880", "3.247",
    ]  # fmt: skip
    assert rows["softmax"][6:9] == ["–"] * 3
    assert rows["no-norm"][9:] == ["–"] * 3
    assert cells(ablation_record(), "Differences by slice")["no-norm"] == [
        "no-norm", "differential", "–", "–", "+0.375", "+0.275 to +0.475"
    ]  # fmt: skip
    assert cells(ablation_record(seeds=1), "Ablations and rivals")["no-norm"][8] == "–"


@pytest.mark.parametrize(("tokens", "said"), [(5000, "more than 5 times (in 5,000 tokens)"), (0, "synthetic task")])
def test_the_note_says_what_was_left_out(tokens, said):
    note = summary.main_tables(ablation_record(tokens=tokens))[0].note
    assert said in note
    assert ("20 more are others" in note) == (tokens > 0)


def test_differences_are_drawn_from_the_row_that_each_departs_from():
    figure = figures.figures_of(ablation_record())["ablations"]
    assert [axes.get_title() for axes in figure.axes] == ["Loss", "Others"]
    labels = [text.get_text() for text in figure.axes[0].get_yticklabels()]
    assert labels == ["differential – softmax", "no-norm – differential"]
    marks = [
        (line.get_marker(), float(numpy.ravel(line.get_xdata())[0])) for line in figure.axes[0].lines
        if line.get_marker() in ("o", "D")
    ]  # fmt: skip
    assert marks == [("o", 0.0625), ("D", pytest.approx(3.062 - 3.087)), ("o", 0.0625)]  # no-norm has none in PAPER
    assert figures.figures_of(ablation_record(seeds=1))["ablations"] is not None


def test_gradients_are_drawn_by_layer():
    (axes,) = figures.figures_of(ablation_record())["gradient-norms"].axes
    assert [line.get_label() for line in axes.lines] == ["softmax", "differential", "no-norm"]
    assert list(axes.lines[0].get_ydata()) == [0.5, 0.02]


def test_learning_rates_are_drawn_in_order_with_their_range():
    record = tune_record()
    rows = summary.main_tables(record)[0].text()
    assert rows[0] == ["softmax", "0.004", "2", "50.0 %", "2.000", "1", "3", "no"]
    assert [row[-1] for row in rows] == ["no", "yes", "yes", "no"]
    loss, _accuracy = figures.figures_of(record)["learning-rates"].axes
    softmax = loss.containers[0]
    assert list(softmax.lines[0].get_xdata()) == [1e-3, 4e-3]
    segments = softmax.lines[2][0].get_segments()
    numpy.testing.assert_allclose(numpy.array(segments)[:, :, 1], [[1.5, 2.25]] * 2)


def test_spikes_that_were_not_counted_are_a_dash():
    record = tune_record()
    for row in record.values["rates"]:
        del row["spikes"]
    assert {row[6] for row in summary.main_tables(record)[0].text()} == {"–"}


def test_cancellation_is_shown_by_layer_and_by_map():
    record = cancellation_record()
    first, maps = summary.main_tables(record)
    assert first.columns[0].name == maps.columns[0].name == "State"  # beside models, "Model" has their names
    assert first.text()[0] == ["trained", "0", "+0.250", "40.0 %", "20.0 %", "1.5", "0.3"]
    assert first.text()[1][2] == "–"
    assert [row[:2] for row in maps.text()] == [
        [state, name] for state in ("trained", "untrained") for name in ("first", "second", "difference")
    ]
    assert maps.text()[0][2:] == ["3.5", "75.0 %", "50.0 %", "10.0 %"]
    left, middle, right = figures.figures_of(record)["cancellation"].axes
    assert [line.get_label() for line in left.lines if not line.get_label().startswith("_")] == [
        "correlation, trained", "cancelled share, trained", "correlation, untrained", "cancelled share, untrained"
    ]  # fmt: skip
    assert {line.get_label(): list(line.get_ydata()) for line in middle.lines}["first, untrained"] == [0.9, 0.9]
    assert len(right.lines[0].get_ydata()) == 6


def test_models_without_pairs_have_no_cancelled_share():
    left, middle, _ = figures.figures_of(cancellation_record(pairs=False))["cancellation"].axes
    assert not [line for line in left.lines if "cancelled" in line.get_label()]
    assert [line.get_label() for line in middle.lines] == ["softmax, trained", "softmax, untrained"]


@pytest.mark.parametrize("make", [ablation_record, tune_record, cancellation_record])
def test_each_record_has_a_page_of_its_own(make, tmp_path):
    page = write_report([make()], tmp_path / "page.html").read_text(encoding="utf-8")
    assert "have no layout of their own" not in page
    assert "no room <here>" not in page
    assert page.count("<figure") == len(figures.figures_of(make()))
