"""Folders that somebody else began: nothing is written through what lies in them."""

import os

import pytest

from antiphase.errors import InputError
from antiphase.folders.ownership import LOCK, only_one


@pytest.mark.parametrize("name", ["config.json", LOCK, ".holder", "metrics.jsonl"])
@pytest.mark.parametrize("target", ["../outside", "run.yaml", "nowhere", "itself", "/dev/null"])
def test_a_link_in_the_place_of_a_file_is_refused(tmp_path, name, target):
    folder = tmp_path / "run"
    folder.mkdir()
    (tmp_path / "outside").write_text("precious")
    (folder / "run.yaml").write_text("a: 1")
    (folder / name).symlink_to(name if target == "itself" else target)
    with pytest.raises(InputError, match=rf"^--output \S+run: {name} is a link, so another file"), only_one(folder):
        pass
    assert (tmp_path / "outside").read_text() == "precious"
    assert sorted(path.name for path in folder.iterdir()) == sorted([name, "run.yaml"])


def test_a_pipe_in_the_place_of_a_file_is_refused(tmp_path):
    os.mkfifo(tmp_path / "config.json")
    with pytest.raises(InputError, match=r"config\.json is a pipe or a device; remove it"), only_one(tmp_path):
        pass


def test_folders_may_lie_on_another_disk(tmp_path):
    (tmp_path / "disk").mkdir()
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "checkpoint").symlink_to(tmp_path / "disk")
    (tmp_path / "link").symlink_to(tmp_path / "run")
    with only_one(tmp_path / "link"):
        assert (tmp_path / "run" / LOCK).exists()


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
