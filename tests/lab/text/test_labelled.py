"""Labelled rows: every format gives what was written, and bad lines are named by file and number."""

import json
import logging

import pyarrow
import pyarrow.parquet
import pytest

from antiphase.base.errors import InputError
from antiphase.lab.text import labelled
from antiphase.lab.text.labelled import column_of, labelled_rows


def values(path, **options):
    return [row.values for row in labelled_rows(str(path), **options)]


def message(path, **options):
    with pytest.raises(InputError) as caught:
        labelled_rows(str(path), **options)
    return str(caught.value)


def test_label_and_text_by_line(tmp_path):
    path = tmp_path / "subj.all"
    path.write_bytes("0 one\u0085two\r\n1\tthree  four\n2  five \n".encode())
    assert values(path) == [
        {"text": "one\u0085two", "label": "0"},
        {"text": "three  four", "label": "1"},
        {"text": " five ", "label": "2"},  # one separator is cut off, and nothing else
    ]


def test_a_byte_that_is_no_text_is_named_by_its_line(tmp_path):
    for name in ("bad.all", "bad.jsonl", "bad.json"):  # line by line, and as a whole
        path = tmp_path / name
        path.write_bytes(b"0 one\r\n1 two\n" * (name == "bad.all") + b"\n\n" * (name != "bad.all") + b"0 caf\xe9 x\n")
        assert f"{path}, line 3: the text is not UTF-8 at byte" in message(path)


def test_coarse_and_fine_labels(tmp_path):
    path = tmp_path / "trec.txt"
    path.write_text("HUM:ind Who was Galileo ?\nNUM:date When : then ?\n")
    assert values(path)[0] == {"text": "Who was Galileo ?", "label": "HUM:ind", "coarse": "HUM"}
    path.write_text("HUM:ind Who ?\nNUM When ?\n")  # not every label has both: then none is cut
    assert values(path)[1] == {"text": "When ?", "label": "NUM"}


def test_a_label_without_text_is_kept_with_a_warning(tmp_path, caplog):
    path = tmp_path / "cr.all"
    path.write_text("1 good\n0 \n0\n")
    with caplog.at_level(logging.WARNING):
        assert [row["text"].strip() for row in values(path)] == ["good", "", ""]
    assert caplog.text.count("has no text; it is kept") == 2
    assert "line 3" in caplog.text


def test_empty_lines_and_lines_without_a_label_are_named(tmp_path):
    path = tmp_path / "cr.all"
    path.write_text("1 good\n\n0 bad\n")
    assert "line 2: the line is empty" in message(path)
    path.write_text("1 good\n bad\n")
    assert "line 2: the line begins without a label" in message(path)


def test_tables(tmp_path):
    rows = [{"text": 'a, "b"', "category": "x"}, {"text": "c\nd", "category": "y"}]
    (tmp_path / "t.csv").write_bytes(b'text,category\r\n"a, ""b""",x\r\n"c\nd",y\r\n')
    assert values(tmp_path / "t.csv") == rows
    (tmp_path / "t.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert values(tmp_path / "t.jsonl") == rows
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), tmp_path / "t.parquet")
    assert values(tmp_path / "t.parquet") == rows
    (tmp_path / "n.csv").write_text('"3","title","what"\n')
    assert values(tmp_path / "n.csv", header=["label", "title", "text"]) == [
        {"label": "3", "title": "title", "text": "what"}
    ]
    assert "3 fields where the header has 2" in message(tmp_path / "n.csv", header=["a", "b"])


def test_json_documents(tmp_path):
    path = tmp_path / "clinc.json"
    path.write_text(json.dumps({"train": [["pay it", "pay_bill"]], "test": [["hi", "greeting"], ["yo", "greeting"]]}))
    assert values(path, split="test")[1] == {"text": "yo", "label": "greeting"}
    assert "the parts train, test" in message(path)
    assert "no part 'tests'; did you mean 'test'?" in message(path, split="tests")
    path.write_text(json.dumps([{"a": 1}, {"a": 2}]))
    assert values(path) == [{"a": 1}, {"a": 2}]
    path.write_text('{"a": 1}\n{"a": 2}\n')
    assert values(path) == [{"a": 1}, {"a": 2}]
    path.write_text("[1]")
    assert "entry 1: this is neither an object nor a pair" in message(path)
    path.write_text("[" * 100000)
    assert "too deeply" in message(path)


def test_squad_articles_become_questions(tmp_path):
    question = {"id": "7", "question": "Who?", "answers": [{"text": "I", "answer_start": 0}, {"text": "me"}]}
    tree = {"version": "1.1", "data": [{"title": "T", "paragraphs": [{"context": "I am.", "qas": [question]}]}]}
    path = tmp_path / "dev.json"
    path.write_text(json.dumps(tree))
    assert values(path) == [
        {"id": "7", "title": "T", "context": "I am.", "question": "Who?", "answers": {"text": ["I", "me"]}}
    ]
    del question["question"]
    path.write_text(json.dumps(tree))
    assert "not those of SQuAD ('question')" in message(path)


def test_one_file_for_each_label(tmp_path):
    (tmp_path / "rt.pos").write_text("fine\ngreat\n")
    (tmp_path / "rt.neg").write_text("bad\n")
    found = labelled_rows({"positive": str(tmp_path / "rt.pos"), "negative": str(tmp_path / "rt.neg")})
    assert [row.values for row in found] == [
        {"text": "fine", "label": "positive"}, {"text": "great", "label": "positive"},
        {"text": "bad", "label": "negative"},
    ]  # fmt: skip
    assert column_of(str(tmp_path / "rt.pos")) == ["fine", "great"]
    with pytest.raises(InputError, match="there is no such file"):
        labelled_rows({"positive": str(tmp_path / "missing.txt")})


def test_files_of_single_texts_may_be_in_the_home_folder_but_are_plain_text(tmp_path, monkeypatch):
    (tmp_path / "rt.pos").write_text("fine\n")
    (tmp_path / "rt.csv").write_text("text\nfine\n")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert [row.values["text"] for row in labelled_rows({"positive": "~/rt.pos"})] == column_of("~/rt.pos") == ["fine"]
    for path in ("~/rt.csv", str(tmp_path), "nobody-here/poems"):
        for read in (column_of, lambda path: labelled_rows({"positive": path})):
            with pytest.raises(InputError, match=f"data {path}: one plain text file is needed here"):
                read(path)


def test_real_sets(shared):
    data = shared / "data"
    assert len(values(data / "classification" / "trec" / "train.txt")) == 5452
    assert len({row["coarse"] for row in values(data / "classification" / "trec" / "test.txt")}) == 6
    assert len(values(data / "classification" / "mpqa.all")) == 10606
    assert len(values(data / "classification" / "subj.all")) == 10000
    assert len({row["label"] for row in values(data / "icl" / "clinc150.json", split="test")}) == 150


@pytest.mark.parametrize(("given", "read"), [("owner/name", "test"), ("owner/name@validation", "validation")])
def test_a_split_is_that_of_a_dataset_of_the_hub(monkeypatch, given, read):
    """Unless the name has one itself."""
    monkeypatch.setattr(labelled, "hub_rows", lambda source, field: iter([("here", {"text": source.split})]))
    assert [row.values["text"] for row in labelled_rows(given, split="test")] == [read]


def test_places_tell_two_splits_of_one_dataset_of_the_hub_apart(monkeypatch):
    """Rows that are asked are never examples, which is known by their places."""
    monkeypatch.setattr(labelled, "hub_rows", lambda source, field: iter([(source.given, {"text": "a"})]))
    places = {row.place for split in ("test", "train") for row in labelled_rows("owner/name", split=split)}
    assert len(places) == 2


def test_questions_of_squad_without_ids_have_different_places(tmp_path):
    asked = [{"question": f"Q{number}?", "answers": [{"text": "a"}]} for number in range(3)]
    articles = {"data": [{"title": "T", "paragraphs": [{"context": "c", "qas": asked}]}]}
    (tmp_path / "s.json").write_text(json.dumps(articles))
    assert len({row.place for row in labelled_rows(str(tmp_path / "s.json"))}) == 3
