"""The claim of a study is written down before it runs, once."""

import hashlib
import json
from dataclasses import replace

import pytest

from antiphase.base.errors import InputError
from antiphase.lab.settings.presets import load_preset
from antiphase.lab.statistics.blocks import planned_detectable
from antiphase.lab.studies import grid
from antiphase.lab.studies.claims import CLAIM_FILE, Claim, register, registered
from antiphase.lab.studies.compare import measure as module

CLAIM = Claim.of_blocks("Is b better?", "loss: b - a", arms=3, blocks=4, spread=0.02)


def test_the_file_is_read_back_with_its_hash(tmp_path):
    register(tmp_path, CLAIM)
    content = (tmp_path / CLAIM_FILE).read_bytes()
    found = registered(tmp_path)
    assert (found.question, found.contrast, found.n, found.spread) == ("Is b better?", "loss: b - a", 4, 0.02)
    assert found.detectable == planned_detectable(0.02, arms=3, blocks=4)
    assert found.sha256 == hashlib.sha256(content).hexdigest()
    assert found.written == json.loads(content)["written"]
    register(tmp_path, replace(CLAIM, question="Is a better?"))
    assert (tmp_path / CLAIM_FILE).read_bytes() == content
    assert registered(tmp_path / "nowhere") is None


@pytest.mark.parametrize("content", ["{", "[]", '{"claims": [{}]}', '{"question": "q", "contrast": "c", "n": "x"}'])
def test_a_broken_file_is_reported(tmp_path, content):
    (tmp_path / CLAIM_FILE).write_text(content)
    with pytest.raises(InputError, match=r"^output \S*claim.json: .*; restore the original file$"):
        registered(tmp_path)


def test_another_claim_than_that_of_the_settings_is_refused(tmp_path):
    register(tmp_path, CLAIM)
    assert registered(tmp_path, CLAIM) == registered(tmp_path)
    path = tmp_path / CLAIM_FILE
    tree = json.loads(path.read_text())
    for other in ({"contrast": "loss: a - b"}, {"n": 5}, {"detectable": 0.001}):
        path.write_text(json.dumps({**tree, **other}))
        with pytest.raises(InputError, match=r"not the claim that follows from the settings; restore"):
            registered(tmp_path, CLAIM)


class StopError(Exception):
    """Instead of a training run."""


@pytest.fixture
def begun(tmp_path, monkeypatch, tiny_preset):
    """A comparison that stops before its first run; the claims that stood in the folder then."""

    def run(*, resume=False):
        seen = []

        def runs(jobs, output, **options):
            path = output / CLAIM_FILE
            seen.append(path.read_bytes() if path.is_file() else None)
            raise StopError

        monkeypatch.setattr(grid, "run_jobs", runs)
        with pytest.raises(StopError):
            module.compare(load_preset(str(tiny_preset)), tmp_path / "out", resume=resume)
        return seen[0]

    return run


def test_claims_stand_in_the_folder_before_the_first_run_and_a_second_call_leaves_them(begun, tmp_path):
    first = begun()
    tree = json.loads(first)
    assert (tree["n"], tree["contrast"]) == (2, "steps to 50 % accuracy: differential - softmax")
    assert begun(resume=True) == first


def test_a_study_that_began_without_claims_gets_none_after_its_first_run(begun, tmp_path):
    """It gets them if it was stopped before that, between its settings and its claims."""
    first = json.loads(begun())
    (tmp_path / "out" / CLAIM_FILE).unlink()
    assert json.loads(begun(resume=True))["contrast"] == first["contrast"]
    (tmp_path / "out" / CLAIM_FILE).unlink()
    (tmp_path / "out" / "softmax-seed0").mkdir()
    assert begun(resume=True) is None


def test_a_refused_study_leaves_no_claims(tmp_path):
    preset = load_preset("demo", ["data.sequence_length=10"])
    with pytest.raises(InputError):
        module.compare(preset, tmp_path / "out")
    assert not (tmp_path / "out").exists()
