"""A grid on a Ray cluster of three nodes on this machine, of which one is killed."""

import json
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from antiphase import AntiphaseConfig, AntiphaseForCausalLM
from antiphase.base.errors import InputError
from antiphase.lab.text.tokenization import train_tokenizer
from antiphase.lab.training.execution.ray_cluster import RayExecutor

ray = pytest.importorskip("ray", reason="the extra cluster is not installed")
psutil = pytest.importorskip("psutil", reason="psutil, which accelerate brings, is not installed")

SETTINGS = ["training.steps=300", "training.checkpoint_every=10", "training.evaluate_every=150"]
TIMES = {
    "seconds",
    "tokens_per_second",
    "peak_memory",
    "peak_gpu_memory",
    "folder",
    "created",
    "command",
    "sha256",
    "belongs_to",
    "written",
}

TRIES = 6
"""Ray gives a node's agent fifteen seconds to start; a loaded machine may need another try."""

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def cluster():
    """A head and two more nodes with one CPU each."""
    from ray.cluster_utils import Cluster

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        patch.setenv("RAY_ENABLE_AUTO_CONNECT", "0")
        sizes = {
            "num_cpus": 1,
            "object_store_memory": 80_000_000,
            "include_dashboard": False,
            "include_log_monitor": False,
        }
        for attempt in range(TRIES):
            found = Cluster()
            try:
                found.add_node(wait=False, gcs_server_port=free_port(), **sizes)
            except Exception:
                found.shutdown()
                if attempt == TRIES - 1:
                    raise
            else:
                break
        for _ in range(2):
            add_node(found, sizes)
        yield found
        ray.shutdown()
        found.shutdown()


def add_node(cluster, sizes):
    for attempt in range(TRIES):
        try:
            cluster.add_node(wait=False, **sizes)
            return
        except Exception:
            if attempt == TRIES - 1:
                raise


def free_port():
    with socket.socket() as one:
        one.bind(("", 0))
        return one.getsockname()[1]


def training_of(node):
    """The training process on a node and what started it, from the node's own process down; None if there is none."""
    raylet = psutil.Process(node.all_processes["raylet"][0].process.pid)
    below = raylet.children(recursive=True)
    trains = [one for one in below if one.is_running() and "train" in one.cmdline()]
    return [raylet, *below] if trains else None


def kill_one_that_trains(cluster, output):
    """Kill a node, everything on it at once, after a run there has written a checkpoint; the run's name."""
    while True:
        for node in cluster.list_all_nodes()[1:]:
            tree = training_of(node)
            if tree is None:
                continue
            command = next(one.cmdline() for one in tree if "train" in one.cmdline())
            run = Path(command[command.index("--output") + 1])
            if any((output.parent / run / "checkpoint").glob("step-*")):
                for act in ("suspend", "kill"):
                    for process in tree:
                        getattr(process, act)()
                assert not (output.parent / run / "record.json").is_file()
                return run.name
        time.sleep(0.05)


def without_times(tree):
    if isinstance(tree, dict):
        return {key: without_times(value) for key, value in tree.items() if key not in TIMES}
    return [without_times(one) for one in tree] if isinstance(tree, list) else tree


def results(output):
    """All that runs and study say, but times, folders and checksums of these."""
    found = {}
    for path in sorted(output.rglob("*.json")):
        if "checkpoint" not in path.parts:
            text = path.read_text().replace(str(output), "OUTPUT").replace(output.name + "/", "OUTPUT/")
            found[str(path.relative_to(output))] = without_times(json.loads(text))
    for path in sorted(output.glob("*/model.safetensors")):
        found[str(path.relative_to(output))] = path.read_bytes()
    for path in sorted(output.glob("*/metrics.jsonl")):
        found[str(path.relative_to(output))] = [
            without_times(json.loads(line)) for line in path.read_text().splitlines()
        ]
    for path in sorted(output.glob("logs/*.yaml")):
        found[str(path.relative_to(output))] = path.read_text()
    return found


def test_a_grid_of_eight_runs_survives_the_death_of_a_node(cluster, tiny_preset, tmp_path):
    words = [sys.executable, "-m", "antiphase", "tune", "--preset", str(tiny_preset), "--learning-rates", "1e-3,2e-3"]
    words += [word for setting in SETTINGS for word in ("--set", setting)]
    on_ray = [*words, "--output", "on-cluster", "--executor", "ray", "--ray-address", cluster.address]
    with subprocess.Popen(
        [*on_ray, "--set", "compare.processes=3"], cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        text=True,
    ) as driver:  # fmt: skip
        killed = kill_one_that_trains(cluster, tmp_path / "on-cluster")
        printed, _ = driver.communicate()
    assert driver.returncode == 0, printed
    assert "Ray: 3 nodes for runs with 1 CPUs and 0 GPUs each" in printed
    assert f"{killed}: lost its node" in printed
    assert "raylet" not in printed.lower(), printed
    local = [*words, "--output", "on-machine", "--set", "compare.processes=3", "--set", "training.threads=1"]
    done = subprocess.run(local, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    expected, found = results(tmp_path / "on-machine"), results(tmp_path / "on-cluster")
    assert len([name for name in expected if name.endswith("model.safetensors")]) == 8
    assert found.keys() == expected.keys()
    for name, one in expected.items():
        assert found[name] == one, name


def test_what_a_cluster_cannot_do_is_refused_in_one_sentence(cluster, tmp_path):
    def refusal(cpus=1, gpus=0, paths=()):
        with pytest.raises(InputError) as caught:
            RayExecutor(cluster.address, cpus, gpus).check(tmp_path, paths, lambda words: None)
        assert len(str(caught.value)) < 300
        assert list(tmp_path.iterdir()) == []
        return str(caught.value)

    assert refusal(cpus=7) == (
        "--job-cpus 7: no node of the cluster has so many CPUs, the largest has 1; lower it, or add a node"
    )
    assert refusal(gpus=1).startswith("--job-gpus 1: no node of the cluster has so many GPUs, the largest has 0; ")
    assert " does not see " in refusal(paths=["absent.txt"])


def test_classifiers_and_evaluations_on_the_cluster_are_those_of_this_machine(cluster, tmp_path, monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    rows = "".join(f"{'AB'[i % 2]} word{i % 7} {'ba'[i % 2]}{i % 3}\n" for i in range(40))
    (tmp_path / "rows.txt").write_text(rows, encoding="utf-8")
    (tmp_path / "book.txt").write_text("The old boat sails to the harbour. " * 40, encoding="utf-8")
    where = ["--executor", "ray", "--ray-address", cluster.address]
    train = ["classify", "--train", "rows.txt", "--model", "cnn,rnn", "--set", "epochs=1"]
    tokenizer = train_tokenizer([(tmp_path / "book.txt").read_text(encoding="utf-8")], 290)
    sizes = {"hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2}
    model = AntiphaseForCausalLM(AntiphaseConfig(vocab_size=len(tokenizer), max_position_embeddings=64, **sizes))
    model.save_pretrained(tmp_path / "model")
    tokenizer.save_pretrained(tmp_path / "model")
    measure = ["evaluate", "several", "model", "--measure", "perplexity,outliers", "--data", "book.txt"]
    measure += [word for name in ("perplexity", "outliers") for word in ("--set", f"{name}.length=16")]
    for words in (train, measure):
        for place, extra in (("here", []), ("away", where)):
            command = [sys.executable, "-m", "antiphase", *words, "--output", f"{words[0]}-{place}", *extra]
            done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
            assert done.returncode == 0, done.stderr
        here, away = (results(tmp_path / f"{words[0]}-{place}") for place in ("here", "away"))
        assert away == here
        assert len(here) > 4
