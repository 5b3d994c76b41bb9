"""Sentences and verdicts follow from numbers alone."""

import math
from dataclasses import replace
from types import SimpleNamespace

import pytest

from antiphase.base.records import finite
from antiphase.base.typed import build
from antiphase.lab.settings.presets import CompareSettings, load_preset
from antiphase.lab.statistics.blocks import planned_detectable
from antiphase.lab.studies.claims import LOSS_SPREAD
from antiphase.lab.studies.compare import ComparedRun, tables
from antiphase.lab.studies.compare.comparison import claim_of, compared
from antiphase.lab.studies.metrics import NATS, Metric, compare_metric, compare_passing
from antiphase.lab.studies.outcomes import LearnedThreshold
from antiphase.lab.studies.runs import CurvePoint, RunResult

ACCURACY = Metric("first-query accuracy", "points", lower_is_better=False, digits=1, is_share=True)
LOSS = Metric("held-out loss", NATS, lower_is_better=True, digits=4)
STEPS = Metric("steps to 50 % accuracy", "steps", lower_is_better=True, digits=0)


def sentence(metric, softmax, differential):
    return compare_metric(metric, {"softmax": softmax, "differential": differential}, "softmax").sentence


def test_higher_accuracy_is_ahead_and_the_interval_is_of_paired_differences():
    # differences 0.1, 0.2, 0.3: mean 0.2, standard error 0.1/√3, Student's factor 4.3027 at two degrees of freedom
    assert sentence(ACCURACY, [0.5, 0.4, 0.3], [0.6, 0.6, 0.6]) == (
        "First-query accuracy: differential is ahead of softmax by 20.0 points in these 3 seeds (paired difference "
        "differential minus softmax: 95 % interval over seeds -4.8 to 44.8, which includes 0; MDE 32.6)."
    )


def test_lower_loss_is_ahead():
    assert sentence(LOSS, [2.0, 2.1], [2.5, 2.6]) == (
        "Held-out loss: softmax is ahead of differential by 0.5000 nats a token in these 2 seeds (paired difference "
        "differential minus softmax: 95 % interval over seeds 0.5000 to 0.5000, which excludes 0; MDE 0.0000)."
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


def test_no_difference_is_said_inside_the_margin_alone():
    base = [2.0, 2.1, 2.3, 2.2]
    assert "no difference beyond ±0.015; MDE" in sentence(LOSS, base, [value + 0.001 for value in base])
    wide = sentence(LOSS, base, [value + off for value, off in zip(base, (0.02, -0.02, 0.01, -0.01), strict=True)])
    assert "which includes 0; MDE" in wide


def test_an_arm_that_failed_in_more_seeds_is_never_called_ahead():
    """Of the seeds that both passed, the failing arm may be the better one: that is no lead."""
    text = sentence(LOSS, [None, None, 0.9], [0.5, 0.5, 0.95])
    assert text.startswith("Held-out loss: differential in 3 of 3 seeds and softmax in 1 of 3 seeds;")
    assert "is ahead of" not in text


def test_a_missing_common_seed_is_reported():
    entry = compare_metric(LOSS, {"softmax": [None, 5.0], "differential": [3.0, None]}, "softmax")
    assert "differential in 1 of 2 seeds and softmax in 1 of 2 seeds" in entry.sentence
    assert finite(entry.differences["differential"]) == {"mean": None, "interval": None, "seeds": 0, "values": []}
    assert entry.arms["softmax"].median == 5.0


def test_steps_are_compared_by_hazards_and_a_seed_that_never_passed_is_the_latest():
    entry = compare_passing(STEPS, {"softmax": [None, None, 900], "differential": [500, 500, 950]}, "softmax", 1000)
    assert entry.differences == {}
    assert (entry.survival["softmax"].median, entry.survival["differential"].median) == (None, 500)
    assert entry.hazard_ratios["differential"].ratio > 1
    assert entry.sentence.startswith(
        "Steps to 50 % accuracy, median: differential 500 (3 of 3 seeds) and softmax never (1 of 3 seeds); hazard ratio"
    )
    assert compare_passing(STEPS, {"softmax": [None], "differential": [None]}, "softmax", 1000) is None


def test_residuals_are_pooled_over_all_arms_also_for_some_of_them():
    values = {"a": [1.0, 1.3, 0.8], "b": [2.0, 2.1, 2.2], "c": [3.0, 3.5, 2.7]}
    whole = compare_metric(LOSS, values, "a")
    some = compare_metric(LOSS, values, "a", others=["b"])
    assert whole.is_pooled
    assert some.arms.keys() == {"a", "b"}
    assert some.differences["b"] == whole.differences["b"]
    alone = compare_metric(LOSS, {arm: values[arm] for arm in "ab"}, "a")
    assert alone.differences["b"].interval != whole.differences["b"].interval


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


# ------------------------------------------------------------------------------------------ learned or not

SPLIT = {"softmax": [0.94, 0.98, 0.96], "differential": [0.98, 0.10, 0.97]}
LINE = LearnedThreshold.of(0.125, 0.5)


def test_models_that_learned_or_did_not_have_counts_and_no_interval():
    entry = compare_metric(ACCURACY, SPLIT, "softmax", threshold=LINE)
    assert entry.learned == {"softmax": [3, 3], "differential": [2, 3]}
    assert (entry.differences["differential"].mean, entry.differences["differential"].interval) == (None, None)
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
            },
        )
        for seed in range(seeds)
        for arm, ahead in (("softmax", 0), ("differential", 1))
    ]


def found_of(seeds, *, passes, data=("a.txt",), registered=True):
    settings = CompareSettings(seeds=list(range(seeds)))
    claim = claim_of(replace(load_preset("demo", data=data), compare=settings))
    return finite(compared(
        settings, runs(seeds, passes=passes), guess_rate=0.125, claim=claim if registered else None
    ))  # fmt: skip


def quick(arm, seed):
    return 100 - 10 * (arm == "differential") + seed


def test_comparison_has_every_metric_and_a_word_on_the_primary_contrast():
    found = found_of(5, passes=quick)
    metrics = ["first-query accuracy", "held-out loss", "steps to 50 % accuracy"]
    assert [entry["metric"] for entry in found["comparison"]] == metrics
    _, loss, steps = found["comparison"]
    assert loss["differences"]["differential"]["seeds"] == 5
    assert steps["survival"]["softmax"] == {
        "passed": 5, "seeds": 5, "median": 102, "median_interval": [None, None], "until": 200,
    }  # fmt: skip
    assert steps["hazard_ratios"]["differential"]["p"] < 0.05
    assert found["verdict"] == (
        "Primary contrast, held-out loss: differential - softmax: -0.2000 nats a token (95 % -0.2000 to -0.2000), "
        "n = 5 seeds, MDE 0.0000, the paper -0.0250 (1.4B): agrees."
    )


def test_the_primary_contrast_of_the_task_is_how_soon_it_is_learned():
    found = found_of(5, passes=quick, data=())
    assert found["verdict"].startswith("Primary contrast, steps to 50 % accuracy: differential - softmax: hazard ratio")
    assert found["verdict"].endswith("n = 5 seeds, MDE 5.88: agrees.")
    assert "cannot tell" in found_of(2, passes=lambda arm, seed: None, data=())["verdict"]


def test_only_what_was_written_down_before_gets_a_word():
    found = found_of(5, passes=quick, registered=False)
    assert found["verdict"] == "No verdict: the primary contrast was not written into the folder before the runs."


def test_one_seed_cannot_tell():
    assert found_of(1, passes=quick)["verdict"].endswith("n = 1 seeds: cannot tell (there is no interval).")


def test_a_run_that_diverged_before_its_first_evaluation_has_no_end():
    finished = runs(5, passes=quick)
    finished[0] = replace(finished[0], curve=[], passes=None)
    found = finite(compared(CompareSettings(seeds=list(range(5))), finished, guess_rate=0.125, claim=None))
    softmax = found["comparison"][2]["survival"]["softmax"]
    assert (softmax["passed"], softmax["median"], softmax["until"]) == (4, 103, 200)


def test_medians_on_the_page_are_those_of_the_sentences_and_of_seeds_with_a_value():
    steps = {"softmax": (100, 200, 400, None), "differential": (100, None, None, None)}
    finished = runs(4, passes=lambda arm, seed: steps[arm][seed])
    finished[0] = replace(finished[0], final=replace(finished[0].final, accuracy=None, loss=None))
    found = compared(CompareSettings(seeds=list(range(4))), finished, guess_rate=0.125, claim=None)
    page = tables.comparison(SimpleNamespace(comparison=found.comparison, baseline="softmax"))
    middle = {(row[0], row[3]): row[5:7] for row in page.text()}
    assert middle["first-query accuracy", "softmax"] == ["50.2", "–"]
    assert middle["held-out loss", "softmax"] == ["2.004", "–"]
    assert middle["steps to 50 % accuracy", "softmax"] == ["200", "–"]
    assert middle["steps to 50 % accuracy", "differential"] == ["–", "–"]
    assert "softmax 200 (3 of 4 seeds)" in found.comparison[2].sentence


def test_metric_without_any_value_is_left_out():
    assert len(found_of(1, passes=lambda arm, seed: None)["comparison"]) == 2


def test_a_claim_has_the_mde_that_its_seeds_and_arms_give():
    claim = claim_of(load_preset("demo", ["compare.seeds=[0,1,2,3]"], data=["a.txt"]))
    assert (claim.contrast, claim.n, claim.spread) == ("held-out loss: differential - softmax", 4, LOSS_SPREAD)
    assert claim.detectable == planned_detectable(LOSS_SPREAD, arms=2, blocks=4)
    assert claim_of(load_preset("demo", ["compare.seeds=[0]"], data=["a.txt"])).detectable is None


@pytest.mark.parametrize(
    ("accuracies", "expected"),
    [([0.1, 0.5, 0.6, 0.2], 20), ([0.5, 0.5], None), ([], None), ([None, 0.9], 10), ([math.nan, 0.4], None)],
)
def test_first_passing_is_strictly_above_the_threshold(accuracies, expected):
    curve = [CurvePoint(step=10 * index, accuracy=value) for index, value in enumerate(accuracies)]
    assert RunResult(curve=[*curve, CurvePoint(step=99)]).first_passing(0.5) == expected
