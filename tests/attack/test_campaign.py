"""The short form of the campaign, and that its faults are real ones."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from attack import campaign, disk, fuzz, programs, stops, targets
from attack.readers import READERS, copy_of

from antiphase.base.errors import InputError, Interrupted

CAMPAIGN = Path(__file__).with_name("campaign.py")
CORPUS = Path(__file__).parent / "corpus"


@pytest.mark.slow
def test_nothing_is_lost_in_a_minute(tmp_path):
    """About a minute on an idle core; what the campaign finds is printed."""
    done = subprocess.run(
        [sys.executable, str(CAMPAIGN), "--minute", "--output", str(tmp_path)], capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    values = json.loads((tmp_path / "attack.json").read_text())["values"]
    assert [line for part in values.values() for line in part["wrong"]] == []
    assert sum(row["stops"] for row in values["kills"]["rows"]) >= 4
    assert sum(row["stops"] for row in values["faults"]["rows"]) >= 1
    assert {row["reader"] for row in values["inputs"]["rows"]} == set(READERS)
    assert all(row["tries"] >= 20 for row in values["inputs"]["rows"])


def test_a_campaign_that_was_ended_goes_on_with_the_next_try(tmp_path):
    chosen = [targets.Target("one", ()), targets.Target("two", ())]
    tried = []

    def attempt(target, whole, folder, draw):
        tried.append(draw.random())
        lost = ["a file"] if len(tried) == 2 else []
        return stops.Outcome(target.name, [draw.choice(["at a write", "Ctrl-C"])], lost)

    def sitting(folder, minutes):
        campaign_now = campaign.Campaign(tmp_path, 5, minutes)
        campaign_now.known = {target.name: stops.Undisturbed(1.0, 0, {}) for target in chosen}
        campaign_now.journal = campaign.journal(tmp_path / folder, 6, 5)
        return campaign_now

    rows = sitting("whole", 9)._table(chosen, 6, lambda target: [attempt])
    whole, tried[:] = list(tried), []
    assert len(set(whole)) == 6
    assert [(row["stops"], row["lost"]) for row in rows] == [(3, 0), (3, 1)]

    sitting("parts", 9)._table(chosen, 4, lambda target: [attempt])
    again = sitting("parts", 0)
    with pytest.raises(Interrupted):
        again._table(chosen, 6, lambda target: [attempt])
    assert len(tried) == 4
    again = sitting("parts", 9)
    assert again._table(chosen, 6, lambda target: [attempt]) == rows
    assert tried == whole
    assert len(again.wrong) == 1
    with pytest.raises(InputError):
        campaign.journal(tmp_path / "parts", 7, 5)


@pytest.mark.slow
@pytest.mark.parametrize("error", disk.ERRORS)
def test_the_shim_fails_the_call_that_it_is_asked_for(tmp_path, error):
    library = programs.build_shim(tmp_path)
    if library is None:
        pytest.skip("no C compiler here")
    write = "f = open('in/x', 'wb'); f.write(b'abcd'); f.flush(); os.fsync(f); f.close(); os.replace('in/x', 'in/y')"

    def ends(call):
        (tmp_path / "in").mkdir(exist_ok=True)
        environment = {
            **os.environ, "LD_PRELOAD": str(library), "ATTACK_FOLDER": str(tmp_path / "in"),
            "ATTACK_FAULT": f"{call} {error} 1",
        }  # fmt: skip
        done = subprocess.run(
            [sys.executable, "-c", f"import os\n{write}\nprint(open('in/y').read())"], cwd=tmp_path, env=environment,
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert os.strerror(error) in done.stderr or done.stdout == "abcd\n"
        return done.returncode

    assert [ends(call) for call in range(1, 6)] == [1, 1, 1, 1, 0]  # open, write, fsync, rename; there is no fifth


def test_a_reader_that_fails_is_noticed(tmp_path, monkeypatch):
    def read(folder):
        content = (folder / "a.json").read_bytes()
        if content == b'{"a": 1}':
            return
        if len(content) > 8:
            raise ZeroDivisionError
        raise InputError("a.json is damaged; restore it")

    reader = fuzz.Reader(lambda folder: (folder / "a.json").write_bytes(b'{"a": 1}') and None, read)
    monkeypatch.setitem(READERS, "broken", reader)
    row = fuzz.fuzzed("broken", tmp_path, 60, 0)
    assert row["tries"] >= 50
    assert row["refused"] > 0
    assert any(line.startswith("broken: ZeroDivisionError in ") for line in row["wrong"])


def test_a_result_differs_where_a_byte_differs(tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "record.json").write_text('{"values": {"loss": 1.5}, "seconds": 3}')
    (tmp_path / "out" / "model.safetensors").write_bytes(b"abc")
    before = targets.result_of(tmp_path)
    (tmp_path / "out" / "record.json").write_text('{"values": {"loss": 1.5}, "seconds": 4}')
    assert targets.result_of(tmp_path) == before
    (tmp_path / "out" / "record.json").write_text('{"values": {"loss": 1.25}, "seconds": 4}')
    (tmp_path / "out" / "model.safetensors").write_bytes(b"abd")
    after = targets.result_of(tmp_path)
    assert all(after[name] != before[name] for name in ("record.json", "model.safetensors"))


@pytest.mark.parametrize("path", sorted(CORPUS.glob("*.json")), ids=lambda path: path.stem)
def test_what_once_failed_is_refused_or_read(tmp_path, path):
    """Each file of ``corpus`` names a reader, and a damage that it once failed on; bytes are written as Latin-1."""
    kept = json.loads(path.read_text(encoding="utf-8"))
    reader, (place, edits) = READERS[kept["reader"]], kept["damage"]
    (tmp_path / "whole").mkdir()
    reader.make(tmp_path / "whole")
    copy_of(tmp_path / "whole", tmp_path / "here")
    as_drawn = [tuple([*edit[:3], edit[3].encode("latin-1")] if edit[0] == "bytes" else edit) for edit in edits]
    fuzz.damaged(tmp_path / "here", (place, as_drawn))
    assert fuzz.judged(reader, tmp_path / "here", "", {"refused": 0}) is None
