"""A comparison that is not finished shows the curves that it has, and says how far it is."""

import json
from types import SimpleNamespace

import pytest
from rich.console import Console

from antiphase.base.errors import BrokenRunError, Interrupted, naming_fields
from antiphase.base.records import PAGE
from antiphase.cli.console import page_writer
from antiphase.cli.naming import flag_of
from antiphase.lab.pages.html import write_report
from antiphase.lab.settings.presets import load_preset
from antiphase.lab.studies.compare import measure as compare_module
from antiphase.lab.studies.compare.measure import _showing, compare, unfinished
from antiphase.lab.studies.grid import Grid
from antiphase.lab.training.run_folder import CURVE


@pytest.fixture
def study(tmp_path, tiny_preset_text):
    (tmp_path / "tiny.yaml").write_text(tiny_preset_text, encoding="utf-8")
    return Grid(
        load_preset(str(tmp_path / "tiny.yaml"), ["compare.seeds=[0]", "compare.processes=1"]), tmp_path / "study"
    )


def write_curves(study, points):
    """Each run's evaluations, at the given numbers of steps."""
    for job, steps in zip(study.jobs, points, strict=True):
        (study.output / job.name).mkdir(parents=True, exist_ok=True)
        curve = [{"step": step, "train_loss": None, "loss": 5.0 - step, "accuracy": step / 9} for step in steps]
        (study.output / job.name / CURVE).write_text(json.dumps(curve))


def test_nothing_is_shown_before_there_is_a_curve(study):
    assert unfinished(study, guess_rate=0.25) is None
    write_curves(study, [[0], [0]])
    assert unfinished(study, guess_rate=0.25) is None


def test_the_share_that_is_done_and_every_point_so_far_are_shown(study, tmp_path):
    write_curves(study, [[0, 2, 4], [0]])
    record = unfinished(study, guess_rate=0.25)
    assert [[point["step"] for point in run["curve"]] for run in record.values["runs"]] == [[0, 2, 4], [0]]
    assert record.values["unfinished"] == pytest.approx(4 / (2 * study.preset.run.training.steps))
    page = write_report([record], tmp_path / "page.html", refresh=30).read_text("utf-8")
    assert f"{100 * record.values['unfinished']:.0f} % of the training is done" in page
    assert '<meta http-equiv="refresh" content="30">' in page
    assert "Learning curves" in page


def test_a_finished_page_does_not_load_itself_again(study, tmp_path):
    write_curves(study, [[0, 2], [0, 2]])
    record = unfinished(study, guess_rate=0.25)
    del record.values["unfinished"]
    page = write_report([record], tmp_path / "page.html").read_text("utf-8")
    assert 'http-equiv="refresh"' not in page
    assert "of the training is done" not in page


def stopped(study, watch, error, between=lambda: None):
    """A comparison that shows what it has, and then stops."""
    data = SimpleNamespace(task=lambda: SimpleNamespace(guess_rate=0.25))
    with _showing(study, data, lambda *told: None, watch) as show:
        show(study.jobs[0], 2, {})
        between()
        raise error


@pytest.mark.parametrize(
    ("error", "given"), [(Interrupted, ()), (BrokenRunError, ["--resume"]), (KeyboardInterrupt, ())]
)
@naming_fields(flag_of)
def test_the_page_of_a_comparison_that_stopped_says_so(error, given, study, monkeypatch):
    """How far it was when it stopped, not when it was last shown, and what goes on; it does not load itself again."""
    monkeypatch.setattr(compare_module, "FIRST_PAGE", 0.0)
    monkeypatch.setattr("sys.argv", ["antiphase", "compare", "--preset", "demo", *given])
    page = study.output / PAGE

    def go_on():
        assert 'http-equiv="refresh"' in page.read_text("utf-8")
        write_curves(study, [[0, 2, 4], [0, 2]])

    write_curves(study, [[0, 2], [0]])
    with pytest.raises(error):
        stopped(study, page_writer(Console(quiet=True), study.output), error, go_on)
    text = page.read_text("utf-8")
    done = 100 * (4 + 2) / (2 * study.preset.run.training.steps)
    assert f"The comparison stopped when {done:.0f} % of the training was done. It goes on with: " in text
    assert "antiphase compare --preset demo --resume</p>" in text
    assert 'http-equiv="refresh"' not in text
    assert "is updated while" not in text


def test_a_comparison_that_stops_before_its_first_page_has_none(study):
    write_curves(study, [[0, 2], [0, 2]])
    seen = []
    with pytest.raises(Interrupted):
        stopped(study, seen.append, Interrupted)
    assert seen == []


@pytest.mark.slow
def test_the_page_during_a_comparison_shows_the_beginning_of_its_record(study, monkeypatch):
    monkeypatch.setattr(compare_module, "FIRST_PAGE", 0.0)
    monkeypatch.setattr(compare_module, "NEXT_PAGES", 0.0)
    seen = []
    record = compare(study.preset, study.output, watch=seen.append)
    assert seen
    whole = {run["folder"]: run["curve"] for run in record.values["runs"]}
    for early in seen:
        assert all(run["curve"] == whole[run["folder"]][: len(run["curve"])] for run in early.values["runs"])
    assert seen[0].values["unfinished"] < 1  # the second run begins when the first has ended
