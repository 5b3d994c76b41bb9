"""Claims against records of systems without the ability: none of them may be called reproduced."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from antiphase.records import Record
from antiphase.studies.claims import CLAIMS, judge

ARMS = ("softmax", "differential")
SEEDS = range(5)


def judged(name, part, records, **further):
    claim = next(claim for claim in CLAIMS if claim.name.startswith(name))
    assert claim.part == part
    return judge(claim, {part: records, **further}, {})


def of_models(kind, values):
    """Records of single models; ``values(arm, seed)`` are a model's."""
    return [Record(kind=kind, values={"arm": arm, "seed": seed, **values(arm, seed)}) for seed in SEEDS for arm in ARMS]


# ------------------------------------------------------------------------------------------ orders of examples


def in_orders(means, margins):
    """Many-shot records by arm: mean accuracy over orders, and best minus worst."""
    return of_models("evaluate-many-shot", lambda arm, seed: {"tasks": {"t": {
        "majority_rate": 0.3,
        "orders": {"random": {"mean_accuracy": means[ARMS.index(arm)],
                              "margin": margins[ARMS.index(arm)] + 0.001 * seed}},
    }}})  # fmt: skip


@pytest.mark.parametrize(
    ("means", "margins", "word", "reason"),
    [
        ((0.6, 0.7), (0.2, 0.1), "reproduced", ""),
        ((0.6, 0.7), (0.1, 0.2), "contradicted", ""),
        # who always names one label has no spread
        ((0.6, 0.3), (0.2, 0.0), "not testable", "the differential models are no better than always naming one label"),
        ((0.31, 0.7), (0.2, 0.1), "not testable", "the softmax models are no better than always naming one label"),
        ((1.0, 1.0), (0.0, 0.0), "not testable", "the softmax models are on the ceiling"),
    ],
)
def test_a_spread_counts_only_above_the_majority_rate(means, margins, word, reason):
    row = judged("In-context learning: less spread", "many-shot", in_orders(means, margins))
    assert (row["verdict"], row["reason"]) == (word, reason)


# ------------------------------------------------------------------------------------------ several needles


def needles(found):
    """Records of two cells with the needle anywhere, two and four needles; ``found`` by arm."""
    return [
        Record(kind="evaluate-needles", values={"guess_rate": 1 / 2, "summary": [
            {"arm": f"{arm}-seed{seed}", "trained": trained, "depth": depth, "guess_rate": 1 / count,
             "accuracy": found[ARMS.index(arm)] + 0.001 * seed * (arm == "softmax") if trained and depth is None else 1}
            for arm in ARMS for count in (2, 4) for trained in (True, False) for depth in (None, 0.0)
        ]})
        for seed in SEEDS
    ]  # fmt: skip


def test_the_floor_of_needles_is_what_a_guess_scores_in_the_same_cells():
    """Mean of 1/2 and 1/4, not the guess of the first cell."""
    row = judged("Key information", "needles", needles((0.45, 0.6)))
    assert row["floor"] == pytest.approx(0.375)
    assert row["verdict"] == "reproduced"
    assert judged("Key information", "needles", needles((0.375, 0.6)))["verdict"] == "not testable"


def demo(accuracies):
    """The comparison of the demo with other accuracies by arm."""
    record = Record.load(Path(__file__).parents[2] / "docs" / "records" / "demo.json")
    values = json.loads(json.dumps(record.values))
    entry = next(entry for entry in values["comparison"] if entry["metric"] == "first-query accuracy")
    for arm, mean in zip(ARMS, accuracies, strict=True):
        entry["arms"][arm]["mean"] = mean
    return [Record(kind="compare", values=values)]


@pytest.mark.parametrize("name", ["Attention allocation: more", "Attention allocation: less"])
def test_where_an_arm_looks_counts_only_if_it_finds_something(name):
    assert judged(name, "compare", demo((0.8, 0.9)))["verdict"] == "inconclusive"  # three seeds
    for accuracies, blind in (((0.8, 0.13), "differential"), ((0.13, 0.8), "softmax")):
        row = judged(name, "compare", demo(accuracies))
        assert (row["verdict"], row["reason"]) == (
            "not testable", f"the {blind} models retrieve no more than a guess would",
        )  # fmt: skip


def test_a_seed_that_only_one_arm_has_leaves_no_verdict():
    whole = [record for seed in range(6) for record in of_models("outliers", sizes)[:2]]
    for place, record in enumerate(whole):
        record.values["seed"] = place // 2
    assert judged("Outliers: smaller largest attention", "outliers", whole)["verdict"] == "reproduced"
    row = judged("Outliers: smaller largest attention", "outliers", whole[:-1])
    assert (row["verdict"], row["reason"]) == ("inconclusive", "some seeds have no value")


# ------------------------------------------------------------------------------------------ downstream tasks


def downstream(values, *, folder="runs", constant=0.4):
    """Rows of one task with choices, one with generated answers, and one without any metric."""
    return [
        Record(kind="evaluate-harness", values={"rows": [
            {"model": f"{folder}/{arm}-seed{seed}", "task": task, "metric": metric, "guess_rate": guess,
             "constant_rate": commonest,
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
    assert row["verdict"] == "reproduced"
    assert row["floor"] == pytest.approx((0.4 + 0) / 2)
    constant = judged("Downstream", "harness", downstream((0.4, 0.6), constant=0.8))
    assert constant["verdict"] == "not testable"


def test_the_name_of_the_output_folder_is_no_arm():
    row = judged("Downstream", "harness", downstream((0.5, 0.6), folder="softmax-seed0-and-differential-seed0"))
    assert (row["softmax"], row["differential"]) == (pytest.approx(0.502), pytest.approx(0.6))


# ------------------------------------------------------------------------------------------ judged texts


def texts(right, *, gold=90, wrong=5, unjudged=0, copied=0.2, kind="summarization"):
    """Records with 100 outputs a model; ``right`` of them by arm, and of the judge's yes on controls."""

    def values(arm, seed):
        own = right[ARMS.index(arm)] + seed * (arm == "differential")
        rows = [("model", own), ("gold", gold), ("wrong", wrong)]
        return {"tasks": {"t": {"kind": kind, "systems": [
            {"system": system, "right": count, "accuracy": count / 100, "samples": 100, "empty": 0,
             "unjudged": unjudged if system == "model" else 0, "wrong": 100 - count, "copied": copied}
            for system, count in rows
        ]}}}  # fmt: skip

    return of_models("evaluate-hallucination", values)


@pytest.mark.parametrize(
    ("records", "word", "reason"),
    [
        (texts((40, 60)), "reproduced", ""),
        (texts((60, 40)), "contradicted", ""),
        (texts((0, 60)), "not testable", "the softmax models are on the floor or the ceiling"),
        (texts((40, 60), gold=100, wrong=100), "not testable", "the judge does not tell"),  # it says yes to all
        (texts((40, 60), gold=0, wrong=0), "not testable", "the judge does not tell"),
        (texts((40, 60), unjudged=3), "not testable", "the judge gave no verdict on 30 of 1000 outputs"),
        (texts((40, 60), copied=1.0), "not testable", "the softmax models copy what they are to summarise"),
        (texts((40, 60), copied=1.0, kind="question answering"), "reproduced", ""),  # an answer may stand in the text
    ],
)
def test_texts_count_where_the_judge_can_judge_and_nobody_copies(records, word, reason):
    row = judged("Contextual", "hallucination", records)
    assert row["verdict"] == word
    assert row["reason"].startswith(reason) if reason else not row["reason"]


# ------------------------------------------------------------------------------------------ sizes and bits


def compared(losses):
    """A comparison with these held-out losses by arm."""
    arms = {arm: {"values": [loss + 0.001 * seed * (arm == "softmax") for seed in SEEDS]}
            for arm, loss in zip(ARMS, losses, strict=True)}  # fmt: skip
    return [Record(kind="compare", values={"comparison": [{"metric": "held-out loss", "arms": arms}]})]


def sizes(arm, seed):
    values = {"softmax": 20.0 + seed, "differential": 10.0}
    row = {"layer": "all", "top": {"1": values[arm]}}
    return {"rows": [{"what": "attention logits", **row}, {"what": "hidden states", **row}]}


def bits(arm, seed):
    return {"rows": [{"bits": None, "loss": 3.0}, {"bits": 4, "loss": 3.5 + 0.01 * seed if arm == "softmax" else 3.0}]}


@pytest.mark.parametrize(
    ("name", "part", "values"),
    [
        ("Outliers: smaller largest attention", "outliers", sizes),
        ("Outliers: smaller largest hidden", "outliers", sizes),
        ("Quantization", "quantization", bits),
    ],
)
def test_what_an_untrained_model_has_too_counts_only_for_an_arm_that_has_learned_as_much(name, part, values):
    records = of_models(part, values)
    assert judged(name, part, records, compare=compared((3.0, 2.9)))["verdict"] == "reproduced"
    assert judged(name, part, records, compare=compared((3.002, 3.002)))["verdict"] == "reproduced"  # level
    row = judged(name, part, records, compare=compared((3.0, 8.0)))
    assert row["verdict"] == "not testable"
    assert "higher loss" in row["reason"]
