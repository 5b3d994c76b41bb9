"""Sentences and verdicts follow from numbers alone."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from antiphase.config import CompareSettings
from antiphase.studies.compare import _comparison, _verdict_words, first_passing
from antiphase.studies.verdicts import Metric, compare_metric, verdict

ACCURACY = Metric("first-query accuracy", "points", lower_is_better=False, digits=1, is_share=True)
LOSS = Metric("held-out loss", "nats a token", lower_is_better=True, digits=4)
STEPS = Metric("steps to 50 % accuracy", "steps", lower_is_better=True, digits=0)


def sentence(metric, softmax, differential):
    return compare_metric(metric, {"softmax": softmax, "differential": differential}, "softmax")["sentence"]


def test_higher_accuracy_is_ahead_and_the_interval_is_of_paired_differences():
    # differences 0.1, 0.2, 0.3: mean 0.2, standard error 0.1/√3, Student's factor 4.3027 at two degrees of freedom
    assert sentence(ACCURACY, [0.5, 0.4, 0.3], [0.6, 0.6, 0.6]) == (
        "First-query accuracy: differential is ahead of softmax by 20.0 points in these 3 seeds (paired difference "
        "differential minus softmax: 95 % interval -4.8 to 44.8, which includes 0)."
    )


def test_lower_loss_is_ahead():
    assert sentence(LOSS, [2.0, 2.1], [2.5, 2.6]) == (
        "Held-out loss: softmax is ahead of differential by 0.5000 nats a token in these 2 seeds (paired difference "
        "differential minus softmax: 95 % interval 0.5000 to 0.5000, which excludes 0)."
    )
    assert "differential is ahead of softmax by 0.5000" in sentence(LOSS, [2.5, 2.6], [2.0, 2.1])


def test_one_seed_has_no_interval():
    assert sentence(LOSS, [2.0], [1.0]) == (
        "Held-out loss: differential is ahead of softmax by 1.0000 nats a token in this seed; one seed has no interval."
    )


@pytest.mark.parametrize(("softmax", "differential"), [([2.0, 2.0], [2.0, 2.0]), ([2.0, 2.0], [2.00001, 2.00002])])
def test_difference_that_rounds_to_nothing_is_level(softmax, differential):
    assert sentence(LOSS, softmax, differential).startswith(
        "Held-out loss: differential and softmax are level in these 2 seeds (paired"
    )


def test_an_arm_that_failed_in_more_seeds_is_never_called_ahead():
    """Of the seeds that both passed, the failing arm may be the quicker one: that is no lead."""
    text = sentence(STEPS, [None, None, 900.0], [500.0, 500.0, 950.0])
    assert text.startswith("Steps to 50 % accuracy: differential in 3 of 3 seeds and softmax in 1 of 3 seeds;")
    assert "is ahead of" not in text


def test_no_common_seed_is_told():
    entry = compare_metric(STEPS, {"softmax": [None, 5.0], "differential": [3.0, None]}, "softmax")
    assert "differential in 1 of 2 seeds and softmax in 1 of 2 seeds" in entry["sentence"]
    assert entry["differences"]["differential"] == {"mean": None, "interval": None, "seeds": 0, "values": []}
    assert entry["arms"]["softmax"]["median"] == 5.0


def test_nothing_known_is_no_entry():
    assert compare_metric(STEPS, {"softmax": [None], "differential": [None]}, "softmax") is None
    assert compare_metric(STEPS, {"differential": [1.0]}, "softmax") is None


def test_every_arm_is_compared_with_the_baseline():
    entry = compare_metric(LOSS, {"a": [1.0, 2.0], "base": [2.0, 3.0], "c": [4.0, 5.0]}, "base")
    assert {arm: found["mean"] for arm, found in entry["differences"].items()} == {"a": -1.0, "c": 2.0}
    assert entry["sentence"].count("Held-out loss: ") == 2
    assert entry["arms"]["c"] == {
        "median": 4.5, "mean": 4.5, "minimum": 4.0, "maximum": 5.0, "values": [4.0, 5.0],
    }  # fmt: skip


def test_large_numbers_have_separators():
    assert "by 12,345 steps" in sentence(STEPS, [20000.0], [7655.0])


CLEAR = [0.10, 0.11, 0.09, 0.10, 0.12]


@pytest.mark.parametrize(
    ("differences", "lower", "mean", "floor", "expected"),
    [
        (CLEAR, False, 0.5, 0.125, "reproduced"),
        ([-value for value in CLEAR], False, 0.5, 0.125, "contradicted"),
        (CLEAR, True, 2.0, None, "contradicted"),
        ([-value for value in CLEAR], True, 2.0, None, "reproduced"),
        (CLEAR[:4], False, 0.5, 0.125, "inconclusive"),
        ([], False, 0.5, 0.125, "inconclusive"),
        ([0.1, -0.1, 0.2, -0.2, 0.05], False, 0.5, 0.125, "inconclusive"),
        ([0.0] * 5, False, 0.5, 0.125, "inconclusive"),
        (CLEAR, False, 0.995, 0.125, "not testable"),
        (CLEAR, False, 0.99, 0.125, "not testable"),
        (CLEAR, False, 0.14, 0.125, "not testable"),
        (CLEAR, False, 0.05, 0.125, "not testable"),
        (CLEAR, False, 0.98, 0.125, "reproduced"),
        (CLEAR, False, 0.15, 0.125, "reproduced"),
        (CLEAR, True, 0.995, None, "contradicted"),  # a loss has neither floor nor ceiling
    ],
)
def test_verdict(differences, lower, mean, floor, expected):
    assert verdict(differences, lower_is_better=lower, baseline_mean=mean, floor=floor) == expected


@given(st.lists(st.floats(-100, 100), min_size=5, max_size=9))
def test_turning_the_sign_turns_the_verdict(differences):
    words = {"reproduced": "contradicted", "contradicted": "reproduced"}
    one = verdict(differences, lower_is_better=False, baseline_mean=1.0)
    assert verdict(differences, lower_is_better=True, baseline_mean=1.0) == words.get(one, one)
    assert verdict([-value for value in differences], lower_is_better=False, baseline_mean=1.0) == words.get(one, one)


def test_few_seeds_are_no_verdict_in_words():
    assert _verdict_words(1, {}).startswith("One seed is no verdict: a claim rests on at least 5 paired seeds.")
    assert _verdict_words(4, {}).startswith("4 seeds are no verdict")
    assert _verdict_words(5, {"loss": {"differential": "reproduced"}}) == (
        "Verdicts on the claim that the arm beats the baseline. loss, differential: reproduced."
    )


def runs(seeds, *, passes):
    """Results of both arms in which the differential one is better in everything."""
    return [
        {
            "arm": arm,
            "seed": seed,
            "final": {"accuracy": 0.5 + 0.2 * ahead + 0.001 * seed, "loss": 2.0 - 0.2 * ahead + 0.001 * seed**2},
            "passes": passes(arm, seed),
        }
        for seed in range(seeds)
        for arm, ahead in (("softmax", 0), ("differential", 1))
    ]


def test_comparison_gives_a_verdict_for_every_metric():
    found, words = _comparison(
        CompareSettings(seeds=list(range(5))),
        runs(5, passes=lambda arm, seed: 100 - 10 * (arm == "differential") + seed),
        guess_rate=0.125,
    )
    assert [entry["metric"] for entry in found] == ["first-query accuracy", "held-out loss", "steps to 50 % accuracy"]
    assert {metric: arms["differential"] for metric, arms in words["verdicts"].items()} == dict.fromkeys(
        (entry["metric"] for entry in found), "reproduced"
    )


def test_seed_that_never_passes_cannot_be_left_out_of_a_verdict():
    passes = {("differential", 6): None}
    found, words = _comparison(
        CompareSettings(seeds=list(range(7))),
        runs(7, passes=lambda arm, seed: passes.get((arm, seed), 100 - 10 * (arm == "differential") + seed)),
        guess_rate=0.125,
    )
    assert found[2]["differences"]["differential"]["seeds"] == 6
    assert words["verdicts"]["steps to 50 % accuracy"]["differential"] == "inconclusive"
    assert words["verdicts"]["held-out loss"]["differential"] == "reproduced"


def test_metric_without_any_value_is_left_out():
    found, words = _comparison(CompareSettings(seeds=[0]), runs(1, passes=lambda arm, seed: None), guess_rate=0.125)
    assert "steps to 50 % accuracy" not in words["verdicts"]
    assert len(found) == 2


@pytest.mark.parametrize(
    ("accuracies", "expected"),
    [([0.1, 0.5, 0.6, 0.2], 20), ([0.5, 0.5], None), ([], None), ([None, 0.9], 10), ([math.nan, 0.4], None)],
)
def test_first_passing_is_strictly_above_the_threshold(accuracies, expected):
    curve = [{"step": 10 * index, "accuracy": value} for index, value in enumerate(accuracies)]
    assert first_passing([*curve, {"step": 99}], 0.5) == expected
