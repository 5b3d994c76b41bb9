"""What every executor promises, by a cluster that is only pretended; refusals that need none."""

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from antiphase.base.errors import InputError
from antiphase.lab.settings.presets import load_preset
from antiphase.lab.studies.compare.measure import compare
from antiphase.lab.studies.grid import Grid
from antiphase.lab.studies.jobs import run_jobs
from antiphase.lab.training.execution import ray_cluster, ray_node
from antiphase.lab.training.execution.executor import Command
from antiphase.lab.training.execution.ray_cluster import RayExecutor, RayProcess
from antiphase.lab.training.execution.settings import ExecutorSettings


class Fake:
    """An executor whose places are processes of this machine, and which notes what it is asked."""

    def __init__(self, refusal=None):
        self.refusal, self.told, self.commands = refusal, [], []

    def check(self, folder, paths, say):
        self.told.append(("check", folder, list(paths)))
        if self.refusal:
            raise InputError(self.refusal)

    def pool(self, devices, wanted, say):
        self.told.append(("pool", list(devices), wanted))
        return self

    slots, threads = 2, 3

    def start(self, command):
        self.commands.append(command)
        code = "import pathlib, sys; p = pathlib.Path(sys.argv[1]); p.mkdir(); (p / 'record.json').write_text('{}')"
        return FakeProcess(code, command)

    def close(self):
        self.told.append(("close",))


class FakeProcess(subprocess.Popen):
    def __init__(self, code, command):
        super().__init__([sys.executable, "-c", code, command.folder])

    def stop(self):
        self.terminate()


@pytest.fixture
def preset(tiny_preset):
    return load_preset(str(tiny_preset), ["compare.seeds=[3]", "training.threads=null"])


def test_an_executor_is_given_commands_that_a_person_can_repeat(tmp_path, preset):
    fake, told = Fake(), []
    grid = Grid(preset, tmp_path, executor=fake)
    run_jobs(grid.jobs, tmp_path, pool=fake, report=lambda job, step, values: told.append(job.name))
    assert [command.name for command in fake.commands] == ["softmax-seed3", "differential-seed3"]
    for command in fake.commands:
        settings = tmp_path / "logs" / f"{command.name}.yaml"
        assert command.words == ["train", "--preset", str(settings), "--output", str(command.folder), "--resume"]
        assert load_preset(str(settings)).run.training.threads == 3
        assert (command.folder, command.log) == (tmp_path / command.name, settings.with_suffix(".log"))
        assert command.line() == [sys.executable, "-m", "antiphase", *command.words]
    assert set(told) == {"softmax-seed3", "differential-seed3"}


def test_an_executor_that_cannot_run_the_jobs_refuses_before_anything_is_written(tmp_path, preset):
    fake = Fake("--output x: node b does not see this folder")
    with pytest.raises(InputError, match="does not see this folder"):
        compare(preset, tmp_path / "out", executor=fake)
    assert not (tmp_path / "out").exists()
    assert [name for name, *_ in fake.told] == ["check"]


def test_flags_of_a_cluster_need_it():
    for name, value in (("ray_address", "a:1"), ("job_cpus", 2), ("job_gpus", 1.0)):
        with pytest.raises(InputError, match=f"--{name.replace('_', '-')} is for a cluster; add --executor ray"):
            ExecutorSettings(**{name: value}).check()
        ExecutorSettings(executor="ray", **{name: value}).check()
    with pytest.raises(InputError, match="--executor must be one of local, ray, got 'slurm'"):
        ExecutorSettings(executor="slurm").check()
    with pytest.raises(InputError, match="--job-gpus must lie between 0 and 1, got 8"):
        ExecutorSettings(executor="ray", job_gpus=8).check()


def test_ray_that_is_not_installed_is_named_with_its_extra(refused, monkeypatch, tiny_preset):
    monkeypatch.setattr(ray_cluster.importlib.util, "find_spec", lambda name: None)
    refused(r"--executor ray needs the extra: pip install 'antiphase\[cluster\]'",
            "compare --preset", tiny_preset, "--output out --executor ray")  # fmt: skip


def test_a_cluster_that_does_not_answer_is_refused_at_once(refused, monkeypatch, tiny_preset):
    monkeypatch.setattr(ray_cluster.importlib.util, "find_spec", lambda name: object())
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
        started = time.monotonic()
        refused(f"--ray-address {address}: no Ray cluster answers there",
                "compare --preset", tiny_preset, f"--output out --executor ray --ray-address {address}")  # fmt: skip
        assert time.monotonic() - started < 30
    refused("--ray-address must be HOST:PORT", "compare --preset", tiny_preset,
            "--output out --executor ray --ray-address ray://head:10001")  # fmt: skip


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux binds a process to the life of its parent")
@pytest.mark.slow
def test_a_job_ends_with_the_worker_that_started_it(tmp_path):
    """Else a node that Ray has given up might go on writing where the job was started again."""
    job = f"import os, time; open({str(tmp_path / 'pid')!r}, 'w').write(str(os.getpid())); time.sleep(60)"
    script = (
        "import subprocess, sys, time; from antiphase.lab.training.execution import ray_node\n"
        "subprocess.Popen(ray_node._bound(['-c', sys.argv[1]])); time.sleep(60)"
    )
    with subprocess.Popen([sys.executable, "-c", script, job]) as worker:
        path = tmp_path / "pid"
        while not path.is_file() or not path.read_text():
            time.sleep(0.02)
        number = int(path.read_text())
        worker.send_signal(signal.SIGKILL)
    end = time.monotonic() + 20
    while os.path.exists(f"/proc/{number}") and time.monotonic() < end:
        time.sleep(0.02)
    assert not os.path.exists(f"/proc/{number}")


def test_a_node_says_what_it_sees(tmp_path):
    (tmp_path / "probe").write_text("token")
    sight = ray_node.look(str(tmp_path / "probe"), str(tmp_path / "answer"), [str(tmp_path), str(tmp_path / "absent")])
    assert (sight.token, sight.missing) == ("token", [str(tmp_path / "absent")])
    assert (tmp_path / "answer").read_text() == "token"
    assert sight.versions == ray_node.versions()
    assert sight.versions["torch"] is not None
    assert ray_node.look(str(tmp_path / "no"), str(tmp_path / "other"), []).token is None
    assert not (tmp_path / "other").exists()


def judged(tmp_path, *, token="t", answered="t", missing=(), versions=None):
    node = {"NodeManagerAddress": "10.0.0.2", "NodeManagerHostname": "b"}
    sight = ray_node.Sight("b", token, list(missing), versions or ray_node.versions())
    if answered is not None:
        (tmp_path / "answer").write_text(answered)
    ray_cluster._judge(node, sight, tmp_path / "answer", "t", tmp_path)


def test_nodes_that_do_not_see_the_storage_are_refused(tmp_path):
    judged(tmp_path)
    for wrong in ({"token": None}, {"token": "other"}, {"answered": "other"}):
        with pytest.raises(InputError, match=r"node b \(10\.0\.0\.2\) does not see this folder; choose one on storage"):
            judged(tmp_path, **wrong)
    with pytest.raises(InputError, match=r"node b .* does not see /text; put it on storage that all nodes share"):
        judged(tmp_path, missing=["/text"])
    with pytest.raises(InputError, match=r"has torch 1\.0, here .*; install equal versions on all nodes"):
        judged(tmp_path, versions={**ray_node.versions(), "torch": "1.0"})


def test_room_is_looked_for_on_each_node(tmp_path):
    nodes = [{"Resources": {"CPU": 8.0}}, {"Resources": {"CPU": 2.0, "GPU": 1.0}}]
    pytest.importorskip("ray", reason="the extra cluster is not installed")
    assert RayExecutor(None, 1, 0)._usable(nodes) == nodes
    assert RayExecutor(None, 2, 1)._usable(nodes) == nodes[1:]
    with pytest.raises(InputError, match="--job-cpus 9: no node of the cluster has so many CPUs, the largest has 8"):
        RayExecutor(None, 9, 0)._usable(nodes)
    with pytest.raises(InputError, match="--job-cpus 4 and --job-gpus 1: no node of the cluster has both"):
        RayExecutor(None, 4, 1)._usable(nodes)


def test_a_node_of_a_cluster_is_given_absolute_paths(tmp_path, monkeypatch):
    """Its worker has a working folder of its own."""
    given = []

    def remote(**options):
        return lambda function: SimpleNamespace(remote=lambda *arguments: given.append((function, arguments)))

    monkeypatch.setitem(sys.modules, "ray", SimpleNamespace(remote=remote))
    monkeypatch.chdir(tmp_path)
    command = Command("run", ["train"], Path("out/run"), Path("out/logs/run.log"))
    ray_cluster.RayPool(1, 1, 0, print).start(command)
    paths = (str(tmp_path / "out/run"), str(tmp_path / "out/logs/run.log"), str(tmp_path))
    assert given == [(ray_node.execute, (["train"], *paths))]


def test_a_ray_process_that_could_not_start_has_ended(monkeypatch):
    """So that stopping the other processes does not meet its error again."""

    def get(task):
        raise failed

    class TaskError(Exception):
        cause = "no permission"

    failed = TaskError()
    errors = SimpleNamespace(TaskCancelledError=KeyError, RayTaskError=TaskError, RayError=OSError)
    ray = SimpleNamespace(get=get, wait=lambda tasks, timeout: (tasks, []), exceptions=errors)
    monkeypatch.setitem(sys.modules, "ray", ray)
    monkeypatch.setattr(RayProcess, "_submit", lambda self: "task")
    process = RayProcess(SimpleNamespace(name="run"), pool=None)
    with pytest.raises(RuntimeError, match="the run run could not be started on its node: no permission"):
        process.poll()
    assert process.poll() == 1
    another = RayProcess(SimpleNamespace(name="other"), pool=None)
    another.is_asked_to_stop = True  # the first one's error is on its way
    assert another.poll() == 1
