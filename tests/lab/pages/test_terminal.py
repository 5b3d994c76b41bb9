"""Tables in a terminal: no word broken, nothing beyond the edge, labels and lengths in their columns."""

import io
from dataclasses import asdict

import pytest
from rich.console import Console

from antiphase.base.records import Record
from antiphase.lab.lineage.studies.throughput import Speed, SpeedRatio, Throughput
from antiphase.lab.pages import terminal
from antiphase.lab.pages.tables import Column, Table
from support.paths import ROOT

RECORDS = ROOT / "records"
MODELS = ("rnn", "transformer", "differential_v2")


def printed(record, width=80):
    output = io.StringIO()
    terminal.print_summary(record, Console(file=output, width=width))
    return output.getvalue()


def drawn(table, width):
    output = io.StringIO()
    for part in terminal.drawn_parts(table, width):
        Console(file=output, width=width).print(part)
    return output.getvalue()


def throughput(speed):
    lengths = (32, 64, 128, 256, 512, 1024, 2048)
    speeds = [
        Speed(model=name, length=length, seconds=0.1, tokens_per_second=speed, quartiles=[speed, speed], rounds=3)
        for name in MODELS
        for length in lengths
    ]
    times = {"baseline": "rnn", "quartiles": [12.3, 12.3], "rounds": 3, "subject_seconds": 1.0, "baseline_seconds": 1.0}
    rows = [SpeedRatio(subject=name, length=length, ratio=12.3, **times) for name in MODELS[1:] for length in lengths]
    result = Throughput(
        models=list(MODELS), baseline="rnn", parameters=dict.fromkeys(MODELS, 1), speeds=speeds, rows=rows
    )
    values = asdict(result)
    return Record(kind="study-throughput", values=values, config={"tokens": 4096}, environment={"threads": 2})


def test_speeds_at_seven_lengths_stand_whole_in_eighty_columns():
    lines = printed(throughput(147_720)).splitlines()
    assert max(map(len, lines)) <= 80
    for name in MODELS:
        assert next(line.split() for line in lines if line.split()[:1] == [name]) == [name, *["147.7"] * 7]
    assert not any("continued" in line for line in lines)


@pytest.mark.parametrize("width", [34, 50, 80, 200])
def test_a_table_too_wide_is_drawn_in_parts_and_no_word_is_broken(width):
    names = [f"column{number}" for number in range(9)]
    rows = [[f"line{row}", *(f"{row}{place}1,234,567" for place in range(9))] for row in range(3)]
    table = Table(title="Wide", columns=[Column("Name"), *(Column(name, "number") for name in names)], rows=rows)
    text = drawn(table, width)
    assert max(map(len, text.splitlines())) <= width
    words = text.split()
    assert all(words.count(name) == 1 for name in names)
    assert all(words.count(cell) == 1 for row in rows for cell in row[1:])
    parts = words.count("Wide") + words.count("Wide,")
    assert words.count("Name") == words.count("line2") == parts
    assert (parts > 1) == (width < 150)


def test_long_texts_give_way_to_numbers_and_wide_characters_count_twice():
    rows = [["a text of many words that goes on and on until it must be broken somewhere", "差分 " * 30, "123,456"]] * 2
    table = Table(title="T", columns=[Column("Text"), Column("Han"), Column("Number", "number")], rows=rows)
    text = drawn(Table(title="T", columns=table.columns, rows=[rows[0]]), 60)
    assert "123,456" in text
    assert text.count("差分") == 30
    assert drawn(Table(title="T", columns=table.columns[:2], rows=[["z" * 300, "y" * 300]]), 60).count("z") == 300


def test_a_column_that_says_the_same_in_every_row_stays_where_columns_are_values_of_one_thing():
    columns, rows = [Column("Model"), Column("NEG:x", "integer")], [["a", 0], ["b", 0]]
    assert "T (neg:x 0)" in drawn(Table(title="T", columns=columns, rows=rows), 80)
    kept = drawn(Table(title="T", columns=columns, rows=rows, is_matrix=True), 80)
    assert "NEG:x" in kept
    assert "neg:x" not in kept


def test_labels_that_nobody_predicted_keep_their_column():
    record = Record.load(RECORDS / "classify-subj.json")
    runs = [run | {"confusion": [[3, 0], [3, 0]]} for run in record.values["runs"]]
    values = record.values | {"labels": ["NEG:x", "POS:y"], "runs": runs}
    text = printed(Record(kind="classify", values=values))
    assert "→ NEG:x" in text
    assert "→ POS:y" in text


def test_answers_of_one_label_keep_their_columns():
    rows = [{"text": text, "label": "NEG", "probabilities": {"NEG": 1.0, "POS": 0.0}} for text in ("a", "b")]
    words = printed(Record(kind="predict", values={"model": "m", "rows": rows})).split()
    assert words.count("NEG") == 3
    assert "POS" in words


def test_every_part_of_a_table_has_the_columns_that_tell_its_rows_apart():
    rows = [[f"arm{arm}", f"layer{layer}", *["1,234,567"] * 5] for arm in range(2) for layer in range(2)]
    for number, row in enumerate(rows):
        row[2] = f"{number}"
    columns = [Column("Arm"), Column("Layer"), *(Column(f"column{number}", "number") for number in range(5))]
    for row, last in zip(rows, "abcd", strict=True):
        row[-1], row[-2], row[-3], row[-4] = (last * 9 for _ in range(4))
    text = drawn(Table(title="Wide", columns=columns, rows=rows), 50)
    assert text.count("continued") == 2
    assert text.split().count("Layer") == text.split().count("Arm") == 3
    assert text.split().count("layer1") == 6


def test_rows_that_are_all_the_same_are_shown():
    text = drawn(Table(title="Same", columns=[Column("A"), Column("B", "integer")], rows=[["x", 1], ["x", 1]]), 80)
    assert text.split().count("x") == text.split().count("1") == 2


def test_rows_that_differ_only_in_their_names_are_one():
    columns = [Column("Arm"), *(Column(name, "number") for name in ("Weights", "Gradients", "Total"))]
    table = Table(title="Memory", columns=columns, rows=[["softmax", 1, 2, 3], ["V1", 1, 2, 3]])
    lines = [line.split() for line in drawn(table, 80).splitlines()]
    assert ["softmax,", "V1"] in lines
    assert [line for line in lines if line[-1:] in (["1"], ["2"], ["3"])] == [
        ["Weights", "1"], ["Gradients", "2"], ["Total", "3"],
    ]  # fmt: skip
