"""The long form's steps go on from what is kept beside the records."""

import sys
import time
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def real_model(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import real_model

    yield real_model
    sys.modules.pop("real_model")


def test_the_journal_of_an_interrupted_step_goes_on_in_another_folder(tmp_path, monkeypatch, real_model):
    calls, kept = [], tmp_path / "records" / "unfinished" / "confirm"

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
                real_model.run("confirm", ("calibrate", "confirm"), output, kept=kept)
            assert [path.name for path in kept.iterdir()] == ["cells.jsonl"]
        else:
            real_model.run("confirm", ("calibrate", "confirm"), output, kept=kept)
    assert not kept.exists()
    assert (output / "confirm" / "cells.jsonl").read_text() == "1\n2\n3\n"
    assert ["--resume" in words for words in calls] == [False, True, True]


@pytest.mark.slow
def test_a_step_is_interrupted_when_the_time_is_over(tmp_path, tiny_preset, real_model):
    words = ("train", "--preset", str(tiny_preset), "--set", "training.steps=1000000", "--output", "run")
    with pytest.raises(SystemExit):
        real_model.antiphase(*words, folder=tmp_path, ends=time.monotonic() + 20)
