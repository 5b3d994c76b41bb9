"""Folders that somebody else began: nothing is written through what lies in them."""

import os
import shutil

import pytest

from antiphase.base.errors import InputError
from antiphase.base.folders.ownership import LOCK, only_one


@pytest.mark.parametrize("name", ["config.json", LOCK, ".holder", "metrics.jsonl"])
@pytest.mark.parametrize("target", ["../outside", "run.yaml", "nowhere", "itself", "/dev/null"])
def test_a_link_in_the_place_of_a_file_is_refused(tmp_path, name, target):
    folder = tmp_path / "run"
    folder.mkdir()
    (tmp_path / "outside").write_text("precious")
    (folder / "run.yaml").write_text("a: 1")
    (folder / name).symlink_to(name if target == "itself" else target)
    with pytest.raises(InputError, match=rf"^output \S+run: {name} is a link, so another file"), only_one(folder):
        pass
    assert (tmp_path / "outside").read_text() == "precious"
    assert sorted(path.name for path in folder.iterdir()) == sorted([name, "run.yaml"])


def test_a_pipe_in_the_place_of_a_file_is_refused(tmp_path):
    os.mkfifo(tmp_path / "config.json")
    with pytest.raises(InputError, match=r"config\.json is a pipe or a device; remove it"), only_one(tmp_path):
        pass


@pytest.mark.parametrize("place", ["checkpoint", "checkpoint/step-00000004", "arm-seed0/checkpoint", "tokens"])
def test_a_link_to_a_folder_is_followed_nowhere(tmp_path, place):
    (tmp_path / "disk").mkdir()
    (tmp_path / "disk" / "weights").write_text("precious")
    path = tmp_path / "run" / place
    path.parent.mkdir(parents=True)
    path.symlink_to(tmp_path / "disk")
    with pytest.raises(InputError, match=rf"run: {place} is a link, so another folder would be changed; put a copy"):  # noqa: SIM117 – the error's place
        with only_one(tmp_path / "run"):
            pass
    assert (tmp_path / "disk" / "weights").read_text() == "precious"


def test_a_pipe_or_a_link_deep_inside_is_refused(tmp_path):
    (tmp_path / "run" / "a" / "b").mkdir(parents=True)
    os.mkfifo(tmp_path / "run" / "a" / "b" / "log")
    with pytest.raises(InputError, match=r"a/b/log is a pipe or a device"), only_one(tmp_path / "run"):
        pass


def test_the_folder_itself_may_lie_on_another_disk(tmp_path):
    (tmp_path / "disk").mkdir()
    (tmp_path / "run").symlink_to(tmp_path / "disk")
    with only_one(tmp_path / "run"):
        assert (tmp_path / "disk" / LOCK).exists()


def test_a_run_of_a_stranger_neither_resumes_nor_deletes_another(refused, antiphase, tmp_path, tiny_preset):
    """Its checkpoints are links to those of a run of the user's."""
    words = ["train", "--preset", str(tiny_preset), "--set", "training.steps=2", "--output"]
    for name in ("own", "strange"):
        code, _, err = antiphase([*words, name])
        assert code == 0, err
    shutil.rmtree(tmp_path / "strange" / "checkpoint")
    (tmp_path / "strange" / "checkpoint").symlink_to("../own/checkpoint")
    before = sorted((tmp_path / "own").rglob("*"))
    refused("checkpoint is a link, so another folder would be changed", [*words, "strange", "--resume"])
    assert sorted((tmp_path / "own").rglob("*")) == before


def test_a_run_of_a_stranger_overwrites_nothing_outside(refused, antiphase, tmp_path, tiny_preset):
    words = ["train", "--preset", str(tiny_preset), "--set", "training.steps=2", "--output", "run"]
    code, _, err = antiphase(words)
    assert code == 0, err
    for name in ("config.json", "record.json", "report.html"):
        (tmp_path / "run" / name).unlink()
    (tmp_path / "notes").write_text("precious")
    (tmp_path / "run" / "config.json").symlink_to("../notes")
    refused("config.json is a link, so another file would be overwritten", [*words, "--resume"])
    assert (tmp_path / "notes").read_text() == "precious"
