"""Training as processes of its own: kills, signals, and several at once."""

import fcntl
import os
import pty
import signal
import subprocess
import termios
import time

import pytest

from support.launched import command, in_two_processes
from support.records import values

pytestmark = pytest.mark.slow

LONG = ("training.steps=400", "training.evaluate_every=100", "training.checkpoint_every=7")


def wait_for(condition, process, seconds=120):
    """Until the condition holds; the process must not have ended before."""
    end = time.monotonic() + seconds
    while not condition():
        assert process.poll() is None, "the run ended before it was stopped"
        assert time.monotonic() < end
        time.sleep(0.01)


def steps_done(folder):
    path = folder / "metrics.jsonl"
    return path.read_text().count("\n") if path.is_file() else 0


@pytest.mark.parametrize("stop", [signal.SIGKILL, signal.SIGINT, signal.SIGTERM])
def test_stopped_run_goes_on_to_the_same_weights(tmp_path, tiny_preset, run, outcome, assert_identical, stop):
    with subprocess.Popen(
        command(tiny_preset, tmp_path / "parts", *LONG), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    ) as process:
        wait_for(lambda: steps_done(tmp_path / "parts") >= 30, process)
        process.send_signal(stop)
        _, err = process.communicate(timeout=60)
    assert not (tmp_path / "parts" / "record.json").exists(), "the run was too quick to be stopped"
    if stop == signal.SIGKILL:
        assert process.returncode == -signal.SIGKILL
    else:
        assert process.returncode == 130
        assert err.startswith("antiphase: stopped after step ")
        assert err.endswith("of 400; add --resume to the same command to continue\n")
    run(tmp_path / "parts", *LONG, resume=True)
    run(tmp_path / "whole", *LONG)
    assert_identical(outcome(tmp_path / "parts"), outcome(tmp_path / "whole"))


def test_a_run_whose_terminal_is_closed_writes_a_checkpoint(tmp_path, tiny_preset, kept):
    """Its bars have nowhere to go from then on, and neither they nor its last sentence may fail."""
    ours, theirs = pty.openpty()

    def own_terminal():
        fcntl.ioctl(theirs, termios.TIOCSCTTY, 0)

    line = command(tiny_preset, tmp_path / "run", *LONG, "training.checkpoint_every=400")
    streams = dict.fromkeys(("stdin", "stdout", "stderr"), theirs)
    with subprocess.Popen(line, **streams, start_new_session=True, preexec_fn=own_terminal) as process:
        os.close(theirs)
        shown = bytearray()
        while b"steps" not in shown or steps_done(tmp_path / "run") < 30:
            shown += os.read(ours, 1 << 16)
        os.close(ours)
        assert process.wait(timeout=60) == 130
    assert kept(tmp_path / "run")["progress"]["step"] >= 30


@pytest.mark.essential
def test_two_processes_give_the_losses_of_one(tmp_path, tiny_preset, run, outcome, assert_identical):
    overrides = ("training.steps=8", "training.micro_batch_size=2", "training.batch_size=7")
    done = in_two_processes(tiny_preset, tmp_path / "two", *overrides)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("record:") == 1  # one of the processes speaks
    run(tmp_path / "one", *overrides)
    one, two = outcome(tmp_path / "one"), outcome(tmp_path / "two")
    assert [line["step"] for line in two["metrics"]] == list(range(1, 9))
    for first, second in zip(one["metrics"], two["metrics"], strict=True):
        for name in ("loss", "gradient_norm", "lambdas", "tokens", "learning_rate", "gradient_norms"):
            assert second[name] == pytest.approx(first[name], rel=1e-4), name
    for first, second in zip(one["progress"]["curve"], two["progress"]["curve"], strict=True):
        assert second["loss"] == pytest.approx(first["loss"], rel=1e-4)
    assert values(tmp_path / "two")["tokens"] == 8 * 7 * 25


def test_two_processes_go_on_from_the_newest_whole_checkpoint(tmp_path, tiny_preset, outcome, assert_identical):
    overrides = ("training.steps=8", "training.batch_size=7")
    assert in_two_processes(tiny_preset, tmp_path / "two", *overrides).returncode == 0
    two = outcome(tmp_path / "two")
    (tmp_path / "two" / "checkpoint" / "step-00000008" / "optimizer.safetensors").unlink()
    done = in_two_processes(tiny_preset, tmp_path / "two", *overrides, further=["--resume"])
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("continues from step-00000005") == 1, done.stdout
    assert_identical(outcome(tmp_path / "two"), two)


def test_fewer_sequences_than_processes_is_refused(tmp_path, tiny_preset):
    done = in_two_processes(tiny_preset, tmp_path / "two", "training.batch_size=1", "data.needle_share=1")
    assert done.returncode != 0
    assert "training.batch_size (1) is too small for 2 processes with sequences of their own" in done.stderr
    assert not (tmp_path / "two").exists()
