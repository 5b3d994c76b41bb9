"""Labelled texts: columns, coarse and fine labels, stratified parts, duplicates, refusals that name file and line."""

import json
import logging
import re
from collections import Counter

import pytest

from antiphase.base.errors import InputError, worded
from antiphase.lab.lineage.data.labelled_texts import (
    Example,
    check_labels,
    duplicates,
    held_out_tenth,
    read_examples,
    read_texts,
    stratified_parts,
)
from antiphase.lab.lineage.results import Duplicates


def write(folder, name, content):
    path = folder / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return str(path)


def pairs(*paths, **options):
    return [(example.label, example.text) for example in read_examples(paths, **options)]


def test_coarse_and_fine_labels(tmp_path):
    path = write(tmp_path, "q.txt", "HUM:ind Who was he ?\r\nNUM:date When ?\r\n")
    assert pairs(path) == [("HUM", "Who was he ?"), ("NUM", "When ?")]
    assert pairs(path, labels="fine") == [("HUM:ind", "Who was he ?"), ("NUM:date", "When ?")]


def test_one_label_without_a_colon_makes_labels_whole(tmp_path):
    assert pairs(write(tmp_path, "q.txt", "a:b x\nc y\n")) == [("a:b", "x"), ("c", "y")]


@pytest.mark.parametrize(
    ("name", "content", "options"),
    [
        ("t.csv", 'text,category\r\n"a, ""b""\r\nc",x\r\nd,y\r\n', {}),
        ("t.csv", 'category,Question\n x ,"a, ""b""\r\nc"\ny,d\n', {}),
        ("t.csv", 'id,comment,text,kind\n1,"a, ""b""\r\nc",u,x\n2,d,v,y\n',
         {"text_field": "comment", "label_field": "kind"}),
        ("t.csv", 'kind,text\nx,"a, ""b""\r\nc"\ny,d\n', {}),
        ("t.csv", 'label,words\nx,"a, ""b""\r\nc"\ny,d\n', {}),
        ("t.jsonl", json.dumps({"label": "x", "text": 'a, "b"\r\nc'}) + '\n\n{"label": "y", "text": "d"}\n', {}),
        ("t.json", json.dumps([['a, "b"\r\nc', "x"], ["d", "y"]]), {}),
    ],
)  # fmt: skip
def test_formats_and_columns(tmp_path, name, content, options):
    assert pairs(write(tmp_path, name, content), **options) == [("x", 'a, "b"\r\nc'), ("y", "d")]


def test_parquet_with_numbered_labels(tmp_path):
    import pyarrow
    import pyarrow.parquet

    table = pyarrow.table({"label": [3, 10, 3], "text": ["a", "b", None], "score": [0.5, 0.1, 0.2]})
    pyarrow.parquet.write_table(table, tmp_path / "t.parquet")
    found = read_examples([str(tmp_path / "t.parquet")])
    assert [(e.label, e.text) for e in found] == [("3", "a"), ("10", "b"), ("3", "")]
    assert check_labels(found, []) == ["3", "10"]
    assert worded(found[2].place).endswith("t.parquet, row 3")


def test_an_empty_text_is_kept_with_one_warning(tmp_path, caplog):
    with caplog.at_level(logging.WARNING):
        assert pairs(write(tmp_path, "a.txt", "x b\ny\n")) == [("x", "b"), ("y", "")]
        assert pairs(write(tmp_path, "a.csv", "text,label\na,x\n,y\n")) == [("x", "a"), ("y", "")]
        assert [text for _, text in read_texts(write(tmp_path, "b.csv", "text,n\na,1\nb,2\n,3\n"))] == ["a", "b", ""]
    assert [re.search(r"line (\d)", message)[1] for message in caplog.messages] == ["2", "3", "4"]


def test_the_columns_are_those_of_all_rows(tmp_path):
    path = write(tmp_path, "a.jsonl", '{"label": "x"}\n{"label": "y", "text": "b"}\n')
    with pytest.raises(InputError, match=r"line 1: there is no column 'text'"):
        read_examples([path])


@pytest.mark.parametrize(("name", "content", "message"), [
    ("t.csv", "text,label\na,x\nb,\n", r"t\.csv, line 3: there is no label"),
    ("t.csv", "one,two\na,x\n", r"which column holds the text cannot be determined \(columns: one, two\)"),
    ("t.csv", "text,a,b\nx,y,z\n", r"which column holds the label .* --label-field"),
    ("t.jsonl", '{"text": "a", "label": "x"}\n{"text": 5, "label": "y"}\n', r"line 2: the column 'text' holds int"),
    ("t.jsonl", '{"text": "a", "label": 0.5}\n', r"line 1: the column 'label' holds float"),
    ("t.jsonl", '{"text": "a", "label": "x"}\n{"label": "y"}\n', r"line 2: there is no column 'text'"),
    ("t.jsonl", '{"text": "a\\ud800", "label": "x"}\n', r"line 1: .* surrogate"),
])  # fmt: skip
def test_refusals_name_file_and_line(tmp_path, name, content, message):
    with pytest.raises(InputError, match=message):
        read_examples([write(tmp_path, name, content)])


def test_unknown_columns_are_refused(tmp_path):
    path = write(tmp_path, "t.csv", "text,label\na,x\n")
    with pytest.raises(InputError, match="--text-field txt: there is no such column; did you mean 'text'"):
        read_examples([path], text_field="txt")
    with pytest.raises(InputError, match="the same column"):
        read_examples([path], text_field="text", label_field="text")


def examples(*labels):
    return [Example(f"f, line {n}", f"text {n}", label) for n, label in enumerate(labels, start=1)]


def test_one_label_only_and_unseen_labels_are_refused():
    with pytest.raises(InputError, match="every row has the label 'a'"):
        check_labels(examples("a", "a"), [])
    with pytest.raises(InputError, match="f, line 2: the label 'c' does not occur in training"):
        check_labels(examples("a", "b"), examples("a", "c"))


@pytest.mark.parametrize("count", [2, 3, 10])
def test_parts_are_stratified_even_and_whole(count):
    labels = ["a"] * 53 + ["b"] * 17 + ["c"] * 5 + ["d"]
    parts = stratified_parts(labels, count, 4)
    rows = sorted(row for part in parts for row in part)
    assert rows == list(range(75))  # the only d is in none
    assert max(map(len, parts)) - min(map(len, parts)) <= 1
    for label in "abc":
        counts = [Counter(labels[row] for row in part)[label] for part in parts]
        assert max(counts) - min(counts) <= 1
    assert parts == stratified_parts(labels, count, 4)
    assert parts != stratified_parts(labels, count, 5)


def test_a_tenth_is_held_out_and_leaves_every_label_to_training():
    whole = examples(*["a"] * 40, *["b"] * 2, "c")
    for seed in range(20):
        rest, tenth = held_out_tenth(whole, seed)
        assert len(tenth) in (4, 5)
        assert {e.label for e in rest} == {"a", "b", "c"}
        assert sorted([*rest, *tenth], key=whole.index) == whole
    with pytest.raises(InputError, match="every label has only one row"):
        held_out_tenth(examples("a", "b"), 0)


def test_duplicates_are_counted_without_capitals_and_white_space():
    rows = [("A  straße", "x"), ("a STRASSE", "y"), ("a strasse ", "x"), ("c", "x")]
    found = duplicates([Example("", text, label) for text, label in rows])
    assert found == Duplicates(rows=4, texts=2, repeated_rows=2, texts_with_several_labels=1)


def test_texts_to_classify(tmp_path):
    path = write(tmp_path, "t.txt", "one\r\n two\n")
    found = [(worded(place), text) for place, text in read_texts(path)]
    assert found == [(f"file {path}, line 1", "one"), (f"file {path}, line 2", " two")]
    table = write(tmp_path, "t.csv", "id,review\n1,a\n2,b\n")
    assert [text for _, text in read_texts(table)] == ["a", "b"]
    assert [text for _, text in read_texts(table, text_field="id")] == ["1", "2"]
    with pytest.raises(InputError, match=r"line 2: the line is empty"):
        read_texts(write(tmp_path, "e.txt", "one\n\n"))
    with pytest.raises(InputError, match="cannot be determined"):
        read_texts(write(tmp_path, "u.csv", "a,b\n1,2\n"))
