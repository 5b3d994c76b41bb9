"""Claims against records of systems without the ability: none of them may be said to agree."""

from collections import Counter

import numpy
import pytest

from antiphase.base.records import Record
from antiphase.lab.measures.allocation.presentation import PAPER
from antiphase.lab.studies.reproduce.claims import CLAIMS
from antiphase.lab.studies.reproduce.readings import Floor
from support.claims import ARMS, SEEDS, judged, of_models

# ------------------------------------------------------------------------------------------ orders of examples


SHOTS = {"guess_rate": 0.25, "majority_rate": 0.3, "rows": [], "labels": 4}
ORDERS = {"shots": 8, "accuracies": [], "margin": 0.1, "flip_share": 0.1}


def in_orders(means, ratios, *, seeds=SEEDS, samples=400):
    """Many-shot records by arm: mean accuracy over orders, and flips over those of answers drawn at random."""
    return of_models("evaluate-many-shot", lambda arm, seed: {"tasks": {"t": {
        **SHOTS, "samples": samples, "orders": {"random": {
            **ORDERS, "mean_accuracy": (mean := means[ARMS.index(arm)]),
            "pair_flips": 2 * mean * (1 - mean) * (ratios[ARMS.index(arm)] + 0.001 * seed * (arm == "softmax")),
        }},
    }}}, seeds=seeds)  # fmt: skip


UNLIKE = "the models of a pair did not learn alike"


@pytest.mark.parametrize(
    ("means", "ratios", "word", "reason"),
    [
        ((0.6, 0.7), (0.2, 0.1), "agrees", ""),
        ((0.7, 0.6), (0.1, 0.2), "disagrees", ""),
        # who is right less often may answer alike in every order for that
        ((0.7, 0.61), (0.2, 0.05), "cannot tell",
         "the differential models are right less often (softmax 70 %, differential 61 %)"),
        ((0.6, 0.7), (0.1, 0.2), "cannot tell",
         "the softmax models are right less often (softmax 60 %, differential 70 %)"),
        ((0.8, 0.45), (0.2, 0.05), "cannot tell",
         f"{UNLIKE} (right less often by more than 10 points: differential in 5 of 5 seeds)"),
        ((0.45, 0.8), (0.2, 0.05), "cannot tell",  # whoever is behind
         f"{UNLIKE} (right less often by more than 10 points: softmax in 5 of 5 seeds)"),
        # who always names one label never flips
        ((0.4, 0.3), (0.2, 0.0), "cannot tell",
         f"{UNLIKE} (not shown to beat a guess: differential in 5 of 5 seeds)"),
        ((0.31, 0.4), (0.2, 0.1), "cannot tell",
         f"{UNLIKE} (not shown to beat a guess: softmax in 5 of 5 seeds)"),
        ((0.34, 0.4), (0.2, 0.1), "cannot tell",  # by chance
         f"{UNLIKE} (not shown to beat a guess: softmax in 5 of 5 seeds)"),
        ((1.0, 1.0), (0.0, 0.0), "cannot tell", "the models are on the ceiling"),
        ((0.6, 0.7), (0.0, 0.0), "cannot tell", "the order changes nothing"),
        ((0.65, 0.65), (0.0, 0.1), "disagrees", ""),  # one of them may be on its floor, whichever it is
        ((0.65, 0.65), (0.1, 0.0), "agrees", ""),
    ],
)  # fmt: skip
def test_flips_between_orders_count_at_equal_accuracy_above_the_majority_rate(means, ratios, word, reason):
    row = judged("In-context learning: less spread", "many-shot", in_orders(means, ratios))
    assert (row.verdict, row.reason) == (word, reason)


def test_flips_of_few_answers_decide_nothing():
    name = "In-context learning: less spread"
    row = judged(name, "many-shot", in_orders((0.6, 0.7), (0.2, 0.1), samples=199))
    assert (row.verdict, row.reason) == ("cannot tell", "199 rows were asked in every order, 200 are needed")


def test_a_seed_that_always_names_one_label_is_not_left_out():
    records = in_orders((0.6, 0.65), (0.2, 0.1), seeds=range(10))
    records[3].values["tasks"]["t"]["orders"]["random"] |= {"mean_accuracy": 0.3, "pair_flips": 0.0}
    row = judged("In-context learning: less spread", "many-shot", records)
    assert (row.verdict, row.pairs) == ("cannot tell", 10)
    assert row.reason == (
        f"{UNLIKE} (not shown to beat a guess: differential in 1 of 10 seeds; "
        "right less often by more than 10 points: differential in 1 of 10 seeds)"
    )
    assert row.differential == pytest.approx(9 * 0.1 / 10)  # measured, and shown


# ------------------------------------------------------------------------------------------ several needles


def needles(found, *, failing=(), seeds=SEEDS):
    """Records of two cells with the needle anywhere, two and four needles.

    ``found`` is the accuracy by arm, or by arm and number of needles; ``failing`` pairs of arm and seed only guess.
    """

    def accuracy(arm, seed, count):
        own = found[ARMS.index(arm)]
        return 1 / count if (arm, seed) in failing else own[count] if isinstance(own, dict) else own

    return [
        Record(kind="evaluate-needles", values={"guess_rate": 1 / 2, "cells": [], "summary": [
            {"arm": f"{arm}-seed{seed}", "trained": trained, "depth": depth, "guess_rate": 1 / count,
             "needles": count, "queries": 1, "length": 96, "samples": 100, "interval": [0, 1],
             "accuracy": min(1.0, accuracy(arm, seed, count) + 0.001 * seed * (arm == "softmax"))
             if trained and depth is None else 1}
            for arm in ARMS for count in (2, 4) for trained in (True, False) for depth in (None, 0.0)
        ]})
        for seed in seeds
    ]  # fmt: skip


def test_the_floor_of_needles_is_what_a_guess_scores_in_the_same_cells():
    """Mean of 1/2 and 1/4, not the guess of the first cell."""
    row = judged("Key information", "needles", needles((0.7, 0.8)))
    assert row.floor == pytest.approx(0.375)
    assert row.verdict == "agrees"
    guessing = {2: 0.5, 4: 0.25}
    assert judged("Key information", "needles", needles((guessing, guessing))).verdict == "cannot tell"
    for found, word in (((guessing, 0.6), "agrees"), ((0.6, guessing), "disagrees")):  # whichever guesses
        assert judged("Key information", "needles", needles(found)).verdict == word


def test_cells_where_both_arms_are_on_floor_or_ceiling_tell_nothing():
    row = judged("Key information", "needles", needles(({2: 1.0, 4: 0.6}, {2: 0.99, 4: 0.8})))
    assert (row.softmax, row.differential) == (pytest.approx(0.602), pytest.approx(0.8))
    assert (row.floor, row.verdict) == (0.25, "agrees")
    assert row.measured.endswith("off floor and ceiling: N = 4, not 2")
    row = judged("Key information", "needles", needles(({2: 1.0, 4: 0.25}, {2: 1.0, 4: 0.25})))
    assert (row.verdict, row.reason) == ("cannot tell", "the models are on the floor or the ceiling")
    assert row.measured.endswith("off floor and ceiling: no cell")


def test_a_floor_is_exceeded_by_more_than_chance_and_a_margin():
    """Guessing systems of a hundred answers pass seldom; with many answers a hair is not enough."""
    generator = numpy.random.default_rng(0)
    for guess in (0.25, 0.5):
        floor = Floor(guess, 100)
        drawn = Counter(generator.binomial(100, guess, 2000).tolist())
        passed = sum(times for right, times in drawn.items() if floor.exceeded_by(right / 100))
        assert 0.005 < passed / 2000 < 0.05
    assert Floor(0.25, 100).exceeded_by(0.35)
    assert not Floor(0.25, 10**6).exceeded_by(0.26)
    assert Floor(0.25, 10**6).exceeded_by(0.28)


@pytest.mark.parametrize("failing", [[2], range(6)])
def test_models_that_learned_or_did_not_are_counted_and_prove_nothing(failing):
    records = needles((0.7, 0.9), failing=[("differential", seed) for seed in failing], seeds=range(10))
    row = judged("Key information", "needles", records)
    assert (row.verdict, row.difference, row.interval) == ("cannot tell", None, None)
    assert row.learned == {"softmax": [10, 10], "differential": [10 - len(failing), 10]}
    assert row.reason == (
        "counts of models that learned show no difference: softmax in 10 of 10 seeds, differential in "
        f"{10 - len(failing)} of 10 seeds"
    )


@pytest.mark.parametrize(
    ("lead", "spread", "word", "reason"),
    [
        (0.1, 0.01, "agrees", ""),
        (-0.1, 0.01, "disagrees", ""),
        (0.0, 0.01, "disagrees", ""),  # the paper's smallest effect, 7 points, would have been seen
        (0.0, 0.1, "cannot tell", "MDE > the paper's effect"),
    ],
)
def test_the_word_stands_beside_the_papers_effect(lead, spread, word, reason):
    records = needles((0.6, 0.6))
    noise = spread * numpy.array([-1, 1, 0, 0.5, -0.5])
    for record, off in zip(records, noise, strict=True):
        for row in record.values["summary"]:
            if row["trained"] and row["depth"] is None and row["arm"].startswith("differential"):
                row["accuracy"] += lead + off
    row = judged("Key information", "needles", records)
    assert (row.verdict, row.reason, row.effect) == (word, reason, 0.07)
    assert (row.detectable > 0.07) is (spread == 0.1)


def allocation(shares):
    """Shares of the answer and of other needles by arm, over four needles."""
    return [
        Record(kind="evaluate-allocation", values={"rows": [
            {"arm": f"{arm}-seed{seed}", "trained": trained, "depth": depth, "layer": "all", "needles": 4,
             "map": "softmax" if arm == "softmax" else map_,
             "spans": {name: {"share": value, "signed": value} for name, value in (
                 ("answer", share + 0.001 * seed * (arm == "softmax") if depth is None else 0.9),
                 ("other_needles", 0.5 - share), ("filler", 0.1),
             )}}
            for arm, share in zip(ARMS, shares, strict=True) for trained in (False, True) for depth in (None, 0.5)
            for map_ in ("difference", "first")
        ]})
        for seed in SEEDS
    ]  # fmt: skip


@pytest.mark.parametrize("name", ["Attention allocation: more", "Attention allocation: less"])
def test_allocation_counts_only_in_pairs_of_equal_retrieval(name):
    records = allocation((0.1, 0.3))
    assert judged(name, "allocation", records, needles=needles((0.85, 0.9))).verdict == "agrees"
    for accuracies, failing, told in (
        ((0.3, 0.25), [], "not shown to beat a guess: softmax in 5 of 5 seeds, differential in 5 of 5 seeds"),
        ((0.85, 0.9), [("softmax", 3)], "softmax in 1 of 5"), ((0.85, 0.9), [("differential", 0)], "in 1 of 5 seeds"),
        (({2: 0.95, 4: 0.95}, {2: 0.8, 4: 0.5}), [], "right less often by more than 10 points: differential in 5 of 5"),
        (({2: 0.8, 4: 0.5}, {2: 0.95, 4: 0.95}), [], "right less often by more than 10 points: softmax in 5 of 5"),
    ):  # fmt: skip
        row = judged(name, "allocation", records, needles=needles(accuracies, failing=failing))
        assert row.verdict == "cannot tell"
        assert row.differential is not None  # measured, and shown
        assert told in row.reason
    assert "it needs the part needles" in judged(name, "allocation", records).reason


@pytest.mark.parametrize("name", ["Attention allocation: more", "Attention allocation: less"])
def test_slightly_lower_retrieval_does_not_exclude_a_pair(name):
    row = judged(name, "allocation", allocation((0.1, 0.3)), needles=needles((0.9, 0.85)))
    assert row.verdict == "cannot tell"
    assert row.reason == "the differential models are right less often (softmax 90 %, differential 85 %)"


@pytest.mark.parametrize("part", ["outliers", "compare"])
def test_seeds_left_after_a_model_diverged_are_not_a_fair_sample(part):
    name, records = ("Outliers: smaller largest hidden", of_models("evaluate-outliers", sizes))
    if part == "compare":
        name, records = "Language modelling", compared((3.0, 2.9))
    assert judged(name, part, records).verdict == "agrees"
    row = judged(name, part, records, diverged=[7, 9])
    assert (row.verdict, row.reason) == ("cannot tell", "a model diverged in 2 paired seeds")
    nothing = judged(name, part, [], diverged=[7, 9])
    assert (nothing.verdict, nothing.reason) == ("cannot tell", "a model diverged in 2 paired seeds")


@pytest.mark.slow
def test_a_seed_that_only_one_arm_has_leaves_no_verdict():
    whole = [record for seed in range(6) for record in of_models("evaluate-outliers", sizes)[:2]]
    for place, record in enumerate(whole):
        record.values["seed"] = place // 2
    assert judged("Outliers: smaller largest attention", "outliers", whole).verdict == "agrees"
    row = judged("Outliers: smaller largest attention", "outliers", whole[:-1])
    assert (row.verdict, row.reason) == ("cannot tell", "some seeds have no value")


# ------------------------------------------------------------------------------------------ judged texts


def texts(right, *, gold=90, wrong=5, unjudged=0, copied=0.2, kind="summarization"):
    """Records with 10,000 outputs a model; ``right`` of a hundred by arm, and of the judge's yes on controls."""

    def values(arm, seed):
        own = right[ARMS.index(arm)] + seed * (arm == "differential")
        rows = [("model", own), ("gold", gold), ("wrong", wrong)]
        return {"model": "m", "judge": {"model": "j"}, "without_answer": {}, "tasks": {"t": {
            "kind": kind, "left_out": 0, "systems": [{
            **dict.fromkeys(["coverage", "entity_coverage", "words"]), "interval": [0, 1], "accuracy_at_most": 1,
            "system": system, "right": 100 * count, "accuracy": count / 100, "samples": 10_000, "empty": 0,
             "unjudged": 100 * unjudged if system == "model" else 0, "wrong": 100 * (100 - count), "copied": copied}
            for system, count in rows
        ]}}}  # fmt: skip

    return of_models("evaluate-hallucination", values)


@pytest.mark.parametrize(
    ("records", "word", "reason"),
    [
        (texts((40, 60)), "agrees", ""),
        (texts((60, 40)), "disagrees", ""),
        (texts((0, 60)), "agrees", "not shown to beat a guess: softmax in 5 of 5 seeds"),
        (texts((0, 0)), "cannot tell", "the models are on the floor or the ceiling"),
        (texts((40, 60), gold=100, wrong=100), "cannot tell", "the judge does not tell"),  # it says yes to all
        (texts((40, 60), gold=0, wrong=0), "cannot tell", "the judge does not tell"),
        (texts((40, 60), unjudged=3), "cannot tell", "the judge gave no verdict on 3000 of 100000 outputs"),
        (texts((40, 60), copied=1.0), "cannot tell", "the softmax models copy the texts that they should summarise"),
        (texts((40, 60), copied=1.0, kind="question answering"), "agrees", ""),  # an answer may stand in the text
    ],
)
def test_texts_count_where_the_judge_can_judge_and_nobody_copies(records, word, reason):
    row = judged("Contextual", "hallucination", records)
    assert row.verdict == word
    assert row.reason.startswith(reason) if reason else not row.reason


# ------------------------------------------------------------------------------------------ sizes and bits


def compared(losses, *, failing=(), accuracies=(0.9, 0.9), seeds=SEEDS):
    """A comparison with these held-out losses and accuracies by arm; ``failing`` pairs of arm and seed only guess."""
    metrics = [("held-out loss", losses, 0.001), ("first-query accuracy", accuracies, 0.0)]
    config = {"run": {"evaluation": {"curve_samples": 100}}}
    return [Record(kind="compare", config=config, seeds=list(seeds), values={"guess_rate": 0.25, "comparison": [
        {"metric": metric, "arms": {arm: {"values": [
            0.25 if step == 0 and (arm, seed) in failing else value and value + step * seed * (arm == "softmax")
            for seed in seeds
        ]} for arm, value in zip(ARMS, values, strict=True)}}
        for metric, values, step in metrics
    ]})]  # fmt: skip


def sizes(arm, seed):
    values = {"softmax": 20.0 + seed, "differential": 10.0}
    row = {"layer": "all", "top": {"1": values[arm]}, "median": 1.0}
    return {"sequences": 3, "rows": [{"what": "attention logits", **row}, {"what": "hidden states", **row}]}


def bits(arm, seed):
    return losses_of({None: 3.0, 4: 3.5 + 0.01 * seed if arm == "softmax" else 3.0})


def losses_of(by_bits):
    rows = [{"bits": bits, "loss": loss, "retrieval": 0.5, "interval": [0, 1]} for bits, loss in by_bits.items()]
    return {"granularity": "head", "guess_rate": 0.1, "samples": 10, "sequences": 3, "rows": rows}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "part", "values"),
    [
        ("Outliers: smaller largest attention", "outliers", sizes),
        ("Outliers: smaller largest hidden", "outliers", sizes),
        ("Quantization", "quantization", bits),
    ],
)
def test_properties_of_untrained_models_count_only_in_pairs_that_learned_equally(name, part, values):
    def row(seeds=SEEDS, **changes):
        records = of_models(f"evaluate-{part}", values, seeds=seeds)
        return judged(name, part, records, compare=compared(**{"losses": (3.0, 2.95), "seeds": seeds, **changes}))

    assert row().verdict == "agrees"
    assert row(losses=(3.002, 3.002)).verdict == "agrees"  # level
    both = [(arm, 1) for arm in ARMS]
    assert row(failing=both).verdict == "agrees"  # neither retrieves in that seed
    for changes, reason in (
        ({"losses": (3.0, 8.0)}, "higher loss by more than 0.1 nats: differential in 5 of 5 seeds"),
        ({"losses": (8.0, 3.0)}, "higher loss by more than 0.1 nats: softmax in 5 of 5 seeds"),
        ({"losses": (3.0, 3.03)}, "the differential models have a higher loss"),  # not much, but on average
        ({"losses": (3.0, None)}, "no loss: differential in 5 of 5 seeds"),
        ({"accuracies": (0.9, 0.25)}, "not retrieving where the other does: differential in 5 of 5 seeds"),
        ({"failing": [("differential", 4)]}, "not retrieving where the other does: differential in 1 of 5 seeds"),
        ({"failing": [("softmax", 4)]}, "not retrieving where the other does: softmax in 1 of 5 seeds"),
    ):
        assert row(**changes).verdict == "cannot tell"
        assert reason in row(**changes).reason


@pytest.mark.parametrize(
    ("higher", "reason"),
    [
        ((0.3, 0.3, 0.3, 0.0, 1.5), f"{UNLIKE} (higher loss by more than 0.1 nats: differential in 4 of 5 seeds"),
        ((-0.1, -0.1, -0.1, -0.1, 0.3), f"{UNLIKE} (higher loss by more than 0.1 nats: differential in 1 of 5 seeds"),
        ((0.09, 0.09, 0.09, -0.1, 0.09), "the differential models have a higher loss"),
    ],
)
def test_failures_of_unequal_size_are_failures(higher, reason):
    """The interval of such losses includes 0, or they are lower on average."""
    found = compared((3.0, 3.0))
    series = found[0].values["comparison"][0]["arms"]
    series["differential"]["values"] = [3.0 + more for more in higher]
    series["softmax"]["values"] = [3.0] * 5
    row = judged(
        "Outliers: smaller largest attention", "outliers", of_models("evaluate-outliers", sizes), compare=found
    )
    assert row.verdict == "cannot tell"
    assert row.reason.startswith(reason)


def test_a_claim_disagrees_only_with_a_baseline_that_has_learned_as_much():
    records = of_models("evaluate-outliers", lambda arm, seed: sizes(ARMS[1 - ARMS.index(arm)], seed))
    name = "Outliers: smaller largest attention"
    assert judged(name, "outliers", records, compare=compared((3.0, 3.002))).verdict == "disagrees"
    row = judged(name, "outliers", records, compare=compared((3.05, 3.0)))
    assert (row.verdict, row.reason[:42]) == ("cannot tell", "the softmax models have a higher loss, and")


@pytest.mark.parametrize("cost", [0.0, 1e-5, -0.2])
def test_bits_that_cost_nothing_cannot_cost_less(cost):
    records = of_models("evaluate-quantization", lambda arm, seed: losses_of(
        {None: 3.0, 4: 3.0 + (cost if arm == "softmax" else -1.0)}
    ))  # fmt: skip
    row = judged("Quantization", "quantization", records, compare=compared((3.0, 2.95)))
    assert (row.verdict, row.reason) == ("cannot tell", "4 bits cost the models nothing")


# ------------------------------------------------------------------------------------------ long context


def ends(gains, *, spread=0.0, seeds=SEEDS, higher=-0.01):
    """By how much the preceding text lowers the loss at the end, by arm; with ``spread`` over windows around it.

    ``higher``: by how much the differential arm's loss behind the whole window is higher.
    """
    windows = spread * numpy.random.default_rng(0).normal(size=100)
    return of_models("evaluate-long-context", lambda arm, seed: {"windows": 100, "length": 64, "curve": [], "tail": {
        "tokens": 8, "foreign_loss": 4.0, "gain": 1.0, "gain_interval": None, "little_loss": 4.0,
        "context_gain_interval": None,
        "loss": 3.0 + higher * (arm == "differential"), "context_gain": gains[ARMS.index(arm)] + 0.001 * seed,
        "context_gains": list(gains[ARMS.index(arm)] + 0.001 * seed + windows * (1 if arm == "softmax" else 2)),
    }}, seeds=seeds)  # fmt: skip


def test_long_context_is_judged_by_what_it_gains_if_the_loss_is_not_higher():
    """Who loses more with little context, and has no lower loss with all of it, has gained nothing."""
    worse = judged("Long context", "long-context", ends((0.1, 0.2), higher=0.05))
    assert (worse.verdict, worse.reason[:44]) == ("cannot tell", "the differential models have a higher loss, ")
    assert judged("Long context", "long-context", ends((0.1, 0.2))).verdict == "agrees"
    assert judged("Long context", "long-context", ends((0.2, 0.1))).verdict == "cannot tell"  # either way
    row = judged("Long context", "long-context", ends((0.2, 0.1), higher=0.01))
    assert (row.verdict, row.softmax) == ("disagrees", pytest.approx(0.202))
    for record in (records := ends((0.1, 0.2))):
        record.values["tail"] = None  # of one window
    row = judged("Long context", "long-context", records)
    assert (row.verdict, row.reason[:39]) == ("cannot tell", "the records have no loss with little co")


def test_one_seed_has_no_interval():
    records = [record for record in of_models("evaluate-outliers", sizes) if record.values["seed"] == 0]
    assert judged("Outliers: smaller largest attention", "outliers", records).reason == "one seed has no interval"


def test_claims_without_measurements_are_not_judged():
    records = of_models("evaluate-quantization", lambda arm, seed: losses_of({None: 3.0}))
    assert judged("Quantization", "quantization", records).verdict == "cannot tell"
    records = of_models(
        "evaluate-many-shot", lambda arm, seed: {"tasks": {"t": {**SHOTS, "samples": 100, "orders": {}}}}
    )
    assert judged("In-context learning: less spread", "many-shot", records).verdict == "cannot tell"


@pytest.mark.parametrize("name", ["answer", "noise"])
def test_the_papers_effect_on_attention_is_the_smallest_of_any_depth(name):
    pairs = zip(PAPER["softmax", name], PAPER["differential", name], strict=True)
    effects = [differential - softmax for softmax, differential in pairs]
    (claim,) = [claim for claim in CLAIMS if claim.name.startswith("Attention allocation") and name in claim.name]
    assert claim.effect == pytest.approx(min(effects, key=abs))
