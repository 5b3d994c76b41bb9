"""What the command line shows while it works."""

import json
from io import StringIO
from types import SimpleNamespace

import pytest
import typer
from rich.console import Console

from antiphase import cli
from antiphase.cli.progress import Lines, Pace, Total, job_progress, run_progress, share_progress
from antiphase.lab.studies.jobs import Job


def test_each_run_of_a_study_has_its_own_steps():
    """Short runs of the same name too, as ablations make them after a comparison."""
    written = StringIO()
    with job_progress(Console(file=written, force_terminal=True, width=120)) as report:
        for steps in (10, 4):
            settings = SimpleNamespace(training=SimpleNamespace(steps=steps))
            report(Job("softmax-seed0", "softmax", 0, settings), 4, {"loss": 1.0})
    assert "4/10" in written.getvalue()
    assert "4/4" in written.getvalue()


def job(name, steps=100):
    training, data = SimpleNamespace(steps=steps, batch_size=2), SimpleNamespace(sequence_length=5)
    return Job(name, "softmax", 0, SimpleNamespace(training=training, data=data))


def test_all_runs_have_one_total():
    now, jobs = [0.0], [job("a"), job("b"), job("short", 50)]
    total = Total(4, (100 + 100 + 50 + 50) * 10, lambda: now[0])
    told, steps = [], [(0, 0, 100), (10, 1, 0), (12, 1, 3), (20, 1, 20), (60, 1, 100), (60, 2, 0), (80, 2, 50)]
    for seconds, which, step in steps:
        now[0] = seconds
        told.append(total.words(jobs[which], step))
    assert told == [
        "1 of 4 runs", "1 of 4 runs",  # the first was finished before
        "1 of 4 runs",  # less than a twentieth of a run
        "1 of 4 runs, about 3 minutes left for everything",  # 20 of 200 steps in 20 seconds
        *["2 of 4 runs, about 60 seconds left for everything"] * 2,
        "3 of 4 runs, about 27 seconds left for everything",
    ]  # fmt: skip


@pytest.mark.parametrize("is_terminal", [True, False])
def test_the_total_is_shown_in_a_terminal_and_in_a_log(is_terminal):
    written = StringIO()
    with job_progress(Console(file=written, force_terminal=is_terminal, width=120), 2, 2000) as report:
        report(job("softmax-seed0"), 100, {"loss": 1.0})
    assert "1 of 2 runs" in written.getvalue()
    assert ("all runs" in written.getvalue()) is is_terminal
    assert is_terminal or written.getvalue() == "softmax-seed0: 100 of 100, loss 1.000; 1 of 2 runs\n"


def test_a_log_gives_no_time_before_a_twentieth():
    steps = [(0, "a", 0, 800), (1, "a", 10, 800), (15, "a", 20, 800), (41, "a", 60, 800)]
    assert told_by_lines(steps) == ["a: 0 of 800", "a: 20 of 800", "a: 60 of 800, about 9.9 minutes left"]


def told_of(steps):
    """What is said of the time left, at times in seconds."""
    now = [0.0]
    pace, told = Pace(lambda: now[0]), []
    for seconds, done, count in steps:
        now[0] = seconds
        told.append(pace.left("a", done, count))
    return told


def test_time_is_told_from_the_first_measured_part_and_after_a_twentieth():
    assert told_of([(50, 1, 101), (54, 2, 101), (90, 20, 101)]) == ["", "", "about 2.8 minutes left"]
    assert told_of([(0, 0, 5), (10_000, 1, 5), (20_000, 2, 5)]) == ["", "", "about 8.3 hours left"]
    assert told_of([(3, 1, 3), (6, 2, 3), (9, 3, 3)]) == ["", "about 3 seconds left", ""]


def test_what_was_known_already_does_not_count():
    steps = [(0, 1, 100), (0.001, 2, 100), (0.002, 60, 100), (8.002, 65, 100)]
    assert told_of(steps) == ["", "", "", "about 56 seconds left"]


def test_a_run_shows_its_validation_before_step_1():
    written = StringIO()
    with run_progress(Console(file=written, force_terminal=True, width=120), 10) as report:
        report(0, {"measuring": "loss", "tokens": 12_288})
    assert "measuring on held-out data (loss): 12,288 tokens" in written.getvalue()


def told_by_lines(steps):
    """The lines of a log for (seconds, key, done, total)."""
    said, now = [], [0.0]
    lines = Lines(said.append, lambda: now[0])
    for seconds, key, done, total in steps:
        now[0] = seconds
        lines.show(key, key, done, total, "")
    return said


def test_a_log_has_a_line_every_ten_seconds_and_one_for_the_end():
    steps = [(second, "a", 10 * second, 250) for second in range(26)]
    assert told_by_lines(steps) == [
        "a: 0 of 250", "a: 100 of 250, about 15 seconds left", "a: 200 of 250, about 5 seconds left", "a: 250 of 250",
    ]  # fmt: skip


def test_in_a_log_an_end_is_told_once():
    """Work is finished some time before its process ends, and is reported until then."""
    steps = [(0, "a", 0, 2), *((second, "a", 2, 2) for second in range(1, 30)), (30, "b", 3, 3)]
    assert told_by_lines(steps) == ["a: 0 of 2", "a: 2 of 2", "b: 3 of 3"]


def test_in_a_log_pieces_side_by_side_have_lines_of_their_own_and_loading_does_not_count():
    steps = [(0, "a", 0, 40), (60, "a", 1, 40), (62, "b", 3, 3), (80, "a", 11, 40)]
    assert told_by_lines(steps) == ["a: 0 of 40", "a: 1 of 40", "b: 3 of 3", "a: 11 of 40, about 58 seconds left"]


def test_output_that_is_no_terminal_gets_lines():
    for progress, arguments, line in (
        (share_progress, ("prompts",), "prompts: 3 of 20"),
        (run_progress, (20,), "steps: 3 of 20, loss 1.500"),
    ):
        written = StringIO()
        with progress(Console(file=written, width=20), *arguments) as report:
            report(3, 20 if progress is share_progress else {"loss": 1.5})
        assert written.getvalue() == f"{line}\n"


def test_without_a_command_it_says_what_to_do_first(antiphase):
    code, out, err = antiphase()
    assert (code, err) == (2, "")  # nothing was done
    named = [line.split()[1:3] for line in out.splitlines() if line.startswith("  antiphase ")]
    commands = typer.main.get_command(cli.app).commands
    assert named
    for first, second in named:
        assert first in commands
        assert not hasattr(commands[first], "commands") or second in commands[first].commands


@pytest.mark.parametrize(
    ("words", "completed"),
    [("evaluate needl", "needles"), ("evaluate needles MODEL --que", "--queries"), ("tun", "tune")],
)
def test_the_shell_completes_commands_and_flags(antiphase, monkeypatch, words, completed):
    monkeypatch.setenv("_ANTIPHASE_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", f"antiphase {words}")
    monkeypatch.setenv("COMP_CWORD", str(len(words.split())))
    assert antiphase()[1].split() == [completed]


def test_json_of_work_without_a_folder(antiphase):
    code, out, _ = antiphase("tokenize", ["Hello you"], "--json")
    assert (code, json.loads(out)["kind"]) == (0, "tokenize")


def test_version(antiphase):
    code, out, _ = antiphase("--version")
    assert (code, out) == (0, "0.1.0\n")


def test_in_a_log_the_next_stage_of_a_piece_is_timed_by_itself_and_its_end_is_told():
    steps = [(0, "a", 16, 200), (300, "a", 200, 200), (320, "a", 4, 788), (340, "a", 44, 788), (712, "a", 788, 788)]
    assert told_by_lines(steps) == [
        "a: 16 of 200", "a: 200 of 200", "a: 4 of 788", "a: 44 of 788, about 6.2 minutes left", "a: 788 of 788",
    ]  # fmt: skip
