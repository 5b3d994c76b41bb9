"""Sentences and verdicts follow from numbers alone."""

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from antiphase.config import CompareSettings, load_preset
from antiphase.outcomes import NOT_SEEN, LearnedThreshold
from antiphase.records import finite
from antiphase.studies.compare import ComparedRun
from antiphase.studies.compare.comparison import claims_of, compared, verdict_words
from antiphase.studies.registered_claims import Registration
from antiphase.studies.runs import CurvePoint, RunResult
from antiphase.studies.verdicts import InFamily, Metric, compare_metric, in_family, learned_verdict, verdict
from antiphase.typed import build
from antiphase.uncertainty.seeds import Sample

ACCURACY = Metric("first-query accuracy", "points", lower_is_better=False, digits=1, is_share=True)
LOSS = Metric("held-out loss", "nats per token", lower_is_better=True, digits=4)
STEPS = Metric("steps to 50 % accuracy", "steps", lower_is_better=True, digits=0)


def sentence(metric, softmax, differential):
    return compare_metric(metric, {"softmax": softmax, "differential": differential}, "softmax").sentence


def test_higher_accuracy_is_ahead_and_the_interval_is_of_paired_differences():
    # differences 0.1, 0.2, 0.3: mean 0.2, standard error 0.1/√3, Student's factor 4.3027 at two degrees of freedom
    assert sentence(ACCURACY, [0.5, 0.4, 0.3], [0.6, 0.6, 0.6]) == (
        "First-query accuracy: differential is ahead of softmax by 20.0 points in these 3 seeds (paired difference "
        "differential minus softmax: 95 % interval over seeds -4.8 to 44.8, which includes 0)."
    )


def test_lower_loss_is_ahead():
    assert sentence(LOSS, [2.0, 2.1], [2.5, 2.6]) == (
        "Held-out loss: softmax is ahead of differential by 0.5000 nats per token in these 2 seeds (paired difference "
        "differential minus softmax: 95 % interval over seeds 0.5000 to 0.5000, which excludes 0)."
    )
    assert "differential is ahead of softmax by 0.5000" in sentence(LOSS, [2.5, 2.6], [2.0, 2.1])


def test_one_seed_has_no_interval():
    assert sentence(LOSS, [2.0], [1.0]) == (
        "Held-out loss: differential is ahead of softmax by 1.0000 nats per token in this seed; one seed has no "
        "interval."
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


def test_a_missing_common_seed_is_reported():
    entry = compare_metric(STEPS, {"softmax": [None, 5.0], "differential": [3.0, None]}, "softmax")
    assert "differential in 1 of 2 seeds and softmax in 1 of 2 seeds" in entry.sentence
    assert finite(entry.differences["differential"]) == {"mean": None, "interval": None, "seeds": 0, "values": []}
    assert entry.arms["softmax"].median == 5.0


def test_an_unknown_metric_has_no_entry():
    assert compare_metric(STEPS, {"softmax": [None], "differential": [None]}, "softmax") is None
    assert compare_metric(STEPS, {"differential": [1.0]}, "softmax") is None


def test_every_arm_is_compared_with_the_baseline():
    entry = compare_metric(LOSS, {"a": [1.0, 2.0], "base": [2.0, 3.0], "c": [4.0, 5.0]}, "base")
    assert {arm: found.mean for arm, found in entry.differences.items()} == {"a": -1.0, "c": 2.0}
    assert entry.sentence.count("Held-out loss: ") == 2
    assert vars(entry.arms["c"]) == {
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
    given = {"lower_is_better": lower, "mean": mean, "floor": floor}
    assert verdict(differences, own_scale=True, **given) == expected
    assert verdict(differences, **given) == {"contradicted": NOT_SEEN}.get(expected, expected)


@given(st.lists(st.floats(-100, 100), min_size=5, max_size=9))
def test_turning_the_sign_turns_the_verdict(differences):
    words = {"reproduced": "contradicted", "contradicted": "reproduced"}
    given = {"mean": 1.0, "own_scale": True}
    one = verdict(differences, lower_is_better=False, **given)
    assert verdict(differences, lower_is_better=True, **given) == words.get(one, one)
    assert verdict([-value for value in differences], lower_is_better=False, **given) == words.get(one, one)


def test_few_seeds_give_no_verdict():
    assert verdict_words(1, {}, {}).startswith("One seed is no verdict: a claim rests on at least 5 paired seeds.")
    assert verdict_words(4, {}, {}).startswith("4 seeds are no verdict")
    rows = {"loss": {"differential": InFamily(0.02, 0.06, "inconclusive")}}
    assert verdict_words(5, {"loss": {"differential": "reproduced"}}, rows) == (
        "Verdicts on the claim that the arm beats the baseline. "
        "loss, differential: reproduced (p = 0.02; by Holm 0.06: inconclusive)."
    )


def test_holm_counts_what_was_tested_and_takes_back_what_does_not_hold():
    words = [
        ("reproduced", 0.02),
        ("inconclusive", 0.5),
        ("not testable", None),
        (NOT_SEEN, 0.001),
        ("inconclusive", 0.9),
    ]
    found = in_family(words)
    assert [row.p_holm for row in found] == [pytest.approx(0.06), 1.0, None, pytest.approx(0.004), 1.0]
    assert [row.verdict_holm for row in found] == [
        "inconclusive", "inconclusive", "not testable", NOT_SEEN, "inconclusive",
    ]  # fmt: skip


# ------------------------------------------------------------------------------------------ learned or not

SPLIT = {"softmax": [0.94, 0.98, 0.96], "differential": [0.98, 0.10, 0.97]}
LINE = LearnedThreshold.of(0.125, 0.5)


def test_models_that_learned_or_did_not_have_counts_and_no_interval():
    entry = compare_metric(ACCURACY, SPLIT, "softmax", threshold=LINE)
    assert entry.learned == {"softmax": [3, 3], "differential": [2, 3]}
    assert (entry.differences["differential"].mean, entry.differences["differential"].interval) == (
        None,
        None,
    )
    assert entry.sentence == (
        "First-query accuracy: models either learned (above 50 %) or did not; learned: softmax in 3 of 3 seeds, "
        "differential in 2 of 3 seeds."
    )
    assert compare_metric(ACCURACY, SPLIT, "softmax").learned is None  # without a line nothing is known of learning


def test_a_loss_that_follows_who_learned_is_not_averaged_and_another_is():
    losses = {"softmax": [0.25, 0.24, 0.31], "differential": [0.26, 1.69, 0.32]}
    entry = compare_metric(LOSS, losses, "softmax", threshold=LINE, accuracies=SPLIT)
    assert entry.differences["differential"].interval is None
    assert entry.sentence.startswith("Held-out loss: depends on who learned")
    text = {"softmax": [3.5, 3.4, 3.5], "differential": [3.6, 3.55, 3.62]}
    assert compare_metric(LOSS, text, "softmax", threshold=LINE, accuracies=SPLIT).learned is None


def test_an_arm_of_one_kind_keeps_its_interval_beside_one_that_is_split():
    three = SPLIT | {"other": [0.90, 0.91, 0.93]}
    entry = compare_metric(ACCURACY, three, "softmax", threshold=LINE)
    assert entry.differences["other"].interval is not None
    assert entry.differences["differential"].interval is None


@pytest.mark.parametrize(
    ("learned", "word"),
    [((10, 4), "reproduced"), ((10, 5), "inconclusive"), ((4, 10), "contradicted"), ((9, 9), "inconclusive")],
)
def test_counts_are_judged_by_mcnemars_test(learned, word):
    values = {
        arm: [0.9] * count + [0.1] * (10 - count)
        for arm, count in zip(("differential", "softmax"), learned, strict=True)
    }
    found, p = learned_verdict(values, "differential", "softmax", LINE, own_scale=True)
    alone = abs(learned[0] - learned[1])
    assert (found, p) == (word, pytest.approx(min(1.0, 2 * 0.5**alone)))


def test_the_sample_widens_an_interval_and_the_sentence_says_so():
    values = {"softmax": [0.50, 0.51, 0.52], "differential": [0.56, 0.57, 0.58]}
    samples = {arm: Sample.of_counts(shares, 100, shared=True) for arm, shares in values.items()}
    entry = compare_metric(ACCURACY, values, "softmax", samples=samples)
    low, high = entry.differences["differential"].interval
    assert (low, high) == pytest.approx((0.06 - 1.96 * 0.07, 0.06 + 1.96 * 0.07), abs=0.01)
    assert "95 % interval over seeds and test sample -8.0 to 20.0" in entry.sentence
    assert entry.differences["differential"].interval_is.sample.startswith("counts, one sample for all seeds")


# ------------------------------------------------------------------------------------------ finished runs


def runs(seeds, *, passes):
    """Results of both arms in which the differential one is better in everything."""
    return [
        build(
            ComparedRun,
            {
                "arm": arm,
                "seed": seed,
                "final": {"accuracy": 0.5 + 0.2 * ahead + 0.001 * seed, "loss": 2.0 - 0.2 * ahead + 0.001 * seed**2},
                "passes": passes(arm, seed),
                "curve": [{"step": 200}],
                "by_sequence": [2.0 - 0.2 * ahead + 0.01 * place for place in range(-5, 6)],
            },
        )
        for seed in range(seeds)
        for arm, ahead in (("softmax", 0), ("differential", 1))
    ]


def found_of(seeds, *, passes, claims=None):
    settings = CompareSettings(seeds=list(range(seeds)))
    names = [claim["name"] for claim in claims_of(replace(load_preset("demo"), compare=settings))]
    registered = Registration("0", "then", names[0], names if claims is None else claims)
    return finite(compared(
        settings, runs(seeds, passes=passes), guess_rate=0.125, curve_samples=1000,
        registered=None if claims == [] else registered,
    ))  # fmt: skip


def quick(arm, seed):
    return 100 - 10 * (arm == "differential") + seed


def test_comparison_gives_a_verdict_for_every_metric():
    found = found_of(5, passes=quick)
    metrics = ["first-query accuracy", "held-out loss", "steps to 50 % accuracy"]
    assert [entry["metric"] for entry in found["comparison"]] == metrics
    assert {metric: arms["differential"] for metric, arms in found["verdicts"].items()} == dict.fromkeys(
        metrics, "reproduced"
    )
    accuracy, loss, steps = (entry["differences"]["differential"]["interval_is"] for entry in found["comparison"])
    assert accuracy["sample"] == "counts, one sample for all seeds of 1000"
    assert loss["sample"] == "per sample, one sample for all seeds of 11"
    assert (steps["covers"], steps["sample"]) == ("seeds", None)
    assert found["comparison"][2]["survival"]["softmax"] == {"passed": 5, "seeds": 5, "median": 102, "until": 200}
    assert found["comparison"][2]["log_rank_p"]["differential"] < 0.05
    assert found["holm"]["held-out loss"]["differential"]["p_holm"] < 0.05


def test_only_what_was_written_down_before_gets_a_verdict():
    found = found_of(5, passes=quick, claims=["held-out loss, differential"])
    assert {metric: arms["differential"] for metric, arms in found["verdicts"].items()} == {
        "first-query accuracy": "no verdict", "held-out loss": "reproduced", "steps to 50 % accuracy": "no verdict",
    }  # fmt: skip
    assert found["holm"]["first-query accuracy"]["differential"]["p"] is None
    nothing = found_of(5, passes=quick, claims=[])
    assert nothing["verdict"] == "No verdict: the claims were not written into the folder before the runs."


def test_seed_that_never_passes_cannot_be_left_out_of_a_verdict():
    passes = {("differential", 6): None}
    found = found_of(7, passes=lambda arm, seed: passes.get((arm, seed), quick(arm, seed)))
    assert found["comparison"][2]["differences"]["differential"]["seeds"] == 6
    assert found["comparison"][2]["differences"]["differential"]["interval"] is None
    assert found["comparison"][2]["survival"]["differential"]["passed"] == 6
    assert found["verdicts"]["steps to 50 % accuracy"]["differential"] == "inconclusive"
    assert found["verdicts"]["held-out loss"]["differential"] == "reproduced"


def test_a_run_that_diverged_before_its_first_evaluation_has_no_end():
    finished = runs(5, passes=quick)
    finished[0] = replace(finished[0], curve=[], passes=None)
    found = finite(compared(
        CompareSettings(seeds=list(range(5))), finished, guess_rate=0.125, curve_samples=1000, registered=None
    ))  # fmt: skip
    assert found["comparison"][2]["survival"]["softmax"] == {"passed": 4, "seeds": 5, "median": 103, "until": 200}


def test_metric_without_any_value_is_left_out():
    found = found_of(1, passes=lambda arm, seed: None)
    assert "steps to 50 % accuracy" not in found["verdicts"]
    assert len(found["comparison"]) == 2


def test_the_primary_measure_is_the_loss_on_text_and_the_accuracy_on_the_task():
    for data, first in ((["a.txt"], "held-out loss, differential"), ([], "first-query accuracy, differential")):
        claims = claims_of(load_preset("demo", data=data))
        assert (claims[0]["name"], len(claims)) == (first, 3)


@pytest.mark.parametrize(
    ("accuracies", "expected"),
    [([0.1, 0.5, 0.6, 0.2], 20), ([0.5, 0.5], None), ([], None), ([None, 0.9], 10), ([math.nan, 0.4], None)],
)
def test_first_passing_is_strictly_above_the_threshold(accuracies, expected):
    curve = [CurvePoint(step=10 * index, accuracy=value) for index, value in enumerate(accuracies)]
    assert RunResult(curve=[*curve, CurvePoint(step=99)]).first_passing(0.5) == expected
