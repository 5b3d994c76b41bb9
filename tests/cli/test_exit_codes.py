"""How a command that cannot go on ends: one sentence and its exit code."""

import os
import signal
import subprocess
import sys

import pytest

from antiphase import cli
from antiphase.lab.studies import settings
from support.paths import ROOT


@pytest.mark.parametrize("instead", [
    None,
    RuntimeError("__set_name__"),  # Python 3.11, while it makes a class
    ValueError("could not determine the shape"),  # safetensors, while it reads a tensor
    cli.InputError("MODEL: its weights cannot be read"),  # what our readers make of that
])  # fmt: skip
def test_ctrl_c_is_exit_code_130_and_one_sentence(antiphase, monkeypatch, instead):
    def interrupt(*_, **__):
        try:
            signal.raise_signal(signal.SIGINT)
        except KeyboardInterrupt:
            if instead is None:
                raise
        raise instead

    monkeypatch.setattr(settings, "load_preset", interrupt)
    code, _, err = antiphase("compare --output x")
    ignored = signal.signal(signal.SIGINT, signal.default_int_handler) is signal.SIG_IGN
    assert (code, err) == (130, "antiphase: stopped\n")
    assert ignored  # pressed again, it would interrupt the sentence


def test_ctrl_c_before_a_command_begins_is_one_sentence_too(monkeypatch, capsys):
    """While the command line itself is made."""
    monkeypatch.setattr(cli, "app", lambda **_: signal.raise_signal(signal.SIGINT))
    monkeypatch.setattr(sys, "argv", ["antiphase", "env"])
    with pytest.raises(SystemExit, match="130"):
        cli.main()
    signal.signal(signal.SIGINT, signal.default_int_handler)
    assert capsys.readouterr().err == "antiphase: stopped\n"


def test_message_of_several_lines_becomes_one(antiphase, monkeypatch):
    def fail(*_, **__):
        raise cli.InputError("first\nsecond")

    monkeypatch.setattr(settings, "load_preset", fail)
    assert antiphase("compare --output x")[2] == "antiphase: first second\n"


@pytest.mark.slow
@pytest.mark.parametrize("date", ["letters", "", "-5", "9" * 21])
def test_the_date_of_reproducible_builds_is_no_input(tmp_path, date):
    """NumPy and matplotlib read it and fail, in a process that has not imported them."""
    record = ROOT / "records" / "demo-learning-rate.json"
    variables = {**os.environ, "SOURCE_DATE_EPOCH": date, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-m", "antiphase", "report", record, "--output", "page.html"],
        cwd=tmp_path, env=variables, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    assert "image/svg+xml" in (tmp_path / "page.html").read_text(encoding="utf-8")
