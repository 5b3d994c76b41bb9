"""The long form's steps go on from what is kept beside the records."""

import shlex
import sys
import time

import pytest

from antiphase.base.records import Record
from experiments import real_model


def test_the_journal_of_an_interrupted_step_goes_on_in_another_folder(tmp_path, monkeypatch):
    calls, records = [], tmp_path / "records"
    kept = records / "unfinished" / "confirm"

    def interrupted(*words, folder, ends):
        calls.append(words)
        journal = folder / "confirm" / "cells.jsonl"
        journal.parent.mkdir(exist_ok=True)
        (journal.parent / ".lock").touch()
        with journal.open("a") as file:
            file.write(f"{len(calls)}\n")
        if len(calls) < 3:
            sys.exit(130)
        (journal.parent / "record.json").touch()

    monkeypatch.setattr(real_model, "antiphase", interrupted)
    for number in range(3):
        output = tmp_path / str(number)
        output.mkdir()
        if number < 2:
            with pytest.raises(SystemExit):
                real_model.run("confirm", ("calibrate", "confirm"), output, records=records)
            assert [path.name for path in kept.iterdir()] == ["cells.jsonl"]
        else:
            real_model.run("confirm", ("calibrate", "confirm"), output, records=records)
    assert not kept.exists()
    assert (output / "confirm" / "cells.jsonl").read_text() == "1\n2\n3\n"
    assert ["--resume" in words for words in calls] == [False, True, True]


@pytest.fixture
def stubbed(tmp_path, monkeypatch):
    """``main`` with some arguments, and commands that only write their files; those of ``interrupted`` end early."""
    monkeypatch.setattr(real_model, "gguf_file", lambda: tmp_path / "model")
    monkeypatch.setattr(real_model, "sinks_of_text", lambda output: (output / "text-sinks.json").touch())
    monkeypatch.setattr(real_model, "write_tasks", lambda data, output: None)

    def call(*words, interrupted=()):
        done = []

        def command(*words, folder, ends=None):
            if words[0] == "report":
                return
            name = words[2] if words[0] == "convert" else words[words.index("--output") + 1]
            done.append(name)
            (folder / name).mkdir(exist_ok=True)
            (folder / name / "cells.jsonl").write_text("a cell")
            if words[0] == "convert":
                (folder / name / "config.json").touch()
                return
            if name in interrupted:
                sys.exit(130)
            if "confirm" in words:
                (folder / name / "claim.json").write_text(f"claims of {name}")
            Record(kind=name, values={}, command=shlex.join(["antiphase", *words])).save(folder / name)

        monkeypatch.setattr(real_model, "antiphase", command)
        monkeypatch.setattr(sys, "argv", ["real_model.py", *map(str, words)])
        real_model.main()
        return done

    return call


def test_finished_records_are_kept_when_a_later_step_is_interrupted(tmp_path, stubbed):
    """In another folder the interrupted step goes on from its journal, and the finished step's is gone."""
    records = tmp_path / "records"
    (records / "unfinished" / "outliers").mkdir(parents=True)
    words = ("--form", "long", "--data", tmp_path, "--records", records, "--minutes", 1)
    with pytest.raises(SystemExit):
        stubbed(*words, "--output", tmp_path / "a", interrupted=["long-context"])
    assert {path.name for path in records.glob("*.json")} == {"look.json", "probe.json", "outliers.json"}
    assert Record.load(records / "outliers.json").kind == "outliers"
    assert [path.name for path in (records / "unfinished").iterdir()] == ["long-context"]
    assert "confirm" in stubbed(*words, "--output", tmp_path / "b")
    assert {"long-context.json", "confirm.json", "confirm-seed2.json"} <= {path.name for path in records.iterdir()}
    assert (records / "confirm-seed1-claims.json").read_text() == "claims of confirm-seed1"
    assert not list((records / "unfinished").iterdir())


def test_a_form_is_not_mixed_with_the_results_of_the_other(tmp_path, stubbed, capsys):
    records = tmp_path / "records"
    words = ("--output", tmp_path / "a", "--records", records)
    done = stubbed("--form", "short", *words)
    assert len(done) > 5
    assert list(Record.load(tmp_path / "a" / "form.json").values["steps"]) == done
    (tmp_path / "a" / "form.json").unlink()
    short = {path.name: path.read_bytes() for path in records.iterdir()}
    assert stubbed("--form", "short", *words) == []  # each is done already
    assert not (tmp_path / "a" / "form.json").exists()
    for more in ((), ("--only", "confirm")):
        with pytest.raises(SystemExit):
            stubbed("--form", "long", "--data", tmp_path, *words, *more)
        assert "probe with other settings; give this form another folder" in " ".join(capsys.readouterr().err.split())
    assert {path.name: path.read_bytes() for path in records.iterdir()} == short


@pytest.mark.slow
def test_a_step_is_interrupted_when_the_time_is_over(tmp_path, tiny_preset):
    words = ("train", "--preset", str(tiny_preset), "--set", "training.steps=1000000", "--output", "run")
    with pytest.raises(SystemExit):
        real_model.antiphase(*words, folder=tmp_path, ends=time.monotonic() + 20)
