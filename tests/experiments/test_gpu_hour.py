"""The GPU hour: what is done outlives a kill, and every result of a test is kept."""

import importlib
import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace

import pytest
import torch

from antiphase.base.errors import InputError
from antiphase.base.records import Record
from support.paths import ROOT


@pytest.fixture(scope="module")
def stages():
    return importlib.import_module("experiments.gpu_hour_stage")


@pytest.fixture
def stage(stages, tmp_path):
    return stages.Stage(
        name="model", records=tmp_path / "out", work=tmp_path / "work", minutes=10.0,
        device="cpu", is_rehearsal=True,
    )  # fmt: skip


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


@pytest.mark.parametrize("change", [{"is_rehearsal": False}, {"revision": "another"}])
def test_pieces_of_other_sizes_or_code_are_refused(stages, stage, change):
    stages.Kept(stage).add("one", 1)
    with pytest.raises(InputError, match=r"model\.json was begun in other sizes, .* or with other code; move it away"):
        stages.Kept(replace(stage, **change))


KILLED = """
import sys, time
sys.path.insert(0, {root!r})
from pathlib import Path
from experiments.gpu_hour_stage import Kept, Stage
stage = Stage(name="model", records=Path({out!r}), work=Path("w"), minutes=5, device="cpu",
              is_rehearsal=True)
kept = Kept(stage)
for number in range(3):
    kept(f"piece {{number}}", lambda: time.time())
    if number == 1 and len(sys.argv) > 1:
        time.sleep(60)
"""


@pytest.mark.slow
def test_finished_work_survives_a_kill(tmp_path):
    code = KILLED.format(root=str(ROOT), out=str(tmp_path))
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
    command = [sys.executable, "-m", "pytest", "-p", "experiments.gpu_hour_results", f"--result-lines={lines}", "-p",
               "no:cacheprovider", f"--rootdir={tmp_path}", "test_made.py"]  # fmt: skip
    own = {"PYTHONPATH": str(ROOT)}
    for part in range(1, parts + 1):
        one = [*command, f"--part={part}/{parts}"]
        subprocess.run(one, cwd=tmp_path, env=os.environ | own, capture_output=True)
    kernels = importlib.import_module("experiments.gpu_hour_kernels")
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
        [sys.executable, "-m", "experiments.gpu_hour", *words],
        cwd=ROOT,
        capture_output=True,
        text=True,
        env=environment,
    )


@pytest.mark.slow
@pytest.mark.parametrize(("words", "told"), [
    (["attention", "--rehearsal"], "set TRITON_INTERPRET=1 before it"),
    (["model", "--only", "("], "--only (: not a regular expression: missing )"),
    (["kernels", "--only", "x"], "--only is for the stages attention and model; leave it out of kernels"),
    (["kernels", "--minutes", "0"], "--minutes must be above 0, got 0"),
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


@pytest.mark.slow
def test_the_profile_finds_what_takes_the_time():
    profile = importlib.import_module("experiments.gpu_hour_profile")
    one = torch.randn(400, 400)
    rows = profile.kernels_of(lambda: (one @ one).sum(), "cpu")
    names = [row["kernel"] for row in rows]
    assert names[0] == "aten::mm"
    assert rows[0]["calls"] == rows[names.index("aten::sum")]["calls"] == 1
    assert rows[0]["milliseconds"] > rows[names.index("aten::sum")]["milliseconds"] > 0
