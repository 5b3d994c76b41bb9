"""Tables say what the record says: same numbers, nulls visible, terminal and page alike."""

import io
import statistics
import sys
from subprocess import run

import pytest
from rich.console import Console

from antiphase.base.records import Record
from antiphase.lab.measures import retrieval_presentation
from antiphase.lab.measures.perplexity.presentation import losses
from antiphase.lab.pages import benchmarks, html, summary, tables, terminal
from antiphase.lab.studies.compare import tables as trained
from antiphase.lab.studies.compare.reading import comparison_of, retrieval_of, sentences


def cells(record, measure):
    table = trained.headline(comparison_of(record))
    return next(row[1:] for row in table.text() if row[0].startswith(measure))


@pytest.mark.slow
def test_cells_that_differ_in_the_number_of_questions_only_are_distinguished(comparison, tmp_path):
    needles = comparison.values["needles"]
    twice = [{**row, "queries": 5, "accuracy": 0.123} for row in needles["summary"]]
    record = Record(
        kind="compare", values={**comparison.values, "needles": {**needles, "summary": [*needles["summary"], *twice]}}
    )
    assert [point[1] for point in retrieval_presentation.grid_points(retrieval_of(record).summary)] == [2, 5]
    assert cells(record, "Needle accuracy, trained (8 needles, 5 questions, 256 tokens)")[0].startswith("12.3 %")
    assert cells(record, "Needle accuracy, trained (8 needles, 2 questions, 256 tokens)")[0].startswith("74.0 %")
    table = retrieval_presentation.needle_summary(retrieval_of(record))
    assert {row[3] for row in table.text()} == {"2", "5"}
    figure = retrieval_presentation.needle_grid(retrieval_of(record))
    assert [label.get_text() for label in figure.axes[2].get_xticklabels()] == ["8\n2\n256", "8\n5\n256"]
    page = html.write_report([record], tmp_path / "page.html").read_text(encoding="utf-8")
    assert "12.3 % (8 needles, 5 questions, 256 tokens)" in page


def test_headline_holds_the_records_numbers(comparison):
    accuracies = {
        arm: [run["final"]["accuracy"] for run in comparison.values["runs"] if run["arm"] == arm]
        for arm in comparison.values["arms"]
    }
    expected = [
        f"{100 * statistics.median(values):.1f} % [{100 * min(values):.1f}–{100 * max(values):.1f}]"
        for values in accuracies.values()
    ]
    assert cells(comparison, "First-query accuracy") == expected
    assert cells(comparison, "Parameters") == ["1,234,567", "1,234,567"]
    seeds = len(comparison.seeds)
    assert cells(comparison, "Peak memory of the process") == [f"{20 + seeds - 1} [20–{18 + 2 * seeds}]"] * 2
    assert not any(
        row[0].startswith("Peak memory on the GPU") for row in trained.headline(comparison_of(comparison)).rows
    )
    assert cells(comparison, "Guess rate") == ["12.5 %", "12.5 %"]
    untrained = cells(comparison, "Needle accuracy, untrained")
    assert untrained == ["12.5 % [7.5–16.5]", "12.5 % [7.5–16.5]"]


def test_headline_reads_the_grid_at_the_training_number_of_needles(grid_comparison):
    table = trained.headline(comparison_of(grid_comparison))
    rows = [row[0] for row in table.rows if row[0].startswith("Needle accuracy")]
    assert len(rows) == 2
    assert all("8 needles" in row for row in rows)


@pytest.mark.parametrize(
    ("passes", "expected"),
    [
        ([100, 300, 200], "200 [100–300], 3 of 3 seeds"),
        ([100, None, 200], "200 [100–never], 2 of 3 seeds"),
        ([None, None, 200], "never [200–never], 1 of 3 seeds"),
        ([100, None], "100 [100–never], 1 of 2 seeds"),
        ([None, None], "never, 0 of 2 seeds"),
        ([150], "150 (one seed)"),
        ([None], "never (one seed)"),
        ([], "–"),
    ],
)
def test_a_seed_that_never_passes_is_later_than_all(passes, expected):
    assert trained.steps_to_threshold(passes) == expected


def test_missing_seeds_are_counted_in_words():
    assert trained.median_and_range([0.5, None, 0.7], "percent") == "60.0 % [50.0–70.0] (2 of 3 seeds)"
    assert trained.median_and_range([None], "loss") == "–"


def test_runs_in_two_precisions_are_named(comparison):
    for precisions, said in ((["bfloat16"], ""), (["bfloat16", "float32"], "in bfloat16 and float32")):
        for place, row in enumerate(comparison.values["runs"]):
            row["precision"] = precisions[place % len(precisions)]
        note = trained.runs_table(comparison_of(comparison)).note
        assert said in note
        assert bool(note) == bool(said)


def test_every_table_has_as_many_cells_as_columns(comparison, grid_comparison, awkward):
    for record in (comparison, grid_comparison, awkward):
        numbers, retrieval = comparison_of(record), retrieval_of(record)
        found = [make(numbers) for make in (trained.headline, trained.comparison, trained.runs_table)]
        found += [
            make(retrieval) for make in (retrieval_presentation.needle_summary, retrieval_presentation.needle_cells)
        ]
        found += [retrieval_presentation.allocation(retrieval, by_layer=by_layer) for by_layer in (False, True)]
        found += [make(record) for make in (tables.settings, tables.environment, tables.provenance)]
        found += [trained.by_layer(numbers, lambda run: run.lambdas, "λ"), losses(numbers.perplexity)]
        found.append(trained.curve_table(numbers))
        for table in found:
            assert table is None or all(len(row) == len(table.columns) for row in table.text()), table


def test_allocation_never_shows_a_signed_sum_alone(comparison):
    table = retrieval_presentation.allocation(retrieval_of(comparison))
    found = {}
    for row in table.rows:
        found.setdefault(tuple(row[:3]), []).append(row[-8])
    for (_, _, name), measures in found.items():
        assert measures == ["share", "signed", *(["contribution"] if name in ("softmax", "difference") else [])]
    means = [row["spans"]["answer"]["share"] for row in comparison.values["allocation"]
             if (row["arm"], row["trained"], row["layer"]) == ("softmax", True, "all")]  # fmt: skip
    assert table.rows[0][-7] == f"{100 * statistics.fmean(means):.1f} %"


def test_knock_outs_are_means_over_seeds_with_their_range(comparison):
    table = retrieval_presentation.knockouts(retrieval_of(comparison))
    rows = {tuple(row[:4]): row[4:] for row in table.rows}
    assert rows["softmax", "trained", "anywhere", "all"] == [
        3,
        "-1.750 [-2.000 to -1.500]",
        "+0.010 [+0.010 to +0.010]",
    ]
    assert len(rows) == 2 * 2 * 3  # arms, trained or not, layers
    for row in comparison.values["allocation"]:
        if row["seed"] == 1 and "knockout" in row:
            row["knockout"]["filler"] = None
    table = retrieval_presentation.knockouts(retrieval_of(comparison))
    assert all(row[-1] is None for row in table.rows)
    comparison.values["allocation"] = [row for row in comparison.values["allocation"] if row["seed"] == 0]
    table = retrieval_presentation.knockouts(retrieval_of(comparison))
    assert table.rows[0][-2:] == ["-1.500 [-2.000 to -1.000]", "+0.010 [-0.020 to +0.040]"]
    for row in comparison.values["allocation"]:
        row.pop("knockout", None)
    assert retrieval_presentation.knockouts(retrieval_of(comparison)) is None


def test_long_curves_are_shortened_and_say_so(comparison):
    comparison.values["runs"][0]["curve"] = [{"step": step, "loss": 1.0} for step in range(5000)]
    table = trained.curve_table(comparison_of(comparison))
    assert len(table.rows) <= trained.LARGEST_CURVE
    assert "Shortened" in table.note


def test_the_terminal_shows_every_cell_and_sentence(comparison, awkward):
    for record in (comparison, awkward):
        output = io.StringIO()
        terminal.print_summary(record, Console(file=output, width=300))
        text = output.getvalue()
        for table in summary.main_tables(record):
            assert all(cell in text for row in table.text() for cell in row)
        assert all(sentence in text for sentence in sentences(record))


SPANS = {span: {"share": 0.3, "signed": 0.3} for span in ("answer", "other_needles", "filler")}


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        ("train", {"final": {"loss": 2.0, "accuracy": None}, "parameters": 10, "curve": []}),
        ("train", {}),
        ("evaluate-needles", {"cells": [], "summary": [], "guess_rate": 0.5}),
        ("evaluate-perplexity", {"rows": [{"sequences": 3, "loss": 2.5, "perplexity": 12.5, "tokens": 100}]}),
        ("evaluate-allocation", {"rows": [{"map": "softmax", "spans": SPANS}]}),
        ("odd", {"a": {"b": 1.5}, "c": [1, 2], "d": None}),
        ("odd", {}),
    ],
)
def test_every_kind_has_a_summary(kind, values):
    output = io.StringIO()
    terminal.print_summary(Record(kind=kind, values=values), Console(file=output, width=200))
    said = {"train": "2.000", "evaluate-perplexity": "12.5", "evaluate-allocation": "softmax", "odd": "a.b"}
    if values and kind in said:
        assert said[kind] in output.getvalue()


def test_a_terminal_table_needs_neither_torch_nor_matplotlib():
    script = (
        "import sys; from antiphase.lab.pages import print_summary\n"
        "assert not {'torch', 'transformers', 'matplotlib', 'jinja2'} & sys.modules.keys()\n"
        "import antiphase.lab.pages.html\n"
        "assert not {'torch', 'transformers', 'matplotlib.pyplot'} & sys.modules.keys()"
    )
    run([sys.executable, "-c", script], check=True)


def test_the_fastest_implementation_of_a_baseline_counts():
    common = {"task": "decode", "dtype": "bfloat16", "length": 4096, "width": 64, "batch": 1, "subject": "V1",
              "subject_seconds": 2.0, "quartiles": [0.1, 9.0], "rounds": 5}  # fmt: skip
    ways = {"softmax": 8.0, "softmax (products)": 1.0, "softmax (eager)": 4.0, "DiffLlama": 0.5}
    rows = [
        {**common, "baseline": name, "ratio": 2.0 / seconds, "baseline_seconds": seconds}
        for name, seconds in ways.items()
    ]
    record = Record(kind="benchmark-attention", values={"rows": rows}, config={"width": 64})
    table = benchmarks.ratios(record)
    assert [column.name for column in table.columns] == ["What", "V1 / softmax", "V1 / DiffLlama"]
    assert table.text() == [["decode, bf16, N = 4,096", "2.00", "4.00"]]
    assert "the fastest one counts" in table.note
    whole = benchmarks.timing(record)
    assert [row[2] for row in whole.rows] == list(ways)
    seconds = {"V1": 2.0, "softmax": 1.0, "DiffLlama": 0.5}
    assert benchmarks.relative_seconds(record) == {("decode", "bfloat16"): {4096: seconds}}


def test_decoding_one_sequence_stands_in_a_row_of_its_own():
    common = {"task": "decode", "dtype": "bfloat16", "length": 4096, "width": 64, "subject": "V1", "baseline": "flash"}
    rows = [
        {**common, "batch": batch, "ratio": ratio, "subject_seconds": ratio, "baseline_seconds": 1.0}
        for batch, ratio in ((64, 1.5), (1, 2.5))
    ]
    record = Record(kind="benchmark-attention", values={"rows": rows}, config={"width": 64})
    table = benchmarks.ratios(record)
    assert table.text() == [["decode, bf16, N = 4,096", "1.50"], ["decode, bf16, N = 4,096, B = 1", "2.50"]]
    assert benchmarks.relative_seconds(record) == {("decode", "bfloat16"): {4096: {"V1": 1.5, "flash": 1.0}}}
