"""Models that learned or did not: what page and terminal show of records."""

import io

import pytest
from rich.console import Console

from antiphase.base.records import Record
from antiphase.lab.pages import terminal, write_report
from antiphase.lab.studies.ablations.presentation import losses, slices
from antiphase.lab.studies.compare.reading import comparison_of, sentences
from antiphase.lab.studies.compare.tables import comparison, headline
from antiphase.lab.studies.reproduce import presentation as reproduction
from antiphase.lab.studies.tune import Tune
from antiphase.lab.studies.tune.presentation import end_of, threshold_of
from support.paths import ROOT

RECORDS = ROOT / "records"


@pytest.fixture
def demo():
    return Record.load(RECORDS / "demo-start-0.02.json")


@pytest.mark.slow
def test_models_that_learned_or_did_not_are_counted_everywhere(demo, tmp_path):
    output = io.StringIO()
    terminal.print_summary(demo, Console(file=output, width=250))
    page = write_report([demo], tmp_path / "page.html").read_text(encoding="utf-8")
    for words in (output.getvalue(), page):
        assert "2 of 3" in words
        assert "3 of 3" in words
    learned = "learned: softmax in 3 of 3 seeds, differential in 2 of 3 seeds"
    assert learned in output.getvalue()
    assert learned in page


def test_each_row_of_the_headline_says_what_its_numbers_are(demo):
    table = headline(comparison_of(demo))
    rows = {row[0]: row[1:] for row in table.text()}
    assert not any(name.startswith("Median") for name in rows)
    kinds = ("median", "seeds that learned", "Parameters", "Guess rate")
    assert all(any(kind in name for kind in kinds) for name in rows)
    (accuracy,) = [cells for name, cells in rows.items() if name.startswith("First-query accuracy")]
    assert accuracy == ["3 of 3 seeds [93.8–98.2]", "2 of 3 seeds [10.2–98.2]"]
    (loss,) = [cells for name, cells in rows.items() if name.startswith("Held-out loss")]
    assert loss == ["0.254 [0.246–0.318]", "0.258–0.324 and 1.692"]
    (steps,) = [cells for name, cells in rows.items() if name.startswith("Steps")]
    assert steps == ["850 [600–1,150], 3 of 3 seeds", "1,000 [750–never], 2 of 3 seeds"]


def test_numbers_in_full_have_no_mean_over_two_kinds_of_models(demo):
    table = comparison(comparison_of(demo))
    names = [column.name for column in table.columns]
    for row in table.text():
        cells = dict(zip(names, row, strict=True))
        if cells["Metric"] == "steps to 50 % accuracy" and cells["Arm"] == "differential":
            assert (cells["Median"], cells["Mean"]) == ("1,000", "–")
        elif cells["Metric"] != "steps to 50 % accuracy":
            assert cells["Learned"] == ("3 of 3" if cells["Arm"] == "softmax" else "2 of 3")
        if cells["Metric"] == "first-query accuracy":
            assert cells["Unit"] == "points"
            assert float(cells["Largest"]) > 90  # no share
            assert (cells["Mean"], cells["Mean paired difference"], cells["95 % interval"]) == ("–", "–", "–")


def test_models_of_one_kind_keep_their_sentences():
    record = Record.load(RECORDS / "upcycle.json")
    entries = [*record.values["comparison"], *record.values["further_comparison"]]
    assert sentences(record) == [entry["sentence"] for entry in entries]


# ------------------------------------------------------------------------------------------ claims


def claim(**fields):
    return {
        "claim": "More found", "source": "Table 2", "paper": "1 → 2", "part": "needles", "measured": "m",
        "unit": "points", "digits": 1, "is_share": True, "lower_is_better": False, "softmax": 0.5, "differential": 0.6,
        "difference": 0.1, "interval": [0.05, 0.15], "detectable": 0.07, "differences": [0.1], "seeds": 5,
        "floor": 0.25, "reason": "", "verdict": "agrees", "values": {}, "learned": None, "effect": 0.09,
        **fields,
    }  # fmt: skip


def cells(record, name):
    table = reproduction.claims(record)
    return next(row for row in table.text() if row[0].startswith(name))


def test_a_claim_stands_beside_what_could_be_seen_and_the_papers_effect():
    learned = claim(
        claim="Learned", difference=None, interval=None, detectable=None, effect=None, verdict="cannot tell",
        learned={"softmax": [1, 5], "differential": [3, 5]}, reason="counts",
    )  # fmt: skip
    small = claim(claim="Small", verdict="cannot tell", reason="MDE > the paper's effect")
    config = {"claim": {
        "question": "?", "contrast": "right outputs: differential - softmax", "n": 3, "detectable": 0.0654,
        "written": "2026-01-02T03:04:05+00:00", "sha256": "0" * 64,
    }}  # fmt: skip
    record = Record(kind="reproduce", values={"claims": [claim(), learned, small]}, seeds=[0, 1, 2], config=config)
    assert cells(record, "More found")[1:] == [
        "50.0 → 60.0", "+10.0 [+5.0 to +15.0] points", "5", "7.0", "+9.0", "agrees",
    ]  # fmt: skip
    assert cells(record, "Learned")[1:] == ["learned: 1 of 5 → 3 of 5 seeds", "–", "–", "–", "–", "cannot tell"]
    assert cells(record, "Small")[-1] == "cannot tell (MDE > the paper's effect)"
    table = reproduction.claims(record)
    assert "right outputs: differential - softmax, was written down before the run (MDE 0.065)" in table.note


def test_models_that_learned_or_did_not_are_drawn_as_seeds_alone():
    learned = claim(difference=None, interval=None, learned={"softmax": [1, 2], "differential": [2, 2]},
                    differences=[0.6, -0.1], verdict="cannot tell")  # fmt: skip
    figure = reproduction.claims_figure(Record(kind="reproduce", values={"claims": [claim(), learned]}))
    drawn = [line for line in figure.axes[0].lines if line.get_marker() == "o" and len(line.get_xdata()) == 1]
    assert [line.get_ydata()[0] for line in drawn] == [0]
    seeds = [line for line in figure.axes[0].lines if line.get_marker() == "."]
    assert [len(line.get_xdata()) for line in seeds] == [1, 2]


# ------------------------------------------------------------------------------------------ few tokens, few seeds


@pytest.mark.parametrize(("hits", "is_shown"), [(7, False), (199, False), (200, True)])
def test_ar_hits_are_shown_from_two_hundred_on_with_their_number_beside(hits, is_shown):
    record = Record.load(RECORDS / "reproduce" / "ablations.json")
    record.values["slices"]["hits"] = hits
    table = losses(record)
    assert (f"AR-hit (n = {hits})" in [column.name for column in table.columns]) is is_shown
    assert ("Of fewer than 200" in table.note) is not is_shown
    assert f"AR-hits: {hits} tokens" in table.note
    assert all(len(row) == len(table.columns) for row in table.rows)
    parts = slices(record)
    assert any(column.name.startswith("AR-hit") for column in parts.columns) is is_shown
    assert all(len(row) == len(parts.columns) for row in parts.rows)


def test_a_grid_of_rates_counts_who_learned():
    record = Record.load(RECORDS / "demo-learning-rate.json")
    tuned, threshold = Tune.read(record), threshold_of(record)
    rows = {(row.arm, row.learning_rate): row for row in tuned.rates}
    assert end_of(tuned, rows["differential", 4e-3], threshold) == ("1 of 2 learned", "0.109–2.035")
    row = rows["softmax", 4e-3]
    assert end_of(tuned, row, threshold) == (row.accuracy, row.loss)
