"""Claims against records of systems without the ability: none of them may be called reproduced."""

from __future__ import annotations

import numpy
import pytest

from antiphase.records import Record
from antiphase.studies.claims import CLAIMS, Floor, judge

ARMS = ("softmax", "differential")
SEEDS = range(5)


def judged(name, part, records, *, diverged=(), **further):
    claim = next(claim for claim in CLAIMS if claim.name.startswith(name))
    assert claim.part == part
    return judge(claim, {part: records, **further}, {}, diverged=diverged)


def of_models(kind, values):
    """Records of single models; ``values(arm, seed)`` are a model's."""
    return [Record(kind=kind, values={"arm": arm, "seed": seed, **values(arm, seed)}) for seed in SEEDS for arm in ARMS]


# ------------------------------------------------------------------------------------------ orders of examples


def in_orders(means, margins):
    """Many-shot records by arm: mean accuracy over orders, and best minus worst."""
    return of_models("evaluate-many-shot", lambda arm, seed: {"tasks": {"t": {
        "majority_rate": 0.3, "samples": 100,
        "orders": {"random": {"mean_accuracy": means[ARMS.index(arm)],
                              "margin": margins[ARMS.index(arm)] + 0.001 * seed}},
    }}})  # fmt: skip


@pytest.mark.parametrize(
    ("means", "margins", "word", "reason"),
    [
        ((0.6, 0.7), (0.2, 0.1), "reproduced", ""),
        ((0.7, 0.6), (0.1, 0.2), "contradicted", ""),
        # who is right less often may answer alike in every order for that
        ((0.8, 0.45), (0.2, 0.05), "not testable",
         "the differential models are right less often (softmax 80 %, differential 45 %)"),
        ((0.6, 0.7), (0.1, 0.2), "not testable",
         "the softmax models are right less often (softmax 60 %, differential 70 %)"),
        # who always names one label has no spread
        ((0.6, 0.3), (0.2, 0.0), "not testable", "not shown to beat a guess: differential in 5 of 5 seeds"),
        ((0.31, 0.7), (0.2, 0.1), "not testable", "not shown to beat a guess: softmax in 5 of 5 seeds"),
        ((0.37, 0.7), (0.2, 0.1), "not testable", "not shown to beat a guess: softmax in 5 of 5 seeds"),  # by chance
        ((1.0, 1.0), (0.0, 0.0), "not testable", "the softmax models are on the ceiling"),
        ((0.6, 0.7), (0.0, 0.1), "not testable", "the order changes nothing for the softmax models"),
    ],
)  # fmt: skip
def test_a_spread_counts_only_above_the_majority_rate(means, margins, word, reason):
    row = judged("In-context learning: less spread", "many-shot", in_orders(means, margins))
    assert (row["verdict"], row["reason"]) == (word, reason)


def test_one_seed_that_always_names_one_label_is_enough_to_say_nothing_about_orders():
    records = in_orders((0.6, 0.7), (0.2, 0.1))
    records[3].values["tasks"]["t"]["orders"]["random"] |= {"mean_accuracy": 0.3, "margin": 0.0}
    row = judged("In-context learning: less spread", "many-shot", records)
    assert row["verdict"] == "not testable"
    assert row["reason"] == "not shown to beat a guess: differential in 1 of 5 seeds"
    assert row["differential"] == pytest.approx((4 * 0.1 + 0.01 - 0.001) / 5)  # measured, and shown


# ------------------------------------------------------------------------------------------ several needles


def needles(found, *, failing=()):
    """Records of two cells with the needle anywhere, two and four needles.

    ``found`` is the accuracy by arm, or by arm and number of needles; ``failing`` pairs of arm and seed only guess.
    """

    def accuracy(arm, seed, count):
        own = found[ARMS.index(arm)]
        return 1 / count if (arm, seed) in failing else own[count] if isinstance(own, dict) else own

    return [
        Record(kind="evaluate-needles", values={"guess_rate": 1 / 2, "summary": [
            {"arm": f"{arm}-seed{seed}", "trained": trained, "depth": depth, "guess_rate": 1 / count,
             "needles": count, "queries": 1, "length": 96, "samples": 100,
             "accuracy": min(1.0, accuracy(arm, seed, count) + 0.001 * seed * (arm == "softmax"))
             if trained and depth is None else 1}
            for arm in ARMS for count in (2, 4) for trained in (True, False) for depth in (None, 0.0)
        ]})
        for seed in SEEDS
    ]  # fmt: skip


def test_the_floor_of_needles_is_what_a_guess_scores_in_the_same_cells():
    """Mean of 1/2 and 1/4, not the guess of the first cell."""
    row = judged("Key information", "needles", needles((0.7, 0.8)))
    assert row["floor"] == pytest.approx(0.375)
    assert row["verdict"] == "reproduced"
    assert judged("Key information", "needles", needles(({2: 0.5, 4: 0.25}, 0.6)))["verdict"] == "not testable"


def test_cells_where_the_baseline_is_on_floor_or_ceiling_tell_nothing():
    row = judged("Key information", "needles", needles(({2: 1.0, 4: 0.6}, {2: 0.9, 4: 0.8})))
    assert (row["softmax"], row["differential"]) == (pytest.approx(0.602), pytest.approx(0.8))
    assert (row["floor"], row["verdict"]) == (0.25, "reproduced")
    assert row["measured"].endswith("off floor and ceiling: N = 4, not 2")
    row = judged("Key information", "needles", needles(({2: 1.0, 4: 0.25}, {2: 1.0, 4: 0.9})))
    assert (row["verdict"], row["reason"]) == ("not testable", "the softmax models are on the floor or the ceiling")
    assert row["measured"].endswith("off floor and ceiling: no cell")


def test_who_exceeds_a_floor_does_so_by_more_than_chance_and_by_more_than_a_hair():
    """Guessing systems of a hundred answers pass seldom; with many answers a hair is not enough."""
    generator = numpy.random.default_rng(0)
    for guess in (0.25, 0.5):
        floor = Floor(guess, 100)
        passed = [floor.exceeded_by(right / 100) for right in generator.binomial(100, guess, 2000)]
        assert 0.005 < sum(passed) / 2000 < 0.05
    assert Floor(0.25, 100).exceeded_by(0.35)
    assert not Floor(0.25, 10**6).exceeded_by(0.26)
    assert Floor(0.25, 10**6).exceeded_by(0.28)


def test_seeds_that_only_guess_are_told():
    row = judged("Key information", "needles", needles((0.7, 0.9), failing=[("differential", 2)]))
    assert row["verdict"] == "inconclusive"
    assert row["reason"].endswith("not shown to beat a guess: differential in 1 of 5 seeds")


def allocation(shares):
    """Shares of the answer and of other needles by arm, over four needles."""
    return [
        Record(kind="evaluate-allocation", values={"rows": [
            {"arm": f"{arm}-seed{seed}", "trained": trained, "depth": depth, "layer": "all", "needles": 4,
             "map": "softmax" if arm == "softmax" else map_,
             "spans": {"answer": {"share": share + 0.001 * seed * (arm == "softmax") if depth is None else 0.9},
                       "other_needles": {"share": 0.5 - share}, "filler": {"share": 0.1}}}
            for arm, share in zip(ARMS, shares, strict=True) for trained in (False, True) for depth in (None, 0.5)
            for map_ in ("difference", "first")
        ]})
        for seed in SEEDS
    ]  # fmt: skip


@pytest.mark.parametrize("name", ["Attention allocation: more", "Attention allocation: less"])
def test_where_an_arm_looks_counts_only_if_it_finds_something_with_every_seed(name):
    records = allocation((0.1, 0.3))
    assert judged(name, "allocation", records, needles=needles((0.8, 0.9)))["verdict"] == "reproduced"
    for accuracies, failing, blind, count in (
        ((0.8, 0.25), [], "differential", 5), (({2: 0.9, 4: 0.25}, 0.8), [], "softmax", 4),
        ((0.8, 0.9), [("softmax", 3)], "softmax", 1), ((0.8, 0.9), [("differential", 0)], "differential", 1),
    ):  # fmt: skip
        row = judged(name, "allocation", records, needles=needles(accuracies, failing=failing))
        assert row["verdict"] == "not testable"
        assert row["differential"] is not None  # measured, and shown
        assert row["reason"].startswith(f"not shown to beat a guess: {blind} in ")
        assert count <= int(row["reason"].split(" in ")[1][0]) <= 5
    assert "it needs the part needles" in judged(name, "allocation", records)["reason"]


@pytest.mark.parametrize("name", ["Attention allocation: more", "Attention allocation: less"])
def test_who_finds_the_answer_less_often_may_look_at_less_noise(name):
    row = judged(name, "allocation", allocation((0.1, 0.3)), needles=needles((0.95, {2: 0.8, 4: 0.5})))
    assert row["verdict"] == "not testable"
    assert row["reason"] == "the differential models are right less often (softmax 95 %, differential 50 %)"


@pytest.mark.parametrize("part", ["outliers", "compare"])
def test_seeds_left_after_a_model_diverged_are_no_fair_sample(part):
    name, records = ("Outliers: smaller largest hidden", of_models("outliers", sizes))
    if part == "compare":
        name, records = "Language modelling", compared((3.0, 2.9))
    assert judged(name, part, records)["verdict"] == "reproduced"
    row = judged(name, part, records, diverged=[7, 9])
    assert (row["verdict"], row["reason"]) == ("inconclusive", "a model diverged in 2 paired seeds")
    nothing = judged(name, part, [], diverged=[7, 9])
    assert (nothing["verdict"], nothing["reason"]) == ("not testable", "a model diverged in 2 paired seeds")


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
             "constant_rate": commonest, "samples": 100,
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


def compared(losses, *, failing=(), accuracies=(0.9, 0.9)):
    """A comparison with these held-out losses and accuracies by arm; ``failing`` pairs of arm and seed only guess."""
    metrics = [("held-out loss", losses, 0.001), ("first-query accuracy", accuracies, 0.0)]
    config = {"run": {"evaluation": {"curve_samples": 100}}}
    return [Record(kind="compare", config=config, values={"guess_rate": 0.25, "comparison": [
        {"metric": metric, "arms": {arm: {"values": [
            0.25 if step == 0 and (arm, seed) in failing else value and value + step * seed * (arm == "softmax")
            for seed in SEEDS
        ]} for arm, value in zip(ARMS, values, strict=True)}}
        for metric, values, step in metrics
    ]})]  # fmt: skip


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
    def row(**changes):
        return judged(name, part, of_models(part, values), compare=compared(**{"losses": (3.0, 2.9), **changes}))

    assert row()["verdict"] == "reproduced"
    assert row(losses=(3.002, 3.002))["verdict"] == "reproduced"  # level
    assert row(failing=[("softmax", 1)])["verdict"] == "reproduced"
    for changes, reason in (
        ({"losses": (3.0, 8.0)}, "the differential models have a higher loss"),
        ({"losses": (3.0, 3.03)}, "the differential models have a higher loss"),  # not much, but on average
        ({"losses": (3.0, None)}, "some seeds have no loss"),
        ({"accuracies": (0.9, 0.25)}, "the differential models do not retrieve in 5 of 5 seeds"),
        ({"failing": [("differential", 4)]}, "the differential models do not retrieve in 1 of 5 seeds"),
    ):
        assert row(**changes)["verdict"] == "not testable"
        assert row(**changes)["reason"].startswith(reason)


@pytest.mark.parametrize("higher", [(0.3, 0.3, 0.3, 0.0, 1.5), (-0.1, -0.1, -0.1, -0.1, 0.3)])
def test_failures_of_unequal_size_are_failures(higher):
    """The interval of such losses includes 0, or they are lower on average."""
    found = compared((3.0, 3.0))
    series = found[0].values["comparison"][0]["arms"]
    series["differential"]["values"] = [3.0 + more for more in higher]
    series["softmax"]["values"] = [3.0] * 5
    row = judged("Outliers: smaller largest attention", "outliers", of_models("outliers", sizes), compare=found)
    assert (row["verdict"], row["reason"][:42]) == ("not testable", "the differential models have a higher loss"[:42])


def test_a_claim_is_contradicted_only_by_a_baseline_that_has_learned_as_much():
    records = of_models("outliers", lambda arm, seed: sizes(ARMS[1 - ARMS.index(arm)], seed))
    name = "Outliers: smaller largest attention"
    assert judged(name, "outliers", records, compare=compared((3.0, 3.002)))["verdict"] == "contradicted"
    row = judged(name, "outliers", records, compare=compared((6.0, 3.0)))
    assert (row["verdict"], row["reason"][:42]) == ("not testable", "the softmax models have a higher loss, and")


@pytest.mark.parametrize("cost", [0.0, 1e-5, -0.2])
def test_bits_that_cost_nothing_cannot_cost_less(cost):
    records = of_models("quantization", lambda arm, seed: {"rows": [
        {"bits": None, "loss": 3.0}, {"bits": 4, "loss": 3.0 + (cost if arm == "softmax" else -1.0)}
    ]})  # fmt: skip
    row = judged("Quantization", "quantization", records, compare=compared((3.0, 2.9)))
    assert (row["verdict"], row["reason"]) == ("not testable", "4 bits cost the softmax models nothing")


# ------------------------------------------------------------------------------------------ long context


def ends(gains):
    """Losses of the last eighth, the differential arm's lower, and the lower end of what the text before gains."""
    return of_models("long-context", lambda arm, seed: {"tail": {
        "loss": 3.0 - (0.2 + 0.001 * seed) * (arm == "differential"),
        "gain_interval": [gains[ARMS.index(arm)], 1.0],
    }})  # fmt: skip


def test_a_lower_loss_at_the_end_counts_where_the_text_before_lowers_it():
    assert judged("Long context", "long-context", ends((0.01, 0.01)))["verdict"] == "reproduced"
    row = judged("Long context", "long-context", ends((0.01, -0.01)))
    assert row["reason"] == "nothing gained from the text before: differential in 5 of 5 seeds"


def test_one_seed_is_told_as_one():
    records = [record for record in of_models("outliers", sizes) if record.values["seed"] == 0]
    assert judged("Outliers: smaller largest attention", "outliers", records)["reason"] == (
        "1 paired seed, five are needed"
    )


def test_what_was_not_measured_is_not_judged():
    records = of_models("quantization", lambda arm, seed: {"rows": [{"bits": None, "loss": 3.0}]})
    assert judged("Quantization", "quantization", records)["verdict"] == "not testable"
    records = of_models(
        "many-shot",
        lambda arm, seed: {
            "tasks": {
                "t": {
                    "majority_rate": 0.3,
                    "samples": 100,
                    "orders": {},
                }
            }
        },
    )
    assert judged("In-context learning: less spread", "many-shot", records)["verdict"] == "not testable"
