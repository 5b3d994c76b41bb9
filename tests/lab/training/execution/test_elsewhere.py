"""``classify`` and ``translate`` make their runs in other processes: the results are the same."""

import json
from dataclasses import replace

import pytest

from antiphase.base.errors import InputError
from antiphase.base.records import Record
from antiphase.lab.lineage import finished_runs
from antiphase.lab.lineage.commands.classify import ClassifySettings
from antiphase.lab.lineage.commands.classify.measure import classify
from antiphase.lab.lineage.commands.translate import TranslateSettings
from antiphase.lab.lineage.commands.translate.measure import translate
from antiphase.lab.training.execution.local import start_process

CLOCK = {"seconds", "created", "command", "sha256", "belongs_to", "environment"}


class Elsewhere:
    """Processes of this machine in the place of a cluster; the first ``deaths`` of them never begin."""

    def __init__(self, deaths=0):
        self.deaths, self.commands, self.checked = deaths, [], []

    def check(self, folder, paths, say):
        self.checked.append((folder, list(paths)))

    def pool(self, devices, wanted, say):
        return self

    slots, threads = 2, 1

    def start(self, command):
        self.commands.append(command)
        is_broken = len(self.commands) <= self.deaths
        return start_process(replace(command, words=["no-command"]) if is_broken else command, 1, None)

    def close(self):
        """Nothing is open."""


@pytest.fixture
def elsewhere(monkeypatch):
    def use(**given):
        executor = Elsewhere(**given)
        monkeypatch.setattr(finished_runs, "executor_of", lambda settings: executor)
        return executor

    return use


def steady(tree):
    if isinstance(tree, dict):
        return {name: steady(value) for name, value in tree.items() if name not in CLOCK}
    return [steady(one) for one in tree] if isinstance(tree, list) else tree


def contents(output):
    """What lies in a folder, without times."""
    found = {}
    for path in sorted(output.rglob("*")):
        name = path.relative_to(output).as_posix()
        if path.is_file() and not name.startswith("logs/"):
            is_tree = path.suffix == ".json"
            found[name] = steady(json.loads(path.read_text("utf-8"))) if is_tree else path.read_bytes()
    return found


@pytest.fixture
def classified(tmp_path):
    rows = tmp_path / "rows, two.txt"
    rows.write_text("".join(f"{'AB'[i % 2]} word{i % 7} {'ba'[i % 2]}{i % 3}\n" for i in range(60)))
    return ClassifySettings(
        train=[str(rows)], models=("cnn", "lstm"), seeds=(0, 3), folds=2, vocabulary=50,
        settings=("epochs=1", "cnn.dropout=0.25"),
    )  # fmt: skip


TRANSLATED = TranslateSettings(
    models=("transformer", "differential"), seeds=(1, 2), samples=40, test_samples=8, settings=("epochs=1",)
)


@pytest.mark.slow
def test_classifiers_are_the_same(classified, tmp_path, elsewhere):
    executor = elsewhere()
    classify(classified, tmp_path / "here")
    shares = []
    away = replace(classified, executor="ray", job_cpus=1)
    classify(away, tmp_path / "away", report=lambda done, count: shares.append((done, count)))
    assert contents(tmp_path / "away") == contents(tmp_path / "here")
    assert executor.checked == [(tmp_path / "away", list(classified.train))]
    assert sorted(command.name for command in executor.commands) == [
        "cnn-seed0",
        "cnn-seed3",
        "lstm-seed0",
        "lstm-seed3",
    ]
    assert {count for _, count in shares} == {8}
    assert shares[-1][0] == 8
    classify(classified, tmp_path / "away", resume=True)  # here, where nothing is left to do
    assert len(executor.commands) == 4


@pytest.mark.slow
def test_translators_are_the_same(tmp_path, elsewhere):
    executor = elsewhere()
    translate(TRANSLATED, tmp_path / "here")
    translate(replace(TRANSLATED, executor="ray"), tmp_path / "away")
    assert contents(tmp_path / "away") == contents(tmp_path / "here")
    assert len(executor.commands) == 4


@pytest.mark.slow
def test_what_is_finished_stays_when_a_job_fails(tmp_path, elsewhere):
    elsewhere(deaths=1)
    away = replace(TRANSLATED, executor="ray")
    with pytest.raises(InputError, match="no-command"):
        translate(away, tmp_path / "away")
    again = elsewhere()
    translate(away, tmp_path / "away", resume=True)
    assert "transformer-seed1" in [command.name for command in again.commands]
    assert not (tmp_path / "away" / "jobs").exists()
    assert len(Record.load(tmp_path / "away").values["runs"]) == 4


@pytest.fixture
def half(tmp_path):
    """A study of one part with two runs, of which one was moved when the study was killed; and what was asked for."""
    request = ClassifySettings(train=["t"], seeds=(0,))
    part = finished_runs.RunGroup("cnn-seed0", request, ["cnn-seed0-fold0", "cnn-seed0-fold1"], "abc")
    own = tmp_path / finished_runs.JOBS / "cnn-seed0"
    for place in (tmp_path / "cnn-seed0-fold0", own / "cnn-seed0-fold1"):
        place.mkdir(parents=True)
        (place / "record.json").write_text("{}")
    for place, seeds in ((tmp_path, [0, 1]), (own, [0])):
        (place / "request.json").write_text(json.dumps({"request": {"seeds": seeds}, "content": "abc"}))
    return [part], tmp_path, request


def made(half, **changes):
    parts, output, request = half
    silent = {"say": lambda words: None, "report": lambda *given: None}
    finished_runs.make_elsewhere("classify", parts, output, replace(request, **changes), [], **silent)


@pytest.mark.parametrize("executor", ["local", "ray"])
def test_what_a_killed_study_had_finished_is_moved_by_the_next_call(half, elsewhere, executor):
    commands = elsewhere().commands
    made(half, executor=executor)
    assert (half[1] / "cnn-seed0-fold1" / "record.json").is_file()
    assert not (half[1] / finished_runs.JOBS).exists()
    assert not commands


def test_a_part_that_has_read_other_texts_is_refused(half, elsewhere):
    elsewhere()
    path = half[1] / finished_runs.JOBS / "cnn-seed0" / "request.json"
    path.write_text(path.read_text().replace("abc", "abd"))
    with pytest.raises(InputError, match="this part has read other texts than the study"):
        made(half, executor="ray")
    assert not (half[1] / "cnn-seed0-fold1").exists()


def test_folds_in_both_places_count_as_finished(half):
    reports = []
    task = finished_runs._Elsewhere("classify", half[0][0], half[1], lambda *given: reports.append(given), 4)
    assert task.is_done()
    task.check()
    assert task.is_done()
    task.report(done=True)
    assert reports == [(2, 4)]
