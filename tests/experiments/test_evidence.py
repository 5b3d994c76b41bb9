"""Tables of studies: effects and their intervals are right where the truth is known."""

import itertools

import numpy as np
import pytest
from scipy import stats

from tools.tables import evidence as tables

FACTORS = {"attention": ["softmax", "V1"], "norm": ["with", "without"], "start": ["a", "b"]}


def made(truth, *, seeds=3, seed_noise=0.0, generator=None):
    """Runs whose loss is ``truth(levels)``, shifts of seeds that all share, and noise."""
    generator = generator or np.random.default_rng(0)
    shifts = generator.normal(size=seeds)
    runs = []
    for seed, levels in itertools.product(range(seeds), itertools.product(*FACTORS.values())):
        loss = truth(levels) + shifts[seed] + seed_noise * generator.normal()
        levels = dict(zip(FACTORS, levels, strict=True))
        runs.append(
            {"levels": levels, "seed": seed, "values": {"final": {"loss": loss}, "block_losses": {"0": [loss]}}}
        )
    return runs


def test_effects_without_noise_are_the_truth():
    def truth(levels):
        attention, norm, start = (value in ("V1", "without", "b") for value in levels)
        return 4 + 0.5 * attention - 0.3 * norm + 0.1 * start + 0.2 * attention * norm

    found = tables.results(made(truth), FACTORS)
    by_name = {effect.name: effect for effect in (*found.main_effects(), *found.interactions())}
    expected = {
        "attention: V1 against softmax": 0.6, "norm: without against with": -0.2, "start: b against a": 0.1,
        "attention × norm": 0.2, "attention × start": 0.0, "norm × start": 0.0,
    }  # fmt: skip
    assert by_name.keys() == expected.keys()
    for name, value in expected.items():
        assert by_name[name].found.estimate == pytest.approx(value, abs=1e-12)
        assert by_name[name].found.error < 1e-6
    simple = {effect.name: effect.found.estimate for effect in found.simple_effects("attention")}
    assert simple["V1 against softmax: without norm, start b"] == pytest.approx(0.7)
    assert simple["V1 against softmax: with norm, start a"] == pytest.approx(0.5)


@pytest.mark.slow
def test_intervals_hold_the_truth_nineteen_times_in_twenty():
    generator, trials, held = np.random.default_rng(1), 400, 0
    for _ in range(trials):
        (effect, *_) = tables.results(
            made(lambda levels: 4.0, seed_noise=0.1, generator=generator), FACTORS
        ).main_effects()
        low, high = effect.found.interval()
        held += low <= 0 <= high
    assert stats.binomtest(held, trials, 0.95).pvalue > 0.001


@pytest.mark.slow
def test_combinations_that_are_nearly_one_model_do_not_narrow_intervals():
    """Each arm four times, with the same noise: were residuals pooled, most of their freedom would be invented."""
    generator, trials, held = np.random.default_rng(3), 400, 0
    for _ in range(trials):
        noise = dict(zip(FACTORS["attention"], 0.1 * generator.normal(size=(2, 3)), strict=True))
        runs = made(lambda levels: 4.0, seed_noise=1e-4, generator=generator)
        for run in runs:
            run["values"]["final"]["loss"] += noise[run["levels"]["attention"]][run["seed"]]
        (effect, *_) = tables.results(runs, FACTORS).main_effects()
        low, high = effect.found.interval()
        held += low <= 0 <= high
    assert stats.binomtest(held, trials, 0.95).pvalue > 0.001


def test_a_seed_whose_runs_are_not_finished_is_no_block_and_an_arm_that_diverged_has_no_effect():
    runs = made(lambda levels: 4.0)
    found = tables.results([run for run in runs if run["seed"] != 1 or run["levels"]["start"] != "b"], FACTORS)
    assert [effect.found.blocks for effect in found.simple_effects("attention")] == [2, 2, 2, 2]
    assert tables.results(runs[:9], FACTORS).simple_effects("attention")[0].found is None  # one whole seed
    for run in runs:
        if (run["seed"], *run["levels"].values()) == (1, "V1", "with", "a"):
            run["values"] = {"final": {"loss": None}, "block_losses": None}
    known = [effect.found for effect in tables.results(runs, FACTORS).simple_effects("attention")]
    assert known[0] is None
    assert [one.blocks for one in known[1:]] == [3, 3, 3]


def tables_of(monkeypatch, factors, runs):
    """The tables read these runs of the study "s"."""
    monkeypatch.setitem(tables.FACTORS, "s", factors)
    monkeypatch.setattr(tables, "runs_of", lambda name: runs)


def test_effects_of_chosen_pairs_and_their_change(monkeypatch):
    factors = {"attention": ["softmax", "V1"], "steps": ["600", "1,200", "2,400"]}
    gap = {"600": -0.5, "1,200": -0.3, "2,400": 0.1}
    runs = [
        {
            "levels": {"attention": attention, "steps": steps},
            "seed": seed,
            "values": {
                "parameters": 7,
                "final": {"loss": (loss := 4 + (attention == "V1") * gap[steps])},
                "block_losses": {"0": [loss] * 9},
            },
        }
        for attention, steps, seed in itertools.product(*factors.values(), range(2))
    ]
    tables_of(monkeypatch, factors, runs)
    change = tables.change_of_effect(tables.found("s"), "attention", "steps")
    assert [(effect.name, round(effect.found.estimate, 9)) for effect in change] == [
        ("difference at steps 1,200 against that at steps 600", 0.2),
        ("difference at steps 2,400 against that at steps 600", 0.6),
    ]


def test_tokens_for_an_equal_loss_by_a_law_through_three_runs(monkeypatch):
    """V1 is softmax with 1.25 times as many tokens, so it needs 80 % of them, whichever law is read."""
    lengths = {"600": 1e6, "1,200": 2e6, "2,400": 4e6}
    runs = [
        {"levels": {"attention": arm, "steps": steps}, "seed": seed,
         "values": {"tokens": count, "final": {"loss": 3 + (1 + 0.1 * seed) * (factor * count / 1e6) ** -0.5}}}
        for arm, factor in (("softmax", 1), ("V1", 1.25)) for steps, count in lengths.items() for seed in range(3)
    ]  # fmt: skip
    factors = {"attention": ["softmax", "V1"], "steps": list(lengths)}
    tables_of(monkeypatch, factors, runs)
    assert tables.equal_loss("s")[1:] == [
        [f"{count / 1e6:.1f}M tokens", "80 % [80 to 80]", "80 % [80 to 80]"] for count in lengths.values()
    ]


def test_an_effect_without_a_value_is_a_dash(monkeypatch):
    runs = made(lambda levels: 4.0)
    runs[-1]["values"] = {"final": {"loss": None}}
    monkeypatch.setattr(tables, "EFFECTS", {"s": lambda known: known.simple_effects("attention")})
    tables_of(monkeypatch, FACTORS, runs)
    rows = tables.effects()
    assert [row[0] for row in rows[1:]] == ["s, 24 runs", "", "", ""]
    assert [row[2] for row in rows[1:]] == ["+0.000", "+0.000", "+0.000", "–"]
