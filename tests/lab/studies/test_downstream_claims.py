"""The claim about downstream tasks: the floor of who does not read, and rows that are asked more than once."""

from dataclasses import replace

import pytest

from antiphase.base.records import Record
from antiphase.lab.studies.reproduce.readings import Found, without_reading
from support.claims import ARMS, SEEDS, judged


def downstream(values, *, folder="runs", constant=0.4):
    """Rows of one task with choices, one with generated answers, and one without any metric."""
    return [
        Record(kind="evaluate-harness", values={"models": [], "lm_eval": "0", "rows": [
            {"model": f"{folder}/{arm}-seed{seed}", "task": task, "metric": metric, "guess_rate": guess,
             "constant_rate": commonest, "samples": 10_000, "shots": 0,
             "metrics": {"acc": {"value": values[ARMS.index(arm)] + 0.001 * seed * (arm == "softmax")}}}
            for arm in ARMS
            for task, metric, guess, commonest in (
                ("choices", "acc", 0.25, constant), ("written", "acc", None, None), ("none", None, None, None)
            )
        ]})
        for seed in SEEDS
    ]  # fmt: skip


def test_downstream_tasks_have_the_floor_of_who_does_not_read():
    row = judged("Downstream", "harness", downstream((0.5, 0.6)))
    assert row.verdict == "agrees"
    assert row.floor == pytest.approx((0.4 + 0) / 2)
    constant = judged("Downstream", "harness", downstream((0.4, 0.41), constant=0.8))
    assert constant.verdict == "cannot tell"


def test_a_task_with_more_examples_has_the_same_rows():
    """Twice the numbers of examples leave the answers of the floor as they were."""
    once = downstream((0.5, 0.6))
    for record in once:
        for row in record.values["rows"]:
            row["samples"] = 200
    twice = [replace(record, values={**record.values, "rows": [
        {**row, "shots": shots} for row in record.values["rows"] for shots in (0, 5)
    ]}) for record in once]  # fmt: skip
    one, two = (Found.of({"harness": records}) for records in (once, twice))
    assert without_reading(two) == without_reading(one)


def test_the_name_of_the_output_folder_is_no_arm():
    row = judged("Downstream", "harness", downstream((0.5, 0.6), folder="softmax-seed0-and-differential-seed0"))
    assert (row.softmax, row.differential) == (pytest.approx(0.502), pytest.approx(0.6))
