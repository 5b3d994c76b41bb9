"""Work that was stopped goes on only as the very same, and a folder written beside appears whole or not at all."""

import json
import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass

import pytest

from antiphase.base.errors import InputError
from antiphase.base.folders.contents import check_content, check_start, check_text, is_same_content
from antiphase.base.folders.ownership import new_folder, only_one, unfinished, written_beside
from antiphase.base.folders.work import Resumable, work_in
from antiphase.lab.settings.flags import flag, kept_settings

KIND = Resumable.named("study", "compare.yaml")


@dataclass(frozen=True, kw_only=True)
class Request:
    """As a command has it."""

    sizes: tuple[int, ...] = flag("Sizes.", default=(1, 2))
    seed: int = flag("Seed.", default=0)
    device: str = flag("Device.", default="auto")
    executor: str = flag("Where.", default="local", places=True)


def refused(message):
    return pytest.raises(InputError, match=f"^{re.escape(message)}$")


@pytest.fixture
def output(tmp_path):
    return tmp_path / "out"


def test_a_new_folder_is_free_and_stays_unmade(output):
    assert not KIND.begun(output, resume=False)
    assert not KIND.begun(output, resume=True)
    assert not output.exists()


@pytest.mark.parametrize(
    ("kind", "foreign", "again", "other"),
    [
        (
            KIND,
            "exists and holds no study of antiphase; choose another folder",
            "already contains a study; add resume to continue it, or choose another folder",
            "holds a study with other settings (a, c); choose another folder",
        ),
        (
            Resumable("request.json"),
            "exists and is not empty; choose another folder",
            "already contains this work; add resume to continue it, or choose another folder",
            "holds work with other settings (a, c); choose another",
        ),
    ],
)
def test_messages_about_unusable_folders(output, kind, foreign, again, other):
    output.mkdir()
    (output / "notes.txt").touch()
    for resume in (False, True):
        with refused(f"output {output} {foreign}"), kind.held(output, resume=resume):
            pytest.fail("held")
    assert [path.name for path in output.iterdir()] == ["notes.txt"]  # no lock
    (output / kind.file).touch()
    with refused(f"output {output} {again}"):
        kind.begun(output, resume=False)
    assert kind.begun(output, resume=True)
    free = dict.fromkeys(["device", "run.training.threads", "data.tokenizer"], 0)
    with refused(f"output {output} {other}"):
        kind.check_same(output, {"a": 1, "b": 2, **free}, {"a": 0, "b": 2, "c": 3, **dict.fromkeys(free, 1)})


def test_weights_to_start_from_may_move_but_not_come_or_go(output):
    name = "compare.arms.softmax.training.start_from"
    KIND.check_same(output, {name: "here"}, {name: "there"})
    for before, now in (({name: "here"}, {name: None}), ({}, {name: "here"})):
        with pytest.raises(InputError, match=r"with other settings \(compare\.arms\.softmax\.training\.start_from\)"):
            KIND.check_same(output, before, now)


def begin(output, request, *, resume, texts="abc", model="m"):
    with work_in(output, kept_settings(request), resume=resume) as work:
        work.begin({"texts": texts, "model": model}, {"texts": "the texts have changed", "model": "MODEL is another"})


def test_work_goes_on_as_the_very_same(output):
    begin(output, Request(), resume=False)
    before = (output / "request.json").read_bytes()
    kept = {"request": {"sizes": [1, 2], "seed": 0, "device": "auto"}, "texts": "abc", "model": "m"}
    assert json.loads(before) == kept
    with pytest.raises(InputError, match="already contains this work; add resume"):
        begin(output, Request(), resume=False)
    begin(output, Request(device="cpu", executor="ray"), resume=True)
    with refused(f"output {output} holds work with other settings (sizes, seed); choose another"):
        begin(output, Request(sizes=(1,), seed=1), resume=True)
    with refused(f"output {output}: the texts have changed since this work began; choose another folder"):
        begin(output, Request(), resume=True, texts="abd")
    with refused(f"output {output}: MODEL is another since this work began; choose another folder"):
        begin(output, Request(), resume=True, model="n")
    assert (output / "request.json").read_bytes() == before


def test_work_that_another_did_meanwhile_is_seen(output, monkeypatch):
    """Between the first look and the lock another process began and ended."""
    real = only_one

    def meanwhile(folder):
        folder.mkdir()
        (folder / KIND.file).touch()
        return real(folder)

    monkeypatch.setattr("antiphase.base.folders.work.only_one", meanwhile)
    with pytest.raises(InputError, match="already contains a study"), KIND.held(output, resume=False):
        pytest.fail("held")


def test_contents_are_kept_once_and_compared_ever_after(tmp_path):
    run, study = tmp_path / "run", tmp_path / "study"
    run.mkdir()
    study.mkdir()
    assert is_same_content(run, "one")  # it did not keep which
    check_text(run, study)
    for check, words in ((check_content, "began with other text"), (check_start, "began from other weights than")):
        check(run, "one")
        check(run, "one")
        with pytest.raises(InputError, match=words):
            check(run, "two")
    check_content(study, "one")
    check_text(run, study)
    (study / "text.sha256").write_text("two\n")
    with pytest.raises(InputError, match="was trained on other text than its study began with"):
        check_text(run, study)
    check_content(run, None)


class Stop(BaseException):
    """An interruption."""


def test_a_folder_written_beside_appears_whole_or_not_at_all(tmp_path):
    def write(stop):
        with written_beside(tmp_path / "new") as folder:
            (folder / "deep").mkdir()
            (folder / "deep" / "a").write_text("x")
            if stop:
                raise Stop

    with pytest.raises(Stop):
        write(stop=True)
    assert not list(tmp_path.iterdir())
    for killed in (".new.tmp", ".other.tmp"):
        (tmp_path / killed).mkdir()
    (tmp_path / ".file.tmp").touch()
    write(stop=False)
    assert sorted(path.name for path in tmp_path.iterdir()) == [".file.tmp", "new"]
    assert (tmp_path / "new" / "deep" / "a").read_text() == "x"
    with pytest.raises(OSError, match="not empty"):  # nothing is overwritten
        write(stop=False)


def test_a_command_that_was_killed_is_repeated_and_another_is_refused(tmp_path, monkeypatch):
    folder = tmp_path / "out"

    def work(words, stop=None):
        monkeypatch.setattr("sys.argv", ["antiphase", *words.split()])
        with unfinished(folder), new_folder(folder):
            (folder / "record.json").write_text(words)
            if stop is not None:
                raise stop

    with pytest.raises(Stop):
        work("look a", Stop())
    with pytest.raises(InputError, match="exists and is not empty"):
        work("look b")
    work("look a")
    assert [path.name for path in folder.iterdir() if path.name != ".lock"] == ["record.json"]
    with pytest.raises(InputError, match="exists and is not empty"):  # it is finished
        work("look a")
    shutil.rmtree(folder)
    with pytest.raises(InputError, match="wrong"):
        work("look a", InputError("wrong"))
    assert not folder.exists()
    with pytest.raises(OSError, match="full"):  # what a full disk ends is repeated too
        work("look a", OSError("full"))
    work("look a")


def test_what_killed_writers_leave_is_removed(tmp_path):
    """By the next process, also one with the number of the dead one, as in containers; not what a living one writes."""
    dead = subprocess.Popen([sys.executable, "-c", ""])
    dead.wait()
    gone = [f".record.json.{dead.pid}.tmp", f"..unfinished.{dead.pid}.tmp", f".metrics.jsonl.{os.getpid()}.tmp"]
    kept = [f".record.json.{os.getppid()}.tmp", ".holder.tmp"]
    for begin in (only_one, unfinished):
        folder = tmp_path / begin.__name__
        folder.mkdir()
        for name in (*gone, *kept):
            (folder / name).touch()
        with begin(folder):
            assert not [name for name in gone if (folder / name).exists()]
            assert all((folder / name).exists() for name in kept)
