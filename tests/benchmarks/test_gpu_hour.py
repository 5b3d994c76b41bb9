"""The GPU hour: what fits is planned rightly, what is done outlives a kill, and every result of a test is kept."""

import importlib
import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import typer

from antiphase.config import load_preset
from antiphase.errors import InputError
from antiphase.records import Record

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"


@pytest.fixture(scope="module", autouse=True)
def _scripts():
    """The scripts import each other from their own folder."""
    sys.path.insert(0, str(BENCHMARKS))
    yield
    sys.path.remove(str(BENCHMARKS))


@pytest.fixture(scope="module")
def plans():
    return importlib.import_module("gpu_hour_plan")


@pytest.fixture(scope="module")
def stages():
    return importlib.import_module("gpu_hour_stage")


@pytest.fixture
def stage(stages, tmp_path):
    return stages.Stage(
        name="pilot", records=tmp_path / "out", work=tmp_path / "work", data=tmp_path / "data", minutes=10.0,
        device="cpu", is_rehearsal=True,
    )  # fmt: skip


ARMS = ("softmax", "differential")


def pace(plans, **changes):
    known = {"alone": {"softmax": 500_000.0, "differential": 400_000.0}, "together": 600_000.0, "start": 20.0,
             "measuring": 60.0}  # fmt: skip
    return plans.Pace(**{**known, **changes})


def planned(plans, speed, *, minutes=9.0, calls=2, steps=610, fewest=3):
    return plans.plan_training(
        speed, minutes=minutes, calls=calls, steps=steps, step_tokens=65536, fewest=fewest, arms=ARMS
    )  # fmt: skip


def test_whole_pairs_fit_into_a_call(plans):
    found = planned(plans, pace(plans))
    assert (found.steps, found.processes) == (610, 2)  # side by side 2 · 40M / 600,000 + 20, one by one 40 s more
    assert found.pair_seconds == pytest.approx(1.1 * (2 * 610 * 65536 / 600_000 + 20 + 60))
    assert found.pairs == 2
    assert found.pairs * found.pair_seconds <= 9 * 60 < (found.pairs + 1) * found.pair_seconds


def test_runs_go_one_by_one_where_that_is_quicker(plans):
    slow = pace(plans, together=300_000.0)
    assert planned(plans, slow).processes == 1


def test_runs_are_shorter_only_where_too_few_pairs_would_fit(plans):
    slow = pace(plans, together=250_000.0, alone={"softmax": 150_000.0, "differential": 150_000.0})
    found = planned(plans, slow)
    assert found.steps < 610
    assert 2 * found.pairs >= 3
    longer = plans.pair_seconds(slow, (found.steps + 1) * 65536, ARMS)[0]
    assert 2 * (9 * 60 // longer) < 3  # no longer run would do
    assert planned(plans, slow, fewest=2).steps == 610


def test_one_pair_is_better_than_none(plans):
    slow = pace(plans, together=90_000.0, alone={"softmax": 45_000.0, "differential": 45_000.0})
    found = planned(plans, slow, calls=1)
    assert found.pairs == 1
    assert round(plans.LEAST_SHARE * 610) <= found.steps < 610


def test_minutes_that_hold_no_pair_are_refused(plans):
    with pytest.raises(InputError, match=r"steps=610 is too much: .* 152 steps takes .* a call has 1\.0; set"):
        planned(plans, pace(plans), minutes=1.0)


def test_pieces_are_known_again_and_none_begins_without_time(stages, stage):
    kept = stages.Kept(stage)
    assert kept("one", lambda: {"value": 1}) == {"value": 1}
    again = stages.Kept(replace(stage, minutes=0.01))
    assert again("one", lambda: pytest.fail("it is known")) == {"value": 1}
    assert again("two", lambda: pytest.fail("there is no time")) is None
    assert Record.load(stage.record()).values == {"unfinished": True, "pieces": {"one": {"value": 1}}}


def test_only_some_pieces_run(stages, stage):
    """Those that are named and those that check; what is known already is kept."""
    stages.Kept(stage).add("forward, 9 tokens", 1)
    kept = stages.Kept(replace(stage, only="decode.*"))
    assert kept("decode, 9 tokens", lambda: 2) == 2
    assert kept("gate", lambda: 3) == 3
    assert kept("product rate, bfloat16", lambda: 4) == 4
    assert kept("a decode", lambda: pytest.fail("its name does not match as a whole")) is None
    assert kept("forward, 9 tokens", lambda: pytest.fail("it is known")) == 1


def test_pieces_of_other_sizes_are_refused(stages, stage):
    stages.Kept(stage).add("one", 1)
    with pytest.raises(InputError, match=r"pilot\.json was begun in other sizes or on another device; move it away"):
        stages.Kept(replace(stage, is_rehearsal=False))


def test_without_a_pilot_every_run_takes_the_steps_of_the_preset(training, stage, capsys):
    preset = load_preset("reproduce-gpu", data=["corpus.txt"])
    found = training._planned(replace(stage, name="train"), preset)
    assert (found.steps, found.processes, found.pair_seconds) == (1220, 2, 0.0)
    assert "has no pilot.json: every run takes the preset's steps" in capsys.readouterr().out


KILLED = """
import sys, time
sys.path.insert(0, {benchmarks!r})
from pathlib import Path
from gpu_hour_stage import Kept, Stage
stage = Stage(name="model", records=Path({out!r}), work=Path("w"), data=Path("d"), minutes=5, device="cpu",
              is_rehearsal=True)
kept = Kept(stage)
for number in range(3):
    kept(f"piece {{number}}", lambda: time.time())
    if number == 1 and len(sys.argv) > 1:
        time.sleep(60)
"""


@pytest.mark.slow
def test_finished_work_survives_a_kill(tmp_path):
    code = KILLED.format(benchmarks=str(BENCHMARKS), out=str(tmp_path))
    first = subprocess.Popen([sys.executable, "-c", code, "wait"])
    record = tmp_path / "model.json"
    while not (record.is_file() and len(Record.load(record).values["pieces"]) == 2):
        assert first.poll() is None
        time.sleep(0.05)
    first.send_signal(signal.SIGKILL)
    first.wait()
    before = Record.load(record).values["pieces"]
    subprocess.run([sys.executable, "-c", code], check=True)
    after = Record.load(record).values["pieces"]
    assert list(after) == ["piece 0", "piece 1", "piece 2"]
    assert {name: after[name] for name in before} == before


RESULTS = """
import pytest
def test_right(): pass
def test_wrong(): assert [1, 2] == [1, 3], "told"
@pytest.mark.skip(reason="not here")
def test_skipped(): pass
@pytest.fixture
def broken(): raise ValueError("no device")
def test_with_it(broken): pass
"""


@pytest.mark.slow
@pytest.mark.parametrize("parts", [1, 2])
def test_every_result_of_a_test_is_a_line(stages, tmp_path, parts):
    (tmp_path / "test_made.py").write_text(RESULTS)
    lines = tmp_path / "lines.jsonl"
    command = [sys.executable, "-m", "pytest", "-p", "gpu_hour_results", f"--result-lines={lines}", "-p",
               "no:cacheprovider", f"--rootdir={tmp_path}", "test_made.py"]  # fmt: skip
    own = {"PYTHONPATH": str(BENCHMARKS)}
    for part in range(1, parts + 1):
        one = [*command, f"--part={part}/{parts}"]
        subprocess.run(one, cwd=tmp_path, env=os.environ | own, capture_output=True)
    kernels = importlib.import_module("gpu_hour_kernels")
    found = stages.lines_of(lines)
    pieces = {line["test"]: line for line in found if "test" in line}
    (collected,) = [line["collected"] for line in found if "collected" in line]
    values = kernels.counted({"collected": [*collected, "test_made.py::test_cut_short"], **pieces})
    assert (values["collected"], values["passed"], values["skipped"]) == (5, 1, 1)
    assert values["unfinished"] == ["test_made.py::test_cut_short"]
    assert set(values["failed"]) == {"test_made.py::test_wrong", "test_made.py::test_with_it"}
    assert "told" in values["failed"]["test_made.py::test_wrong"][0]
    assert values["failed"]["test_made.py::test_with_it"] == ["ValueError: no device"]


def test_half_a_line_is_ignored(stages, tmp_path):
    path = tmp_path / "lines.jsonl"
    path.write_bytes(json.dumps({"test": "one"}).encode() + b'\n{"test": "tw')
    assert stages.lines_of(path) == [{"test": "one"}]
    assert stages.lines_of(tmp_path / "missing") == []


def command(*words):
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    return subprocess.run(
        [sys.executable, str(BENCHMARKS / "gpu_hour.py"), *words], capture_output=True, text=True, env=environment
    )


@pytest.mark.slow
@pytest.mark.parametrize(("words", "told"), [
    (["pilot", "--rehearsal", "--prepared", "missing"], "--prepared missing lacks train.parquet; make it with the"),
    (["attention", "--rehearsal"], "set TRITON_INTERPRET=1 before it"),
    (["model", "--only", "("], "--only (: not a regular expression: missing )"),
    (["kernels", "--only", "x"], "--only is for the stages attention and model; leave it out of kernels"),
    (["kernels", "--minutes", "0"], "--minutes must be above 0, got 0"),
    (["prepare", "--data", "x"], "--trec is missing"),
])  # fmt: skip
def test_unusable_input_is_one_sentence(words, told, tmp_path):
    found = command(*words, "--records", str(tmp_path / "out"), "--work", str(tmp_path / "work"))
    assert found.returncode == 2, found.stderr
    assert told in found.stderr
    assert found.stderr.count("\n") == 1


@pytest.mark.slow
@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_it_says_so(tmp_path):
    found = command("kernels", "--records", str(tmp_path / "out"))
    assert found.returncode == 2
    assert "this machine has no CUDA device" in found.stderr


@pytest.fixture(scope="module")
def training():
    return importlib.import_module("gpu_hour_training")


def test_a_shorter_run_keeps_the_shares_of_its_warm_up_and_evaluations(training):
    preset = training.load_preset(training.PRESET, data=["corpus.txt"])
    whole, half = (training.run_of(preset, "differential", 3, steps=steps) for steps in (None, 610))
    assert (whole.model.attention_type, whole.training.seed, whole.training.steps) == ("differential", 3, 1220)
    assert (half.training.steps, half.training.warmup_steps) == (610, 30)
    assert (half.training.evaluate_every, half.training.checkpoint_every) == (122, 305)
    assert training.run_of(preset, "differential", 3, steps=1220) == whole


def test_every_measurement_is_a_command_that_exists(stages, stage):
    """For each kind of sizes; all of what the hour is to measure."""
    measure = importlib.import_module("gpu_hour_measure")
    from antiphase.cli import app

    for one in (stage, replace(stage, is_rehearsal=False)):
        found = measure.measurements(one, Path("model"))
        kinds = {words[0] for words in found.values()}
        assert kinds == {"many-shot", "needles", "quantization", "allocation", "outliers", "long-context"}
        for words in found.values():
            command = typer.main.get_command(app).commands["evaluate"].get_command(None, words[0])
            command.make_context(words[0], [*words[1:], "--output", "out"], resilient_parsing=False)
    many = replace(stage, is_rehearsal=False)
    asked = [words for words in measure.measurements(many, Path("model")).values() if words[0] == "needles"]
    assert sorted((words[3], words[5]) for words in asked) == [("1", "1"), ("2", "1,2"), ("4", "1,2"), ("8", "1,2")]


@pytest.mark.slow
def test_pairs_are_trained_and_measured_and_go_on_behind_what_is_there(
    stages, training, stage, tmp_path, generated_text, monkeypatch
):
    """The second call has the first one's record alone, as on another machine, and no time for a further round."""
    prepare = importlib.import_module("gpu_hour_prepare")
    measure = importlib.import_module("gpu_hour_measure")
    texts = [tmp_path / name for name in ("train.txt", "validation.txt")]
    for path, part in zip(texts, (generated_text * 12, generated_text[::-1] * 3), strict=True):
        path.write_text(part)
    trec = tmp_path / "trec"
    trec.mkdir()
    for part in ("train", "test"):
        (trec / f"{part}.txt").write_text("NUM:count How many ?\n" * 3)
    (tmp_path / "clinc.json").write_text(json.dumps({"train": [["a b", "c"]], "test": [["a b", "c"]]}))
    prepare.prepare_data(
        stage, data=[str(texts[0])], validation=[str(texts[1])], trec=trec,
        clinc=tmp_path / "clinc.json", overrides=[],
    )  # fmt: skip
    plan = {"steps": 3, "processes": 1, "pair_seconds": 1.0, "pairs": 1}
    Record(kind="gpu-hour-pilot", values={"plan": plan}).save(stage.records, "pilot")
    real = measure.measurements
    monkeypatch.setattr(
        measure, "measurements",
        lambda stage, model: {name: words for name, words in real(stage, model).items() if name == "outliers"},
    )  # fmt: skip
    begun = replace(stage, name="train", began=time.monotonic())
    monkeypatch.setattr(training, "V2", "softmax")  # a round of one model, which is there already
    assert training.train(begun, []) == 0
    values = Record.load(begun.record()).values
    assert values["rounds"] == ["pair, seed 0", "V2, seed 0"]
    pair = values["pieces"]["pair, seed 0"]
    assert list(pair["runs"]) == ["softmax-seed0", "differential-seed0"]
    assert all(run["tokens"] == 3 * 20 * 160 for run in pair["runs"].values())
    assert {name: found["why"] for name, found in pair["measured"].items()} == {
        "softmax-seed0: outliers": None, "differential-seed0: outliers": None,
    }  # fmt: skip
    assert pair["measured"]["softmax-seed0: outliers"]["values"]["rows"]
    later = replace(begun, work=tmp_path / "elsewhere", minutes=0.01)
    assert training.train(later, []) == 0
    assert Record.load(begun.record()).values["pieces"] == values["pieces"]


@pytest.mark.slow
def test_the_profile_finds_what_takes_the_time():
    profile = importlib.import_module("gpu_hour_profile")
    one = torch.randn(400, 400)
    rows = profile.kernels_of(lambda: (one @ one).sum(), "cpu")
    names = [row["kernel"] for row in rows]
    assert names[0] == "aten::mm"
    assert rows[0]["calls"] == rows[names.index("aten::sum")]["calls"] == 1
    assert rows[0]["milliseconds"] > rows[names.index("aten::sum")]["milliseconds"] > 0
