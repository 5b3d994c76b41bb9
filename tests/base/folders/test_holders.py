"""Folders that other machines hold: as long as they touch their file, and no longer."""

import errno
import json
import os
import shutil
import subprocess
import sys
import threading
import time

import pytest

from antiphase.base.errors import InputError, Interrupted
from antiphase.base.folders import holders
from antiphase.base.folders.holders import HOLDER, confirm_held, held_elsewhere, holder_of, machine
from antiphase.base.folders.journal import append_line
from antiphase.base.folders.ownership import is_in_use, only_one, written_beside
from antiphase.lab.training.run_folder import MetricsLog


@pytest.fixture
def foreign(tmp_path):
    """A holder on another machine that touched its file so many seconds ago."""

    def make(seconds, **fields):
        tree = {"machine": "another boot", "host": "node7", "process": 3, "token": "t", **fields}
        (tmp_path / HOLDER).write_text(json.dumps(tree))
        then = time.time() - seconds
        os.utime(tmp_path / HOLDER, (then, then))

    return make


def test_a_folder_that_another_machine_holds_is_in_use_until_it_is_silent(tmp_path, foreign):
    foreign(5)
    assert is_in_use(tmp_path) is False  # nobody has locked it here, and it was never a folder of ours
    (tmp_path / ".lock").touch()
    assert is_in_use(tmp_path)
    with pytest.raises(InputError, match=r"is in use by another process on node7; wait for it"), only_one(tmp_path):
        pass
    assert holder_of(tmp_path).host == "node7"
    foreign(holders.EXPIRES + 5)
    assert not is_in_use(tmp_path)
    with only_one(tmp_path):
        assert holder_of(tmp_path).machine == machine()
    assert not (tmp_path / HOLDER).exists()


def test_a_holder_that_ended_before_the_clock_went_back_does_not_hold_for_ever(tmp_path, foreign):
    foreign(-holders.EXPIRES / 2)  # clocks of two servers may differ by seconds
    assert held_elsewhere(tmp_path).host == "node7"
    foreign(-3600)
    assert held_elsewhere(tmp_path) is None


@pytest.mark.parametrize("kind", ["pipe", "device", "deep"])
def test_what_only_has_the_name_of_a_holder_is_none(tmp_path, kind):
    """Nobody waits for it, or reads it without end."""
    path = tmp_path / HOLDER
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "device":
        path.symlink_to("/dev/zero")
    else:
        path.write_text("[" * 10_000)
    assert holder_of(tmp_path) is None
    assert held_elsewhere(tmp_path) is None


def test_what_a_killed_process_of_this_machine_left_does_not_count(tmp_path, foreign):
    """Here the lock of the file system has ended with it."""
    foreign(0, machine=machine())
    with only_one(tmp_path):
        pass
    (tmp_path / HOLDER).write_bytes(b'{"machine"')
    assert held_elsewhere(tmp_path) is None


def test_nothing_is_written_once_another_machine_has_taken_the_folder_over(tmp_path, foreign):
    with only_one(tmp_path):
        confirm_held()
        with written_beside(tmp_path / "first") as folder:
            (folder / "weights").touch()
        foreign(0)
        with pytest.raises(Interrupted, match=r"was taken over by a process on node7"):  # noqa: SIM117 – the error's place
            with written_beside(tmp_path / "second") as folder:
                (folder / "weights").touch()
    assert (tmp_path / "first" / "weights").is_file()
    assert not (tmp_path / "second").exists()
    assert holder_of(tmp_path).host == "node7", "the other one's file is left alone"


@pytest.mark.parametrize("left", [None, b"{"])
def test_a_holder_that_slept_while_another_came_and_went_writes_nothing(tmp_path, left):
    """The other one's file is gone with it: no file is no more this process's than another's."""
    journal = tmp_path / "journal.jsonl"
    with pytest.raises(Interrupted, match=r"names this process as its holder no more"), only_one(tmp_path):  # noqa: PT012
        append_line(journal, {"key": "a"})
        log = MetricsLog(tmp_path, step=0, run="0")
        log.write({"step": 1})
        before = {path: path.read_bytes() for path in tmp_path.iterdir() if not path.name.startswith(".")}
        (tmp_path / HOLDER).unlink()
        if left is not None:
            (tmp_path / HOLDER).write_bytes(left)
        for write in (lambda: append_line(journal, {"key": "b"}), lambda: log.write({"step": 2})):
            with pytest.raises(Interrupted, match="names this process as its holder no more"):
                write()
        with written_beside(tmp_path / "checkpoint"):
            pass
    assert before == {path: path.read_bytes() for path in tmp_path.iterdir() if not path.name.startswith(".")}


def test_a_holder_survives_storage_that_does_not_answer_for_a_while(tmp_path, monkeypatch):
    monkeypatch.setattr(holders, "BEAT", 0.02)
    with holders.held(tmp_path):
        answer, asked = holders.holder_of, threading.Event()

        def fail(folder):
            asked.set()
            raise OSError(errno.EMFILE, "Too many open files")

        monkeypatch.setattr(holders, "holder_of", fail)
        assert asked.wait(10)
        monkeypatch.setattr(holders, "holder_of", answer)
        before = (tmp_path / HOLDER).stat().st_mtime_ns
        ends = time.monotonic() + 10
        while (tmp_path / HOLDER).stat().st_mtime_ns == before and time.monotonic() < ends:
            time.sleep(0.02)
        assert (tmp_path / HOLDER).stat().st_mtime_ns > before


def test_a_folder_that_was_removed_is_nobody_elses(tmp_path):
    with only_one(tmp_path / "run"):
        shutil.rmtree(tmp_path / "run")
        confirm_held()
        (tmp_path / "run").mkdir()  # for the lock's end


@pytest.mark.slow
@pytest.mark.parametrize("stays", [True, False])
def test_a_holder_touches_its_file_and_ends_when_it_was_taken_over(tmp_path, foreign, stays):
    code = (
        "import pathlib, sys, time; from antiphase.base.folders import holders, ownership\n"
        "holders.BEAT = 0.1\n"
        "with ownership.only_one(pathlib.Path(sys.argv[1])):\n    print('held', flush=True); time.sleep(60)"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code, tmp_path], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout.readline() == "held\n"
        path, before = tmp_path / HOLDER, (tmp_path / HOLDER).stat().st_mtime_ns
        while path.stat().st_mtime_ns == before:
            time.sleep(0.02)
        if stays:
            foreign(0)
        else:
            path.unlink()
        assert process.wait(30) == 1
        said = "was taken over by a process on node7" if stays else "names this process as its holder no more"
        assert said in process.stderr.read()
