"""Processes that die or hang, under torchrun."""

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

SHARD = ("training.mesh.shard=2", "training.steps=120", "training.evaluate_every=60", "training.batch_size=8")


def torchrun(preset, output, *overrides, restarts=0):
    """Two processes in the background."""
    words = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", f"--max-restarts={restarts}",
             "-m", "antiphase", "train", "--preset", str(preset), "--output", str(output)]  # fmt: skip
    return subprocess.Popen(
        [sys.executable, *words, *(word for one in overrides for word in ("--set", one))],
        stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1", "COLUMNS": "1000"},
    )  # fmt: skip


def workers(launcher):
    """Process ids by rank."""
    found = {}
    for pid in Path(f"/proc/{launcher.pid}/task/{launcher.pid}/children").read_text().split():
        pairs = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
        if rank := next((pair for pair in pairs if pair.startswith(b"RANK=")), None):
            found[int(rank[5:])] = int(pid)
    return found


def wait_until(condition, launcher, seconds=300):
    end = time.monotonic() + seconds
    while not condition():
        assert launcher.poll() is None, launcher.stderr.read()
        assert time.monotonic() < end
        time.sleep(0.002)


def steps_done(folder):
    path = folder / "metrics.jsonl"
    return path.read_text().count("\n") if path.is_file() else 0


def writes(folder):
    """Whether a checkpoint is being written."""
    return any((folder / "checkpoint").glob(".step-*.tmp"))


def test_deaths_cost_nothing_but_steps(tmp_path, tiny_preset, outcome, assert_identical):
    """Also while a checkpoint is written, of which there is one after every step here, and in the first process."""
    chosen = (*SHARD, "training.checkpoint_every=1")
    parts, whole = tmp_path / "parts", tmp_path / "whole"
    with torchrun(tiny_preset, parts, *chosen, restarts=3) as launcher:
        for victim, step, moment in ((1, 20, lambda: True), (0, 45, lambda: writes(parts)), (1, 80, lambda: True)):
            wait_until(lambda step=step, moment=moment: steps_done(parts) >= step and moment(), launcher)
            os.kill(workers(launcher)[victim], signal.SIGKILL)
            wait_until(lambda step=step: steps_done(parts) < step + 20, launcher)
        _, err = launcher.communicate(timeout=600)
    assert launcher.returncode == 0, err
    assert err.count("(exitcode: -9)") == 3
    with torchrun(tiny_preset, whole, *chosen) as launcher:
        _, err = launcher.communicate(timeout=600)
    assert launcher.returncode == 0, err
    names = [path.name for path in (parts / "checkpoint").iterdir()]
    assert sorted(names) == ["step-00000119", "step-00000120"]
    for folder in (parts, whole):
        for name in names:
            assert (folder / "checkpoint" / name / "checkpoint.json").is_file()
    one, other = (run_of(folder) for folder in (parts, whole))
    assert_identical(one, other)


def run_of(folder):
    """Weights, metrics and checkpoint without times."""
    import json

    from safetensors.torch import load_file

    newest = folder / "checkpoint" / "step-00000120"
    parts = {path.name: load_file(path) for path in newest.glob("*.safetensors")}
    assert len(parts) == 2
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    times = ("seconds", "tokens_per_second")
    metrics = [{name: value for name, value in line.items() if name not in times} for line in lines]
    return {"weights": load_file(folder / "model.safetensors"), "parts": parts, "metrics": metrics}


def test_a_hang_is_ended_by_name(tmp_path, tiny_preset):
    chosen = (*SHARD, "training.steps=100000", "training.hang_limit=15")
    with torchrun(tiny_preset, tmp_path / "run", *chosen) as launcher:
        wait_until(lambda: steps_done(tmp_path / "run") >= 5, launcher)
        os.kill(workers(launcher)[1], signal.SIGSTOP)
        began = time.monotonic()
        _, err = launcher.communicate(timeout=300)
    assert launcher.returncode != 0
    assert time.monotonic() - began < 150
    (said,) = re.findall(r"antiphase: process .*", err)
    assert re.match(r"antiphase: process 1 of 2 \(.+\) made no progress for 15 s \(training\.hang_limit\), ", said)
    assert "--max-restarts" in said


@pytest.mark.parametrize(
    ("steps", "victims"), [(0, []), (5, []), (5, [1])], ids=["begins", "trains", "trains, one ends before the other"]
)
def test_processes_end_with_their_launcher(tmp_path, tiny_preset, steps, victims):
    """A killed torchrun ends nothing itself; its processes must not keep the folder until they give up waiting.

    Nor do they show where they waited for a process that ended earlier.
    """
    with torchrun(tiny_preset, tmp_path / "run", *SHARD, "training.steps=100000") as launcher:
        wait_until(lambda: len(workers(launcher)) == 2 and steps_done(tmp_path / "run") >= steps, launcher)
        processes = workers(launcher)
        launcher.kill()
        launcher.wait()
        for victim in victims:
            os.kill(processes[victim], signal.SIGKILL)
        _, err = launcher.communicate(timeout=100)  # their standard error is open until they have ended
    assert "antiphase: torchrun" in err
    assert "Traceback" not in err
