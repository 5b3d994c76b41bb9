"""Runs side by side: who is started, waited for, stopped, and what a failure says."""

import os
import signal
import subprocess
import sys
import threading
import time
from dataclasses import replace

import pytest
import torch
import yaml

from antiphase.base.errors import DIVERGED, BrokenRunError, InputError, Interrupted
from antiphase.base.folders.ownership import is_in_use
from antiphase.base.records import Record
from antiphase.lab.settings.presets import load_preset
from antiphase.lab.studies import settings as study_settings
from antiphase.lab.studies.jobs import Job, run_jobs
from antiphase.lab.training.execution import local, queue
from antiphase.lab.training.execution.executor import Command
from antiphase.lab.training.execution.local import LocalPool, LocalProcess, gpus_for, parallel_jobs

RECORD = (
    "import pathlib, sys; folder = pathlib.Path(sys.argv[1])\n"
    "(folder / 'record.json').write_text('{}'); (folder / 'report.html').touch()"
)
HOLD = (
    "import filelock, pathlib, sys, time; lock = filelock.FileLock(sys.argv[1] + '/.lock'); lock.acquire()\n"
    "print('held', flush=True); time.sleep(0.5)\n" + RECORD
)
ENDLESS = "import time; time.sleep(60)"


@pytest.fixture
def job(tiny_preset):
    """A job by its name."""
    settings = load_preset(str(tiny_preset), ["training.threads=null"]).run
    return lambda name: Job(name, "softmax", 0, settings)


def on_device(one, device):
    settings = one.settings
    return replace(one, settings=replace(settings, training=replace(settings.training, device=device)))


@pytest.fixture
def scripts(monkeypatch, tmp_path):
    """Let short scripts stand for training runs; ``scripts["name"] = code``. Started names are in order."""
    chosen, started = {}, []

    def start(command, pool_threads, gpu):
        threads = yaml.safe_load((command.log.parent / f"{command.name}.yaml").read_text())["training"]["threads"]
        assert threads == pool_threads
        started.append((command.name, threads) if gpu is None else (command.name, gpu))
        command.folder.mkdir(exist_ok=True)
        code = chosen.get(command.name, RECORD)
        with open(command.log, "ab") as log:
            return LocalProcess([sys.executable, "-c", code, command.folder], stdout=log, stderr=log)

    monkeypatch.setattr(local, "start_process", start)
    monkeypatch.setattr(queue, "POLL_SECONDS", 0.01)
    chosen["started"] = started
    return chosen


def test_every_job_runs_once_and_finished_ones_are_left_alone(tmp_path, job, scripts):
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "record.json").write_text("kept")
    (tmp_path / "b" / "report.html").touch()
    told = []
    run_jobs(
        [job(name) for name in "abc"], tmp_path, pool=LocalPool(2, 4),
        report=lambda run, step, values: told.append((run.name, step)),
    )  # fmt: skip
    assert scripts["started"] == [("a", 4), ("c", 4)]
    assert (tmp_path / "b" / "record.json").read_text() == "kept"
    assert {("a", 20), ("b", 20), ("c", 20)} <= set(told)


def test_a_run_that_was_stopped_before_its_page_is_started_again(tmp_path, job, scripts):
    """It writes only the page; one that diverged has none."""
    record = Record(kind="train", values={"diverged": None})
    record.save(tmp_path / "a")
    replace(record, values={"diverged": {"step": 3}}).save(tmp_path / "b")
    run_jobs([job(name) for name in "ab"], tmp_path, pool=LocalPool(1, 1), report=lambda *_: None)
    assert [name for name, _ in scripts["started"]] == ["a"]


def test_settings_that_a_killed_study_was_writing_leave_nothing(tmp_path, job, scripts):
    dead = 2**22 + 1  # above the highest number of a process
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / f".a.yaml.{dead}.tmp").write_text("half")
    run_jobs([job("a")], tmp_path, pool=LocalPool(1, 1), report=lambda *_: None)
    assert sorted(path.name for path in (tmp_path / "logs").iterdir()) == ["a.log", "a.yaml"]


def test_refusal_of_a_run_is_the_refusal_of_the_study(tmp_path, job, scripts):
    scripts["a"] = "import sys; print('progress'); sys.stderr.write('antiphase: data.x is wrong\\n'); sys.exit(2)"
    with pytest.raises(InputError, match=r"^data\.x is wrong$"):
        run_jobs([job("a")], tmp_path, pool=LocalPool(1, 1), report=lambda *_: None)


def test_a_run_that_diverged_leaves_the_others_going(tmp_path, job, scripts):
    scripts["a"] = f"{RECORD}; sys.exit({DIVERGED})"
    run_jobs([job(name) for name in "abc"], tmp_path, pool=LocalPool(1, 1), report=lambda *_: None)
    assert [name for name, _ in scripts["started"]] == ["a", "b", "c"]
    run_jobs([job(name) for name in "abc"], tmp_path, pool=LocalPool(1, 1), report=lambda *_: None)
    assert len(scripts["started"]) == 3


@pytest.mark.parametrize("finished", [True, False])
def test_a_run_that_read_other_text_is_not_part_of_the_study(tmp_path, job, scripts, finished):
    """The text has changed between two runs: each of them reads it anew."""
    (tmp_path / "text.sha256").write_text("one\n")
    write = "(folder / 'text.sha256').write_text(%r)"
    scripts["a"], scripts["b"] = f"{RECORD}; {write % 'one'}", f"{RECORD}; {write % 'other'}"
    with pytest.raises(InputError, match=f"{tmp_path / 'b'} was trained on other text than its study began with"):
        run_jobs([job(name) for name in "abc"], tmp_path, pool=LocalPool(1, 1), report=lambda *_: None)
    if finished:
        with pytest.raises(InputError, match=f"{tmp_path / 'b'} was trained on other text"):
            run_jobs([job("b")], tmp_path, pool=LocalPool(1, 1), report=lambda *_: None)
    assert [name for name, _ in scripts["started"]] == ["a", "b"]


def test_broken_run_names_its_log_and_stops_the_others(tmp_path, job, scripts):
    scripts["a"], scripts["b"] = "raise OSError('no space left')", ENDLESS
    start = time.monotonic()
    with pytest.raises(
        BrokenRunError, match=r"run a ended with code 1: OSError: no space left \(whole log: .*a\.log\)"
    ):
        run_jobs([job("a"), job("b")], tmp_path, pool=LocalPool(2, 1), report=lambda *_: None)
    assert time.monotonic() - start < 30


@pytest.mark.parametrize("signal_number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGXCPU])
def test_stop_signal_ends_every_run_and_waits_for_it(tmp_path, job, scripts, signal_number):
    before = signal.getsignal(signal.SIGTERM)
    scripts["a"] = (
        "import pathlib, signal, sys, time\n"
        "def end(*_):\n    time.sleep(0.2); (pathlib.Path(sys.argv[1]) / 'saved').touch(); sys.exit(130)\n"
        "signal.signal(signal.SIGTERM, end); (pathlib.Path(sys.argv[1]) / 'ready').touch(); time.sleep(60)"
    )

    def stop():
        while not (tmp_path / "a" / "ready").exists():
            time.sleep(0.01)
        os.kill(os.getpid(), signal_number)
        if signal_number == signal.SIGHUP:  # the kernel and the shell send one each
            time.sleep(0.1)
            os.kill(os.getpid(), signal_number)

    thread = threading.Thread(target=stop)
    thread.start()
    with pytest.raises(Interrupted, match="every run has written a checkpoint"):
        run_jobs([job("a"), job("b")], tmp_path, pool=LocalPool(1, 1), report=lambda *_: None)
    thread.join()
    assert (tmp_path / "a" / "saved").exists()
    assert [name for name, _ in scripts["started"]] == ["a"]
    assert signal.getsignal(signal.SIGTERM) == before


def test_run_stopped_from_outside_stops_the_study(tmp_path, job, scripts):
    scripts["a"] = "import os, signal; os.kill(os.getpid(), signal.SIGTERM)"
    with pytest.raises(Interrupted, match="the run a was stopped"):
        run_jobs([job("a")], tmp_path, pool=LocalPool(1, 1), report=lambda *_: None)


def test_run_that_a_killed_study_left_going_is_waited_for(tmp_path, job, scripts):
    (tmp_path / "a").mkdir()
    with subprocess.Popen([sys.executable, "-c", HOLD, tmp_path / "a"], stdout=subprocess.PIPE, text=True) as orphan:
        assert orphan.stdout.readline() == "held\n"
        assert is_in_use(tmp_path / "a")
        run_jobs([job("a"), job("b")], tmp_path, pool=LocalPool(2, 1), report=lambda *_: None)
        assert orphan.wait(10) == 0
    assert [name for name, _ in scripts["started"]] == ["b"]


def test_number_of_runs_at_a_time(job):
    assert parallel_jobs(["cpu"] * 3, None, 2) == 2
    assert parallel_jobs(["cpu"] * 3, None, 16) == 3
    assert parallel_jobs(["cpu"] * 3, 8, 2) == 3
    assert parallel_jobs(["cpu"] * 3, 1, 16) == 1


def test_gpus_are_shared_out_one_to_each_run(tmp_path, job, scripts, monkeypatch):
    monkeypatch.setattr(local, "choose_device", torch.device)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 3)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    several = [on_device(job(name), "cuda") for name in "abcd"]
    assert parallel_jobs(["cuda"] * 4, None, 16) == 3
    waits = "import pathlib, sys, time\nwhile not (pathlib.Path(sys.argv[1]).parent / 'd').exists(): time.sleep(0.01)\n"
    scripts["a"] = scripts["c"] = waits + RECORD  # so b ends first, and d takes its GPU
    scripts["b"] = waits.replace("'d'", "'c'") + RECORD  # but not before c has one
    run_jobs(several, tmp_path, pool=LocalPool(3, 5, gpus_for(["cuda"] * 4)), report=lambda *told: None)
    assert scripts["started"] == [("a", "0"), ("b", "1"), ("c", "2"), ("d", "1")]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "5,7")
    assert gpus_for(["cuda"] * 4) == ["5", "7"]
    assert gpus_for(["cuda:1"]) == []
    assert parallel_jobs(["cuda:1"] * 2, None, 16) == 1
    assert gpus_for(["cpu"]) == []


def test_a_run_sees_its_gpu_alone_and_takes_its_share_of_the_cores(tmp_path, monkeypatch):
    asked = {}
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr(local, "LocalProcess", lambda command, **settings: asked.update(settings))
    command = Command("a", ["env"], tmp_path / "a", tmp_path / "a.log")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    local.start_process(command, 3, "7")
    assert asked["env"] == {**os.environ, "CUDA_VISIBLE_DEVICES": "7", "OMP_NUM_THREADS": "3"}
    local.start_process(command, 3, None)
    assert asked["env"] == {**os.environ, "OMP_NUM_THREADS": "3"}
    monkeypatch.setenv("OMP_NUM_THREADS", "1")  # the user's own number
    local.start_process(command, 3, None)
    assert asked["env"]["OMP_NUM_THREADS"] == "1"


def test_a_run_that_breaks_is_exit_code_1_and_one_sentence(antiphase, monkeypatch):
    def break_(*_, **__):
        raise BrokenRunError("the run a ended with code 1: OSError: no (whole log: out/logs/a.log)")

    monkeypatch.setattr(study_settings, "load_preset", break_)
    code, _, err = antiphase("compare --output x")
    assert (code, err.count("\n")) == (1, 1)
    assert err.endswith("out/logs/a.log); mend that, then repeat the command with --resume\n")
