"""What the commands of calibration say was found, and what to type next: numbers are those of the record."""

import shlex
from pathlib import Path

import pytest

from antiphase.base.errors import naming_fields
from antiphase.base.records import Record
from antiphase.cli.naming import flag_of
from antiphase.lab.pages.html import write_report
from antiphase.lab.pages.summary import presentation_of

STANDING = {"task": "cr", "metric": "accuracy", "samples": 40, "score": 0.45, "chance": 0.5, "above_chance": False}
MEASURES = {"accuracy": 0.45, "balanced_accuracy": 0.45, "auc": 0.5, "mean_centred_accuracy": 0.5}
GAIN, INTERVAL = 0.0712, [0.0104, 0.131]
RANDOM = (0.08, 0.0712, 0.05, -0.02, *[0.01] * 16)
"""Gains of draws of random heads, of which the first two are as large."""
SHOWN = "+7.1 points (95 % +1.0 to +13.1): a gain is shown"
MAYBE = f"{SHOWN}; 2 of 20 draws of random heads gain as much, so the choice of heads is not shown to matter"


def controls(gains):
    rows = [
        ("kept heads", GAIN),
        *((f"random heads {draw}", gain) for draw, gain in enumerate(gains)),
        ("inverse", 0.9),
    ]
    return [{"setting": setting, "heads": 3, "gain": gain, "gain_interval": [-1.0, 1.0]} for setting, gain in rows]


def searched(**changes):
    alone = {f"{layer}.{head}": {"change": 0.1, "improved": 2, "worsened": 1} for layer in (0, 1) for head in range(4)}
    values = {
        "model": "gpt2", "tasks": [STANDING], "heads_alone": alone, "method": "exhaustive", "seed": 0,
        "evaluations": 8, "exhaustive_evaluations": 8, "samples": {"cr": 60, "mr": 50},
        "search_samples": {"cr": list(range(30)), "mr": list(range(25))}, "left_out": {"cr": 3, "mr": 1},
        "rounding": 0.0, "search_before": 0.5, "held_out_before": 0.5, "held_out_after": 0.57,
        "held_out_gain": GAIN, "held_out_gain_interval": INTERVAL, "heads": {"0": [1, 3], "1": [2]},
        "controls": controls(RANDOM), **changes,
    }  # fmt: skip
    return Record(kind="calibrate-search", values=values, config={"score": "metric", "tasks": ["cr.yaml", "mr.yaml"]})


def applied(*rows):
    plan = {"heads": {"0": [1]}, "alpha": 5.0, "beta": 0.4, "mode": "prompt"}
    values = {"model": "gpt2", "plan": plan, "tasks": list(rows), "texts": []}
    config = {"plan": "plan.json", "tasks": [f"{row['task']}.yaml" for row in rows]}
    return Record(kind="calibrate-apply", values=values, config=config)


def compared(**changes):
    return {
        **STANDING, "left_out": 4, "calibrated": 0.5212, "gain": GAIN, "gain_interval": INTERVAL, "improved": 4,
        "worsened": 1, "measures": MEASURES, "measures_calibrated": {**MEASURES, "mean_centred_accuracy": 0.525},
        **changes,
    }  # fmt: skip


def studied(**changes):
    kept = {"setting": "kept heads", "heads": 2, "score": 0.5, "gain": -0.02, "gain_interval": [-0.05, 0.01]}
    heads = {"improved": 0.25, "tied": 0.5, "worsened": 0.25, "null_improved": 0.3, "null_tied": 0.4,
             "null_worsened": 0.3, "rows": []}  # fmt: skip
    values = {
        "model": "gpt2", "tasks": [STANDING], "score": "probability", "rounding": 0.0, "held_out_before": 0.5,
        "heads": heads, "kept": {"0": [1], "3": [2]}, "measures": {"cr": MEASURES},
        "measures_calibrated": {"cr": MEASURES}, "rows": {"kept heads": [kept], "controls": controls(RANDOM)},
        **changes,
    }  # fmt: skip
    return Record(kind="calibrate-study", values=values, config={"tasks": ["cr.yaml"]})


def finding_of(record):
    return presentation_of(record.kind).finding(record)


@naming_fields(flag_of)
def next_of(record):
    """The words of the command that comes next."""
    last = presentation_of(record.kind).closing(record, Path("runs/a b")).splitlines()[-1]
    return shlex.split(last.removeprefix("next: "))


def test_a_search_says_what_is_shown_on_samples_that_chose_nothing():
    words = finding_of(searched())
    assert words.startswith("3 of 8 heads raise the score alone")
    assert words.endswith(
        f"The plan changes these 3. On {60 + 50 - 55 - 4} other samples it changes the score by {MAYBE}."
    )
    assert "None of the 8 heads" in finding_of(searched(heads={}))


@pytest.mark.parametrize(
    ("interval", "gains", "shown"),
    [
        ([0.0, 0.1], RANDOM, "no gain is shown"),
        ([-0.2, -0.1], RANDOM, "a loss is shown"),
        ([0.01, 0.1], (), "a gain is shown, but random heads, which may gain as much, were not tried"),
        ([0.01, 0.1], (0.07,) * 20, "a gain is shown; 0 of 20 draws of random heads gain as much"),
        ([0.01, 0.1], (0.07,) * 5, "a gain is shown; 0 of 5 draws of random heads gain as much, so the choice of heads "
                                   "is not shown to matter"),
    ],
)  # fmt: skip
def test_a_gain_is_shown_where_its_interval_is_above_zero(interval, gains, shown):
    rows = controls(gains) if gains else []
    assert finding_of(searched(held_out_gain_interval=interval, controls=rows)).endswith(f": {shown}.")


def test_an_application_says_it_for_each_task():
    first, second = compared(), compared(task="qa", gain_interval=[-0.01, 0.1], measures=None, measures_calibrated=None)
    assert finding_of(applied(first, second)) == (
        "cr: accuracy 45.0 % without and 52.1 % with the plan on 40 samples, "
        f"{SHOWN}, but random heads, which may gain as much, were not tried; the mean-centred accuracy, which a moved "
        "prior leaves alone, gains +2.5 points. "
        "qa: accuracy 45.0 % without and 52.1 % with the plan on 40 samples, "
        "+7.1 points (95 % -1.0 to +10.0): no gain is shown."
    )
    assert "No task was scored" in finding_of(applied())


def test_a_study_says_what_the_kept_heads_do():
    assert finding_of(studied()) == (
        "Alone, 25.0 % of the heads raise the probability of right answers, 30.0 % would by chance. 2 raise the "
        "probability of right answers on the samples that choose; together they change it on the others by -2.0 points "
        "(95 % -5.0 to +1.0): no gain is shown."
    )
    assert finding_of(studied(heads=None, kept={})).startswith("No head raises the probability of right answers on")


def test_the_verdict_stands_first_on_the_page(tmp_path):
    page = write_report([searched()], tmp_path / "page.html").read_text("utf-8")
    assert page.index("3 of 8 heads raise the score") < page.index("Tasks without calibration")
    assert "these seeds" not in page


def test_the_next_command_is_said():
    calibrate = ["antiphase", "calibrate"]
    assert next_of(searched()) == [
        *calibrate, "apply", "gpt2", "--plan", "runs/a b/plan.json", "--task", "OTHER.yaml", "--output",
        "runs/a b-apply",
    ]  # fmt: skip
    assert next_of(searched(heads={})) == ["plan:", "runs/a", "b/plan.json"]  # which changes nothing
    tasks = ["--task", "cr.yaml"]
    assert next_of(applied(compared())) == [*calibrate, "confirm", "gpt2", *tasks, "--output", "runs/a b-confirm"]
    answers = compared(measures=None, measures_calibrated=None)
    assert next_of(applied(answers)) == [*calibrate, "study", "gpt2", *tasks, "--output", "runs/a b-study"]
    assert next_of(applied())[4:8] == ["--plan", "plan.json", "--task", "TASK.yaml"]
    assert next_of(studied()) == [*calibrate, "confirm", "gpt2", *tasks, "--output", "runs/a b-confirm"]
    assert next_of(studied(measures={}))[2] == "search"
