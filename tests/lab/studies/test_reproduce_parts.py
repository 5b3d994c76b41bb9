"""What a reproduction does again, and what it does not: after a stop, another weight, another byte of text."""

import hashlib
import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from antiphase.base.errors import InputError
from antiphase.base.records import Record
from antiphase.cli import app
from antiphase.lab.measures.harness.measure import CELLS
from antiphase.lab.statistics.blocks import planned_detectable
from antiphase.lab.studies.claims import CLAIM_FILE
from antiphase.lab.studies.reproduce import ReproduceSettings
from antiphase.lab.studies.reproduce import measure as module
from antiphase.lab.studies.reproduce.measure import REQUEST, begin, registered_claim, scale_preset
from antiphase.lab.studies.reproduce.parts import PaperParts, own_inputs
from antiphase.lab.studies.reproduce.scales import SCALES
from antiphase.lab.training.execution.local import LOCAL


@pytest.fixture
def request_of(tmp_path):
    (tmp_path / "book.txt").write_text("The harbour lay quiet. " * 50)
    (tmp_path / "held.txt").write_text("A lamp burned in the mill. " * 50)
    return ReproduceSettings(scale="tiny", data=[str(tmp_path / "book.txt")], validation=[str(tmp_path / "held.txt")])


@pytest.fixture
def work(tmp_path, request_of):
    """A reproduction whose models are there."""
    output = tmp_path / "all"
    for arm in ("softmax", "differential"):
        folder = output / "compare" / f"{arm}-seed0"
        folder.mkdir(parents=True)
        for name in ("model.safetensors", "config.json", "tokenizer.json"):
            (folder / name).write_text(f"{arm} {name}")
    return PaperParts(request_of, scale_preset(request_of), output, lambda message: None, lambda *given: None, LOCAL)


class Counted:
    """A measurement that counts its calls, and is stopped at the first where it is told to."""

    def __init__(self, stop=False, journal="journal.jsonl"):
        self.calls, self.stop, self.journal, self.found = 0, stop, journal, []

    def __call__(self, folder):
        self.calls += 1
        self.found.append(sorted(path.name for path in folder.iterdir()) if folder.is_dir() else [])
        folder.mkdir(parents=True, exist_ok=True)
        (folder / self.journal).write_text("{}\n")
        if self.stop and self.calls == 1:
            raise KeyboardInterrupt
        record = Record(kind="measured", values={"call": self.calls})
        record.save(folder)
        return record


def arms(work, counted):
    """The records of both arms' models."""
    work.folders["part"] = []
    return [work.once("part", f"{arm}-seed0", counted, arm=arm, seed=0).values for arm in ("softmax", "differential")]


@pytest.mark.parametrize("name", ["model.safetensors", "config.json", "tokenizer.json"])
def test_a_model_that_has_changed_is_measured_again_and_no_other(work, name):
    counted = Counted()
    first = arms(work, counted)
    assert first == [{"call": 1, "arm": "softmax", "seed": 0}, {"call": 2, "arm": "differential", "seed": 0}]
    assert arms(work, counted) == first
    assert counted.calls == 2
    (work.output / "compare" / "differential-seed0" / name).write_text("another byte")
    again = arms(work, counted)
    assert counted.calls == 3
    assert (again[0], again[1]["call"]) == (first[0], 3)
    assert arms(work, counted) == again


def test_a_part_of_both_arms_follows_both_models(work):
    counted = Counted()
    work.folders["part"] = []
    for arm, calls in ((None, 1), ("softmax", 2), ("differential", 3)):
        if arm:
            (work.output / "compare" / f"{arm}-seed0" / "model.safetensors").write_text("another byte")
        for _ in range(2):
            work.once("part", "seed0", counted, seed=0)
            assert counted.calls == calls


@pytest.mark.parametrize(("journal", "kept"), [("notes.txt", []), ("journal.jsonl", ["journal.jsonl"])])
def test_parts_with_a_journal_continue_after_a_stop(work, journal, kept):
    counted = Counted(stop=True, journal=journal)
    with pytest.raises(KeyboardInterrupt):
        arms(work, counted)
    assert not (work.output / "part" / "softmax-seed0").exists()  # a folder appears when it is whole
    arms(work, counted)
    assert counted.found[:2] == [[], kept]


def test_a_part_that_was_stopped_does_not_continue_with_another_model(work):
    counted = Counted(stop=True)
    with pytest.raises(KeyboardInterrupt):
        arms(work, counted)
    (work.output / "compare" / "softmax-seed0" / "model.safetensors").write_text("another byte")
    arms(work, counted)
    assert counted.found[1] == []


def test_a_folder_without_its_record_is_made_again(work):
    counted = Counted()
    arms(work, counted)
    (work.output / "part" / "softmax-seed0" / "record.json").unlink()
    arms(work, counted)
    assert counted.calls == 3


def test_another_byte_of_text_and_other_sizes_are_another_reproduction(tmp_path, request_of, monkeypatch):
    preset, output = scale_preset(request_of), tmp_path / "new"
    begin(request_of, preset, output, resume=False)
    begin(request_of, preset, output, resume=True)
    begin(replace(request_of, only=("needles",)), preset, output, resume=True)
    for flag, path in (("--data", "book.txt"), ("--validation", "held.txt")):
        before = (tmp_path / path).read_text()
        (tmp_path / path).write_text(before.replace("quiet", "quite").replace("lamp", "limp"))
        with pytest.raises(InputError, match=f"began with other content: what {flag} names has changed since"):
            begin(request_of, preset, output, resume=True)
        (tmp_path / path).write_text(before)
    monkeypatch.setitem(SCALES, "tiny", replace(SCALES["tiny"], samples=7))  # as of another version
    with pytest.raises(InputError, match="other settings"):
        begin(request_of, preset, output, resume=True)
    shutil.rmtree(output)
    begin(request_of, preset, output, resume=False)
    assert (output / REQUEST).is_file()


def test_claims_are_written_before_the_run_and_never_again(tmp_path, request_of):
    preset, output = scale_preset(request_of), tmp_path / "new"
    begin(request_of, preset, output, resume=False)
    before = (output / CLAIM_FILE).read_bytes()
    tree = json.loads(before)
    assert (tree["n"], tree["spread"]) == (len(preset.compare.seeds), SCALES["tiny"].spread)
    assert tree["detectable"] == planned_detectable(tree["spread"], arms=2, blocks=tree["n"])
    begin(request_of, preset, output, resume=True)
    assert (output / CLAIM_FILE).read_bytes() == before
    assert registered_claim(output).sha256 == hashlib.sha256(before).hexdigest()
    (output / CLAIM_FILE).write_bytes(before.replace(b"loss", b"gain"))
    with pytest.raises(InputError, match=r"claim.json is not what it was when the reproduction began; restore it"):
        registered_claim(output)
    (output / CLAIM_FILE).unlink()
    with pytest.raises(InputError, match=r"claim.json is not what it was"):
        registered_claim(output)


def test_options_of_a_single_part_may_come_later_and_change(tmp_path, request_of, monkeypatch):
    monkeypatch.setitem(SCALES, "tiny", replace(SCALES["tiny"], reads_documents=True))
    (tmp_path / "news.jsonl").write_text('{"document": "A.", "summary": "B."}\n')
    for folder in ("tasks", "judge", "other"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "config.json").write_text(folder)
    (tmp_path / "tasks" / "sums.yaml").write_text("task: sums")
    request = replace(
        request_of, judge=str(tmp_path / "judge"), judge_data=[str(tmp_path / "news.jsonl")], tasks=["sums"],
        include_path=str(tmp_path / "tasks"),
    )  # fmt: skip
    preset, output = scale_preset(request), tmp_path / "new"
    begin(request_of, preset, output, resume=False)
    begin(request, preset, output, resume=True)
    parts = ("harness", "hallucination")
    before = {part: own_inputs(request, part) for part in parts}
    assert (own_inputs(request, "needles"), own_inputs(request_of, "needles")) == ([], [])
    other_judge = replace(request, judge=str(tmp_path / "other"))
    for changed, part in ((replace(request, tasks=["sums", "arc"]), "harness"), (other_judge, "hallucination")):
        begin(changed, preset, output, resume=True)
        assert [one for one in parts if own_inputs(changed, one) != before[one]] == [part]
    content = ("tasks/sums.yaml", "harness"), ("news.jsonl", "hallucination"), ("judge/config.json", "hallucination")
    for path, part in content:
        (tmp_path / path).write_text("task: other")
        begin(request, preset, output, resume=True)
        assert [one for one in parts if own_inputs(request, one) != before[one]] == [part]
        before[part] = own_inputs(request, part)


@pytest.mark.slow
def test_a_part_is_measured_again_for_other_tasks_and_does_not_take_up_their_journal(work, request_of):
    counted = Counted(stop=True, journal=CELLS)
    work.settings = replace(request_of, tasks=["one"])
    work.folders["harness"] = []
    with pytest.raises(KeyboardInterrupt):
        work.once("harness", "seed0", counted, seed=0)
    for tasks, calls, kept in ((["two"], 2, []), (["two"], 2, []), (["one"], 3, [CELLS])):
        work.settings = replace(request_of, tasks=tasks)
        work.once("harness", "seed0", counted, seed=0)
        assert counted.calls == calls
        assert counted.found[-1] == kept


@pytest.mark.slow
def test_parts_that_are_not_asked_for_now_stay_as_they_were_left(work, request_of):
    counted = Counted()
    work.settings = replace(request_of, tasks=["one"])
    work.seeds = [0]
    work.folders["harness"] = []
    work.once("harness", "seed0", counted, seed=0)
    for tasks in ([], ["two"]):
        work.settings = replace(request_of, tasks=tasks)
        assert [record.values for record in work.kept("harness")] == [{"call": 1}]
        assert work.folders["harness"] == [Path("harness/seed0")]
    assert work.kept("needles") == []  # nothing is there
    (work.output / "compare" / "softmax-seed0" / "model.safetensors").write_text("another byte")
    assert work.kept("harness") == []
    assert counted.calls == 1


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        pytest.param({"tasks": ["no_such_task"]}, "--tasks: .*'no_such_task'", marks=pytest.mark.slow),
        ({"tasks": ["x"], "include_path": "nowhere"}, "--include-path .*nowhere: there is no such folder"),
        ({"judge": "nowhere/judge", "judge_data": ["news.jsonl"]}, "judge .*nowhere/judge"),
        ({"judge": "j", "judge_data": ["absent.jsonl"]}, "judge_data .*absent.jsonl"),
    ],
)
def test_missing_options_of_a_part_are_reported_before_training(tmp_path, request_of, monkeypatch, changes, words):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(SCALES, "tiny", replace(SCALES["tiny"], reads_documents=True))
    (tmp_path / "news.jsonl").write_text('{"document": "A long day.", "summary": "A day."}\n')
    with pytest.raises(InputError, match=words):
        module.reproduce(replace(request_of, **changes), tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_models_that_read_too_little_are_not_judged(request_of):
    request = replace(request_of, judge="judge", judge_data=["news.jsonl"])
    with pytest.raises(
        InputError, match="--judge: the models of --scale tiny have too short a context for a text and its sum"
    ):
        scale_preset(request)


def test_the_budget_is_reported_before_anything_starts(tmp_path, request_of, monkeypatch):
    started = []

    def start(*given, **named):
        started.append(given)
        raise InputError("stopped")

    monkeypatch.setattr(module, "reproduce", start)
    options = ["--data", request_of.data[0], "--output", str(tmp_path / "out")]
    for scale, runs, words in (
        ("tiny", "10 runs and 26 short ones", "minutes here"), ("small", "20 runs and 26", "small is for a large GPU")
    ):  # fmt: skip
        found = CliRunner().invoke(app, ["reproduce", "--scale", scale, *options])
        assert runs in found.output
        assert words in " ".join(found.output.split())
    assert len(started) == 2


def test_prompts_end_where_training_asks_first(request_of, tmp_path):
    for path in (*request_of.data, *request_of.validation):
        text = Path(path).read_text()
        Path(path).write_text(text * 100)  # for a tokenizer that knows the words of the tasks
    for needles, is_shorter in ((4, True), (3, False)):  # tiny measures contexts of up to four needles
        request = replace(request_of, settings=[f"data.needles={needles}"])
        preset = scale_preset(request)
        work = PaperParts(request, preset, tmp_path / str(needles), lambda message: None, lambda *given: None, LOCAL)
        assert (work.length_asked() < preset.run.data.sequence_length) is is_shorter


def test_a_reproduction_that_was_killed_between_its_claims_and_its_request_goes_on(request_of, tmp_path, monkeypatch):
    def killed(path, content):
        raise KeyboardInterrupt

    preset, output = scale_preset(request_of), tmp_path / "new"
    with monkeypatch.context() as patch:
        patch.setattr(module, "write_atomically", killed)
        with pytest.raises(KeyboardInterrupt):
            begin(request_of, preset, output, resume=False)
    claims = (output / CLAIM_FILE).read_bytes()
    assert [path.name for path in output.iterdir()] == [CLAIM_FILE]
    begin(request_of, preset, output, resume=True)
    assert (output / CLAIM_FILE).read_bytes() == claims
    assert registered_claim(output).sha256 == hashlib.sha256(claims).hexdigest()
