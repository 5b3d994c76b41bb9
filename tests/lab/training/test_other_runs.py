"""Checkpoints, logs and records of another run, of equal shapes, are never taken for a run's own."""

import json
import shutil

import pytest

from antiphase.base.errors import InputError
from antiphase.base.folders.journal import Journal, append_line
from antiphase.base.records import Record
from antiphase.lab.settings.presets import load_preset
from antiphase.lab.studies.training_run import curve_evaluations
from antiphase.lab.text.prepare import prepare
from antiphase.lab.training.loop import train
from antiphase.lab.training.run_folder import check_run_of, run_digest, run_metrics
from support.records import write_sealed


@pytest.fixture(scope="module")
def trained(tmp_path_factory, tiny_preset_text):
    """Two finished runs that differ in their seeds alone."""
    home = tmp_path_factory.mktemp("runs")
    (home / "tiny.yaml").write_text(tiny_preset_text)
    for name, changes in (("own", []), ("other", ["training.seed=8"])):
        chosen = load_preset(str(home / "tiny.yaml"), changes).run
        data = prepare(chosen.data, home / "tokens")
        train(chosen, data, home / name, evaluations=curve_evaluations(chosen, data))
    return home


@pytest.fixture
def two(trained, tmp_path):
    """Copies of them."""
    return [shutil.copytree(trained / name, tmp_path / name) for name in ("own", "other")]


def take(name, own, other):
    """Replace a file or folder of a run by the other run's."""
    if (own / name).is_dir():
        shutil.rmtree(own / name)
        shutil.copytree(other / name, own / name)
    else:
        shutil.copy(other / name, own / name)


@pytest.mark.parametrize(("names", "said"), [
    (["checkpoint"], r"its checkpoint is of another run .* or remove .*checkpoint to begin the run afresh"),
    (["metrics.jsonl"], r"the line of step \d+ is of another run; restore the file, or remove it"),
    (["record.json"], r"the record of other work than (run.yaml|model.sha256) beside it"),
    (["record.json", "model.sha256", "model.safetensors"], r"the record of other work than run.yaml beside it"),
    (["checkpoint", "metrics.jsonl", "curve.json"], "its checkpoint is of another run"),
])  # fmt: skip
def test_what_another_run_left_is_refused(run, two, names, said):
    own, other = two
    for name in names:
        take(name, own, other)
    with pytest.raises(InputError, match=said):
        run(own, resume=True)


def test_what_the_run_itself_left_is_taken(run, two):
    own, _ = two
    before = Record.load(own).values
    assert run(own, resume=True).values["curve"] == before["curve"]
    assert before["run"] == run_digest(own)


def test_an_equal_run_elsewhere_is_the_same_run(run, two, tmp_path):
    own, _ = two
    run(tmp_path / "again", "training.threads=1", "description=the same")
    assert run_digest(own) == run_digest(tmp_path / "again")
    take("checkpoint", own, tmp_path / "again")
    run(own, resume=True)


def test_text_and_first_weights_are_part_of_a_run(run, two):
    own, _ = two
    before = run_digest(own)
    for name in ("text.sha256", "start.sha256"):
        (own / name).write_text("0" * 64)
        assert run_digest(own) != before
        (own / name).unlink()


def test_a_record_that_does_not_say_of_which_run_it_is_is_refused(two):
    """Also one that could lie in any folder."""
    own, _ = two
    tree = json.loads((own / "record.json").read_text())
    del tree["belongs_to"], tree["values"]["run"]
    write_sealed(own / "record.json", tree)
    with pytest.raises(InputError, match=r"record.json is the record of another run than run.yaml beside it"):
        run_metrics(own)


def test_a_folder_of_a_study_holds_the_run_of_its_name(two, settings):
    own, other = two
    check_run_of(own, settings())
    with pytest.raises(InputError, match=r"with other settings than its study's \(training.seed\); remove that folder"):
        check_run_of(other, settings())
    take("record.json", own, other)
    with pytest.raises(InputError, match="the record of other work"):
        check_run_of(own, settings())


def test_the_log_of_another_run_is_not_counted(two):
    own, other = two
    assert run_metrics(own)
    take("metrics.jsonl", own, other)
    with pytest.raises(InputError, match="is of another run"):
        run_metrics(own)


def test_the_record_of_another_measurement_is_refused(tmp_path):
    """Every record names the work of its folder, whatever its kind, and is readable alone."""
    folders = [tmp_path / name for name in ("a", "b")]
    for number, folder in enumerate(folders):
        folder.mkdir()
        append_line(folder / "journal.jsonl", {"key": "inputs", "rows": {"--seed": number}})
        Record(kind="perplexity", values={"loss": number}).save(folder)
    (folders[0] / "journal.jsonl").open("a").write("{}\n")  # it grows
    assert Record.load(folders[0]).values == {"loss": 0}
    (tmp_path / "alone").mkdir()
    shutil.copy(folders[0] / "record.json", tmp_path / "alone")
    assert Record.load(tmp_path / "alone").values == {"loss": 0}
    shutil.copy(folders[0] / "record.json", folders[1])
    with pytest.raises(InputError, match=r"the record of other work than journal\.jsonl beside it tells of"):
        Record.load(folders[1])
    shutil.copy(Record(kind="perplexity", values={"loss": 0}).save(tmp_path / "free"), folders[1])
    assert Record.load(folders[1]).values == {"loss": 0}
    with pytest.raises(InputError, match=r"does not say which work it belongs to; remove it and repeat"):
        Journal(folders[1], lambda: {"--seed": 1})
    (folders[0] / "request.json").write_text("{}")
    with pytest.raises(InputError, match=r"than request\.json"):
        Record.load(folders[0])
