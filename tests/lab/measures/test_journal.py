"""Lines that survive a kill: a torn last one is left out, anything else that is no line costs one sentence."""

import json
from functools import partial

import pytest
from transformers.utils import cached_file

from antiphase.base.errors import InputError
from antiphase.base.folders.contents import hash_of
from antiphase.base.folders.journal import INPUTS, JOURNAL, Journal, append_line, journal_in, read_lines
from antiphase.lab.measures import inputs
from antiphase.lab.measures.inputs import model_content, task_content


@pytest.mark.parametrize("torn", [b'{"key": "b", "ro', b"{", b'{"key": "b", "rows": []}', b"\xc3"])
def test_a_torn_last_line_is_left_out_and_the_next_stands_alone(tmp_path, torn):
    path = tmp_path / "cells.jsonl"
    append_line(path, {"key": "a", "rows": [1]})
    with path.open("ab") as file:
        file.write(torn)
    assert read_lines(path, "key", "rows") == [{"key": "a", "rows": [1]}]
    append_line(path, {"key": "c", "rows": []})
    assert [line["key"] for line in read_lines(path, "key")] == ["a", "c"]


@pytest.mark.parametrize("wrong", [b"nonsense", b"[1]", b'{"key": "b"}', {"key": [1], "rows": []}, b"\xff\xfe"])
def test_a_whole_line_that_is_something_else_is_named(tmp_path, wrong):
    path = tmp_path / "cells.jsonl"
    append_line(path, {"key": "a", "rows": []})
    if isinstance(wrong, dict):
        append_line(path, wrong)
    else:
        path.write_bytes(path.read_bytes() + wrong + b"\n")
    with pytest.raises(InputError, match=r"cells\.jsonl, line 2: this is not a result of antiphase"):
        read_lines(path, "key", "rows")


def test_a_damaged_line_is_refused(tmp_path):
    """Any changed byte, of the checksum too; a changed name of the checksum's key leaves a line without one."""
    path = tmp_path / "journal.jsonl"
    append_line(path, given := {"key": "a", "rows": [{"loss": 1.25, "name": "é", "of": None}]})
    whole = path.read_bytes()
    refused = 0
    for place, byte in enumerate(whole):
        for other in {byte ^ 1, byte ^ 2, byte ^ 16} - {byte}:
            path.write_bytes(whole[:place] + bytes([other]) + whole[place + 1 :])
            try:
                found = read_lines(path, "key", "rows")
            except InputError:
                refused += 1
            else:
                assert [{name: line[name] for name in given} for line in found] in ([], [given])
    assert refused > 2.5 * len(whole)
    path.write_text(json.dumps(given) + "\n")
    with pytest.raises(InputError, match=r"line 1, is damaged; remove it, and resume computes it again"):
        read_lines(path, "key", "rows")


def test_an_empty_journal_and_keys(tmp_path):
    assert read_lines(tmp_path / "none.jsonl", "key") == []
    assert hash_of(["a", 1]) == hash_of(["a", 1]) != hash_of(["a", 2])


def begun(folder, **inputs):
    work = Journal(folder, lambda: {"--seed": 0, **inputs})
    work.begin()
    return work


def test_a_journal_knows_its_parts_again_and_survives_a_torn_line(tmp_path):
    work = begun(tmp_path)
    work.add(work.key("a", True, {"depth": None}), [{"right": (1, 0), "share": float("nan")}])
    with (tmp_path / JOURNAL).open("ab") as file:
        file.write(b'{"key": "torn')
    again = begun(tmp_path)
    assert again.known[work.key("a", True, {"depth": None})] == [{"right": [1, 0], "share": None}]
    assert again.known == work.known
    assert work.key("a", False, {"depth": None}) not in again.known
    again.add(again.key("b"), [])
    assert list(begun(tmp_path).known) == [INPUTS, again.key("a", True, {"depth": None}), again.key("b")]


def test_parts_of_other_work_are_not_taken(tmp_path):
    work = begun(tmp_path)
    work.add(work.key("a"), [1])
    with pytest.raises(InputError, match=r"other settings or inputs \(--seed, --samples\); choose another folder"):
        Journal(tmp_path, lambda: {"--samples": 2, "--seed": 1})
    lines = (tmp_path / JOURNAL).read_bytes().splitlines(keepends=True)
    (tmp_path / JOURNAL).write_bytes(b"".join(lines[1:]))  # it does not say any more what its parts are of
    other = begun(tmp_path, **{"--seed": 1})
    assert other.key("a") not in other.known


def test_nothing_is_read_before_there_is_something_to_compare(tmp_path):
    def inputs():
        raise AssertionError("the inputs are read")

    assert Journal(tmp_path, inputs).record is None


def test_files_of_a_model_that_enter_its_digest(tmp_path):
    for name in ("model.safetensors", "config.json", "tokenizer.json", "run.yaml"):
        (tmp_path / name).write_text(name)
    own = model_content(str(tmp_path))
    for name in ("record.json", "metrics.jsonl", "report.html"):
        (tmp_path / name).write_text(name)
    (tmp_path / "checkpoint").mkdir()
    assert model_content(str(tmp_path)) == own
    for name in ("model.safetensors", "config.json", "tokenizer.json", "run.yaml"):
        (tmp_path / name).write_text("other")
        assert model_content(str(tmp_path)) != own
        (tmp_path / name).write_text(name)
    (tmp_path / "config.json").rename(tmp_path / "config2.json")
    assert model_content(str(tmp_path)) != own


def test_a_model_of_the_hub_is_known_by_its_commit(tmp_path, monkeypatch):
    """In the Hub's own cache, as it lies on a disk."""
    monkeypatch.setattr(inputs, "cached_file", partial(cached_file, cache_dir=tmp_path, local_files_only=True))
    cache = tmp_path / "models--owner--model"
    (cache / "refs").mkdir(parents=True)
    for commit in ("a" * 40, "b" * 40):
        (cache / "snapshots" / commit).mkdir(parents=True)
        (cache / "snapshots" / commit / "config.json").write_text("{}")
        (cache / "refs" / "main").write_text(commit)
        assert model_content("owner/model") == commit
    for name in ("owner/other", "./missing", str(tmp_path / "a" / "b"), "a b"):
        with pytest.raises(InputError, match=r"model .*: there is no such folder, and no such model could be read"):
            model_content(name)


def test_fields_of_a_task_that_enter_its_digest(tmp_path):
    for name in ("rows", "shown", "more", "zero", "one"):
        (tmp_path / name).write_text(f"0 {name}\n")
    task, labels = tmp_path / "task.yaml", tmp_path / "labels.yaml"
    task.write_text("template: cr\ndata: rows\ndemonstrations: shown\ncolumns: {extra: more}\n")
    labels.write_text("template: cr\ndata: {no: zero, yes: one}\n")
    own = {path: task_content([str(path)]) for path in (task, labels)}
    for path, names in ((task, ("rows", "shown", "more")), (labels, ("zero", "one"))):
        for name in names:
            kept = (tmp_path / name).read_text()
            (tmp_path / name).write_text("1 other\n")
            assert task_content([str(path)]) != own[path], name
            (tmp_path / name).write_text(kept)
    assert {path: task_content([str(path)]) for path in (task, labels)} == own
    labels.write_text("template: cr\ndata: {yes: zero, no: one}\n")
    assert task_content([str(labels)]) != own[labels]
    (tmp_path / "rows").unlink()
    with pytest.raises(InputError, match=r"task .*task\.yaml: data .*rows"):
        task_content([str(task)])


def test_a_refusal_in_the_middle_leaves_finished_parts_and_one_before_leaves_nothing(tmp_path):
    """A second model's logits may turn out to be NaN after hours on the first."""

    def work(*, parts):
        with journal_in(tmp_path / "out", lambda: {"the measurement": "m"}, resume=True) as journal:
            journal.begin()
            for part in range(parts):
                journal.add(journal.key(part), [part])
            raise InputError("its logits are NaN")

    with pytest.raises(InputError, match="NaN"):
        work(parts=0)
    assert not (tmp_path / "out" / JOURNAL).exists()
    with pytest.raises(InputError, match="NaN"):
        work(parts=2)
    assert len(read_lines(tmp_path / "out" / JOURNAL, "key", "rows")) == 3
