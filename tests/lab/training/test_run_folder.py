"""A run's folder is never overwritten, never shared, and its log survives a torn line."""

import json
import subprocess
import sys
import tracemalloc

import pytest

from antiphase.base.errors import InputError
from antiphase.base.folders.ownership import is_in_use, only_one, undone_if_refused
from antiphase.lab.settings.presets import load_preset, to_yaml
from antiphase.lab.studies.training_run import train_run
from antiphase.lab.training import run_folder
from antiphase.lab.training.run_folder import MetricsLog, check_run, last_metrics, open_run, read_metrics

HOLD = """
import sys, filelock
lock = filelock.FileLock(sys.argv[1])
lock.acquire()
print("held", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def held(tmp_path):
    """A folder in which another process works."""
    folder = tmp_path / "held"
    folder.mkdir()
    command = [sys.executable, "-c", HOLD, str(folder / ".lock")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "held\n"
        yield folder
        process.communicate("")


def test_new_run_writes_its_settings(tmp_path, settings):
    chosen = settings("data.source=text", "data.paths=[a b.txt]", "training.seed=3")
    open_run(tmp_path / "new" / "run", chosen, resume=False)
    assert load_preset(str(tmp_path / "new" / "run" / "run.yaml")).run == chosen
    assert [path.name for path in (tmp_path / "new" / "run").iterdir()] == ["run.yaml"]


@pytest.mark.parametrize("left_behind", [[], [".lock"], [".run.yaml.77.tmp", ".lock"]])
def test_folder_that_holds_nothing_may_be_used(tmp_path, settings, left_behind):
    folder = tmp_path / "run"
    folder.mkdir()
    for name in left_behind:
        (folder / name).touch()
    open_run(folder, settings(), resume=True)
    assert (folder / "run.yaml").is_file()


def test_resume_on_another_machine_may_use_other_threads_and_another_cache(tmp_path, settings):
    open_run(tmp_path / "run", settings("training.threads=1"), resume=False)
    open_run(tmp_path / "run", settings("training.threads=16", "data.cache=elsewhere"), resume=True)


def test_resume_may_save_memory_and_checkpoints(tmp_path, settings):
    """Smaller forward passes after one that found no memory; what changes results beyond rounding is refused."""
    open_run(tmp_path / "run", settings(), resume=False)
    saving = ("training.micro_batch_size=1", "training.gradient_checkpointing=true", "training.checkpoint_every=3")
    open_run(tmp_path / "run", settings(*saving), resume=True)
    with pytest.raises(InputError, match=r"other settings \(training\.batch_size\)"):
        open_run(tmp_path / "run", settings("training.batch_size=4", *saving), resume=True)


def test_differing_settings_are_named_in_full(tmp_path, settings):
    check_run(tmp_path / "new", settings(), resume=False)
    assert not (tmp_path / "new").exists()
    open_run(tmp_path / "run", settings(), resume=False)
    check_run(tmp_path / "run", settings("description=x"), resume=True)
    with pytest.raises(InputError, match=r"holds a run with other settings \(data\.keys, evaluation\.depths\); choose"):
        check_run(tmp_path / "run", settings("evaluation.depths=[1]", "description=x", "data.keys=9"), resume=True)


def test_run_that_another_process_holds_is_refused(held, settings):
    (held / "run.yaml").write_text(to_yaml(settings()))
    assert is_in_use(held)
    with pytest.raises(InputError, match="is in use by another process"), only_one(held):
        pytest.fail("held twice")


def test_training_in_a_held_folder_is_refused_and_changes_nothing(held, settings):
    (held / "run.yaml").write_text(to_yaml(settings()))
    with pytest.raises(InputError, match="is in use by another process"):
        train_run(settings(), held, resume=True)
    assert {path.name for path in held.iterdir()} == {"run.yaml", ".lock"}


def test_folder_is_free_after_an_error(tmp_path):
    (tmp_path / "a").touch()

    def fail():
        with only_one(tmp_path):
            assert is_in_use(tmp_path)
            raise OSError("x")

    with pytest.raises(OSError, match="x"):
        fail()
    assert not is_in_use(tmp_path)
    assert not is_in_use(tmp_path / "missing")


def test_folder_made_for_nothing_is_taken_away(tmp_path):
    with only_one(tmp_path / "new"):
        pass
    assert not (tmp_path / "new").exists()
    with only_one(tmp_path / "new"):
        (tmp_path / "new" / "a").touch()
    with only_one(tmp_path / "new"):
        pass
    assert (tmp_path / "new" / "a").exists()


def test_refusal_takes_away_what_appeared_and_nothing_else(tmp_path):
    (tmp_path / "old").write_text("mine")

    def write(error):
        with undone_if_refused(tmp_path), undone_if_refused(tmp_path / "new"):
            (tmp_path / "new" / "deep").mkdir(parents=True)
            (tmp_path / "made").mkdir()
            (tmp_path / "made" / "x").touch()
            (tmp_path / "y").touch()
            raise error

    with pytest.raises(InputError):
        write(InputError("no"))
    assert [path.name for path in tmp_path.iterdir()] == ["old"]
    with pytest.raises(OSError, match="a crash"):  # what was done may be gone on with
        write(OSError("a crash"))
    assert {path.name for path in tmp_path.iterdir()} == {"old", "new", "made", "y"}


def test_log_keeps_whole_lines_up_to_the_checkpoint(tmp_path):
    log = MetricsLog(tmp_path, step=0, run="0")
    for step in range(1, 6):
        log.write({"step": step, "loss": 0.5, "norms": [1.0]})
    with open(log.path, "a") as file:
        file.write('{"step": 6, "loss": 0.')
    assert [line["step"] for line in read_metrics(tmp_path)] == [1, 2, 3, 4, 5]
    resumed = MetricsLog(tmp_path, step=3, run="0")
    resumed.write({"step": 4})
    assert [json.loads(line)["step"] for line in log.path.read_text().splitlines()] == [1, 2, 3, 4]


@pytest.mark.parametrize("torn", ["", "\n", "{", '{"a": [1', "\x00\x00\x00", '{"step": 9, "nested": {"a": 1}', "\xff"])
def test_torn_last_line_is_left_out(tmp_path, torn):
    (tmp_path / "metrics.jsonl").write_bytes(b'{"step": 1}\n' + torn.encode("latin-1"))
    assert read_metrics(tmp_path) == [{"step": 1}]
    assert last_metrics(tmp_path) == {"step": 1}


def test_missing_log_is_empty(tmp_path):
    assert read_metrics(tmp_path) == []
    assert last_metrics(tmp_path) is None


@pytest.mark.parametrize("block", [1, 7, 64, 1 << 16])
def test_last_line_is_found_from_the_end(tmp_path, monkeypatch, block):
    monkeypatch.setattr(run_folder, "TAIL", block)
    path = tmp_path / "metrics.jsonl"
    for content, expected in (
        ("", None),
        ('{"step": 1', None),
        ('{"step": 1}\n', {"step": 1}),
        ('{"step": 1}\n{"step": 2, "loss": 0.25}\n', {"step": 2, "loss": 0.25}),
        ('{"step": 1}\nnonsense\n[]\n{"step": 3, "lo', {"step": 1}),
    ):
        path.write_text(content)
        assert last_metrics(tmp_path) == expected


@pytest.mark.slow
def test_a_log_of_a_million_lines_is_never_in_memory(tmp_path):
    """Every half a second a study looks at each run's log; a resumed run copies the part before its checkpoint."""
    count = 1_000_000
    with open(tmp_path / "metrics.jsonl", "w") as file:
        file.writelines(f'{{"step": {step}, "loss": 2.5, "norm": 1, "run": "0"}}\n' for step in range(1, count + 1))
    size = (tmp_path / "metrics.jsonl").stat().st_size
    tracemalloc.start()
    assert last_metrics(tmp_path)["step"] == count
    assert tracemalloc.get_traced_memory()[1] < 1 << 20
    MetricsLog(tmp_path, step=count - 1, run="0")
    assert tracemalloc.get_traced_memory()[1] < 1 << 20
    tracemalloc.stop()
    assert size - 100 < (tmp_path / "metrics.jsonl").stat().st_size < size
    assert last_metrics(tmp_path)["step"] == count - 1
