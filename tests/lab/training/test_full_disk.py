"""A disk that is full in the middle of the work costs one sentence; what was finished stays, and nothing half done."""

import re
import resource
import subprocess

import pytest

from antiphase.base.folders.contents import digest_of
from antiphase.lab.training import loop

LEFT = 12_288
"""Bytes that are left: enough for settings and logs, and for no weights."""


@pytest.fixture
def disk(tmp_path):
    """A small disk, and a function that leaves few bytes free; where no disk can be mounted, it limits file sizes."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mounted = not subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", folder], capture_output=True
    ).returncode
    before = resource.getrlimit(resource.RLIMIT_FSIZE)

    def fill(left=LEFT):
        if mounted:
            filler = folder / "filler"
            filler.unlink(missing_ok=True)
            free = int(subprocess.check_output(["stat", "-f", "-c", "%a", folder])) * 4096
            filler.write_bytes(bytes(max(0, free - left)) if left else b"")
        else:
            resource.setrlimit(resource.RLIMIT_FSIZE, (left or before[0], before[1]))

    yield folder, fill
    resource.setrlimit(resource.RLIMIT_FSIZE, before)
    if mounted:
        subprocess.run(["umount", folder], check=True)


@pytest.fixture
def fails(antiphase, disk):
    """Run a command that meets the full disk."""

    def run(*arguments):
        code, _, err = antiphase(*arguments)
        assert code == 2, err
        assert re.fullmatch(
            r"antiphase: (--output )?\S+ cannot be written \((No space left on device|File too large)\); [^\n]+\n", err
        )
        assert not list(disk[0].rglob("*.tmp"))

    return run


@pytest.mark.slow
@pytest.mark.essential
def test_training_keeps_its_last_checkpoint_and_goes_on(antiphase, fails, disk, tiny_preset, monkeypatch):
    (folder, fill), real, steps = disk, loop.save_checkpoint, []

    def save(*arguments):
        steps.append(arguments[-1].step)
        if len(steps) == 2:
            fill()
        real(*arguments)

    monkeypatch.setattr(loop, "save_checkpoint", save)
    command = f"train --preset {tiny_preset} --output {folder / 'run'}"
    fails(command)
    (kept,) = (folder / "run" / "checkpoint").iterdir()
    before = digest_of(sorted(kept.iterdir()))
    fails(f"{command} --resume")
    assert digest_of(sorted(kept.iterdir())) == before
    fill(0)
    code, out, _ = antiphase(f"{command} --resume")
    assert code == 0
    assert "damaged" not in out


def test_a_page_that_could_not_be_written_is_written_by_the_same_command(
    antiphase, fails, disk, tmp_path, tiny_model, text_tokenizer
):
    (folder, fill), model = disk, tmp_path / "model"
    tiny_model("softmax", vocab_size=len(text_tokenizer)).save_pretrained(model)
    text_tokenizer.save_pretrained(model)
    command, output = f"look {model} --text word --output {folder / 'seen'}", folder / "seen"
    fill(64 * 1024)  # enough for the record
    fails(command)
    assert (output / "record.json").is_file()
    assert not (output / "report.html").exists()
    fill(0)
    code, _, err = antiphase(command)
    assert code == 0, err
    assert {path.name for path in output.iterdir()} == {".lock", "record.json", "record.safetensors", "report.html"}


@pytest.mark.slow
def test_what_a_command_writes_at_once_is_there_whole_or_not(
    fails, disk, tmp_path, tiny_preset, tiny_model, text_tokenizer, generated_text
):
    (folder, fill), model = disk, tmp_path / "model"
    tiny_model("softmax", vocab_size=len(text_tokenizer)).save_pretrained(model)
    text_tokenizer.save_pretrained(model)
    (tmp_path / "labelled.txt").write_text("A a word\nB another word\n" * 20)
    (tmp_path / "text.txt").write_text(generated_text)
    fill()
    fails(f"convert {model} {folder / 'converted'}")
    fails(f"classify --train {tmp_path / 'labelled.txt'} --seeds 0 --output {folder / 'classified'}")
    fails(f"train --preset {tiny_preset} --data {tmp_path / 'text.txt'} --output {folder / 'text'}")
    assert not (folder / "converted").exists()
    assert not list(folder.rglob("record.json"))
