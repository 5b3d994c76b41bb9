"""Claims are written down before a study runs, once, and what is not there gets no verdict."""

import hashlib
import json

import pytest

from antiphase.config import load_preset
from antiphase.errors import InputError
from antiphase.studies import grid
from antiphase.studies.compare import measure as module
from antiphase.studies.registered_claims import CLAIMS_FILE, register, registered

CLAIMS = [{"name": "loss, b", "better": "lower"}]


def test_the_file_is_read_back_with_its_hash(tmp_path):
    register(tmp_path, primary="loss, b", seeds=[0, 1], claims=CLAIMS)
    content = (tmp_path / CLAIMS_FILE).read_bytes()
    found = registered(tmp_path)
    assert (found.claims, found.primary) == (["loss, b"], "loss, b")
    assert found.sha256 == hashlib.sha256(content).hexdigest()
    assert found.written == json.loads(content)["written"]
    register(tmp_path, primary="other", seeds=[5], claims=[])
    assert (tmp_path / CLAIMS_FILE).read_bytes() == content
    assert registered(tmp_path / "nowhere") is None


@pytest.mark.parametrize("content", ["{", "[]", '{"claims": [{}]}', '{"claims": []}'])
def test_a_broken_file_is_reported(tmp_path, content):
    (tmp_path / CLAIMS_FILE).write_text(content)
    with pytest.raises(InputError, match=r"^--output \S*claims.json: .*; restore the original file$"):
        registered(tmp_path)


def test_other_claims_than_those_of_the_settings_are_refused(tmp_path):
    register(tmp_path, primary="loss, b", seeds=[0, 1], claims=CLAIMS)
    assert registered(tmp_path, claims=CLAIMS) == registered(tmp_path)
    path = tmp_path / CLAIMS_FILE
    tree = json.loads(path.read_text())
    for other in ([], [{**CLAIMS[0], "better": "higher"}]):
        path.write_text(json.dumps({**tree, "claims": other}))
        with pytest.raises(InputError, match=r"not the claims that follow from the settings; restore"):
            registered(tmp_path, claims=CLAIMS)


class StopError(Exception):
    """Instead of a training run."""


@pytest.fixture
def begun(tmp_path, monkeypatch, tiny_preset):
    """A comparison that stops before its first run; the claims that stood in the folder then."""

    def run(*, resume=False):
        seen = []

        def runs(jobs, output, **options):
            path = output / CLAIMS_FILE
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
    assert tree["seeds"] == [0, 1]
    assert tree["primary"] == tree["claims"][0]["name"] == "first-query accuracy, differential"
    assert begun(resume=True) == first


def test_a_study_that_began_without_claims_gets_none_after_its_first_run(begun, tmp_path):
    """It gets them if it was stopped before that, between its settings and its claims."""
    first = json.loads(begun())
    (tmp_path / "out" / CLAIMS_FILE).unlink()
    assert json.loads(begun(resume=True))["claims"] == first["claims"]
    (tmp_path / "out" / CLAIMS_FILE).unlink()
    (tmp_path / "out" / "softmax-seed0").mkdir()
    assert begun(resume=True) is None


def test_a_refused_study_leaves_no_claims(tmp_path):
    preset = load_preset("demo", ["data.sequence_length=10"])
    with pytest.raises(InputError):
        module.compare(preset, tmp_path / "out")
    assert not (tmp_path / "out").exists()
