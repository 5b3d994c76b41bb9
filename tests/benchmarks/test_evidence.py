"""Evidence: every combination is a run of its own; effects and their intervals are right where the truth is known."""

import importlib.util
import itertools
import json
import math
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from antiphase.config import to_yaml
from antiphase.errors import InputError
from antiphase.studies.ablations.rows import parameter_count

ROOT = Path(__file__).resolve().parents[2]


def script(name):
    spec = importlib.util.spec_from_file_location(name, ROOT / f"benchmarks/{name}.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


evidence, effects = script("evidence"), script("evidence_effects")
tables = script("evidence_tables")
FACTORS = {"attention": ["softmax", "V1"], "norm": ["with", "without"], "start": ["a", "b"]}


def made(truth, *, seeds=3, blocks=400, seed_noise=0.0, text_noise=0.0, generator=None):
    """Runs whose loss is ``truth(levels)``, shifts of seeds and blocks that all share, and noise of either kind."""
    generator = generator or np.random.default_rng(0)
    shifts, texts = generator.normal(size=seeds), generator.normal(size=blocks)
    runs = []
    own = {levels: generator.normal(size=blocks) for levels in itertools.product(*FACTORS.values())}
    for seed, levels in itertools.product(range(seeds), own):
        loss = truth(levels) + shifts[seed] + seed_noise * generator.normal()
        by_block = loss + texts + text_noise * own[levels]
        runs.append(
            {
                "levels": dict(zip(FACTORS, levels, strict=True)),
                "seed": seed,
                "values": {"final": {"loss": by_block.mean()}, "block_losses": {"0": list(by_block)}},
            }
        )
    return runs


@pytest.mark.slow
def test_every_study_is_whole_and_its_runs_have_names_of_their_own():
    for name, study in evidence.studies().items():
        runs = list(evidence.runs_of(name, study))
        waits = bool(evidence.missing(evidence.sources_of(study)))
        assert len({run.record for run in runs}) == len(runs) == (0 if waits else evidence.count(study))
        assert set(study) <= {"question", "base", "settings", "seeds", "factors", "chosen_from", "common_from"}
        for run in runs:
            settings = run.settings(["books"], ["held-out"])
            assert settings.training.seed == run.seed


def test_runs_of_a_seed_come_before_those_of_the_next():
    study = {"base": "demo", "seeds": [4, 2], "factors": {"a": {"x": {}, "y": {"training.steps": 7}}}}
    runs = list(evidence.runs_of("s", study))
    assert [(run.seed, run.levels["a"]) for run in runs] == [(4, "x"), (4, "y"), (2, "x"), (2, "y")]
    assert [run.settings([], []).training.steps == 7 for run in runs] == [False, True, False, True]


def test_a_run_with_the_settings_of_another_is_not_trained_again(tmp_path, monkeypatch):
    monkeypatch.setattr(evidence, "RECORDS", tmp_path)
    study = {"base": "demo", "seeds": [0, 1], "factors": {"rate": {"a": {"training.learning_rate": 1e-3}}}}
    (first, _) = evidence.runs_of("one", study)
    settings = first.settings([], [])
    kept = {"seed": 0, "values": {"final": {"loss": 1.5}}, "settings": evidence.finite(evidence.asdict(settings))}
    monkeypatch.setattr(evidence, "_trained", lambda run, settings: kept)
    evidence.execute(first, settings)
    monkeypatch.setattr(evidence, "_trained", lambda run, settings: pytest.fail("trained"))
    same, other = evidence.runs_of("two", {**study, "factors": {"arm": {"x": {"training.learning_rate": 1e-3}}}})
    evidence.execute(same, same.settings([], []))
    record = json.loads(same.record.read_text())
    assert (record["study"], record["levels"], record["values"]) == ("two", {"arm": "x"}, kept["values"])
    assert evidence.reusable(other.settings([], [])) is None


def test_a_run_that_is_measured_otherwise_is_trained_again(tmp_path, monkeypatch):
    """Its held-out loss is of other text."""
    monkeypatch.setattr(evidence, "RECORDS", tmp_path)
    settings = evidence.Run("one", {}, {}, 0, "demo").settings([], [])
    (tmp_path / "one").mkdir()
    kept = {"settings": evidence.finite(evidence.asdict(settings))}
    (tmp_path / "one" / "x.json").write_text(json.dumps(kept))
    for change, found in (
        ({}, kept),
        ({"evaluation.samples": 7}, kept),
        ({"evaluation.validation_sequences": 7}, None),
    ):
        assert evidence.reusable(evidence.Run("two", {}, change, 0, "demo").settings([], [])) == found


def test_a_finished_folder_with_other_settings_or_text_is_refused(tmp_path, monkeypatch, book):
    monkeypatch.setattr(evidence, "WORK", tmp_path)
    monkeypatch.setattr(evidence, "run_jobs", lambda *arguments, **options: pytest.fail("taken"))
    small = {"data.source": "text", "data.vocabulary_size": 300, "data.sequence_length": 256}
    run = evidence.Run("study", {"rate": "1"}, small, 0, "demo")
    settings = run.settings([str(book)], [])
    folder = tmp_path / "study" / run.name
    folder.mkdir(parents=True)
    (folder / "record.json").touch()
    (folder / "run.yaml").write_text(to_yaml(replace(settings, training=replace(settings.training, steps=7))))
    with pytest.raises(InputError, match=rf"{folder} holds a run with other settings \(training\.steps"):
        evidence._trained(run, settings)
    (folder / "run.yaml").write_text(to_yaml(settings))
    (folder / "text.sha256").write_text("other\n")
    with pytest.raises(InputError, match=f"{folder} began with other text"):
        evidence._trained(run, settings)


TUNED = {
    "grid": {
        "base": "demo", "seeds": [100],
        "factors": {
            "arm": {"a": {}, "b": {"model.head_norm": True}},
            "start": {"old": {"model.initializer": "normal"}, "new": {"model.initializer": "fan_in"}},
            "rate": {rate: {"training.learning_rate": float(rate)} for rate in ("1e-3", "2e-3", "4e-3")},
        },
    },
    "best": {"base": "demo", "seeds": [0, 1], "chosen_from": ["grid"], "settings": {"training.steps": 9},
             "factors": {"arm": {"a": {}, "b": {"model.head_norm": True}}}},
    "common": {"base": "demo", "seeds": [0], "common_from": ["grid"], "settings": {"training.learning_rate": 9.0},
               "factors": {"steps": {"9": {"training.steps": 9}}}},
}  # fmt: skip


def test_each_arm_gets_the_start_and_rate_of_its_lowest_loss_and_all_those_of_the_lowest_mean(tmp_path, monkeypatch):
    monkeypatch.setattr(evidence, "RECORDS", tmp_path)
    monkeypatch.setattr(evidence, "studies", lambda: TUNED)
    grid = list(evidence.runs_of("grid", TUNED["grid"]))
    losses = {
        ("a", "new", "2e-3"): 1.0, ("a", "old", "2e-3"): 1.4, ("b", "old", "2e-3"): 2.0, ("a", "old", "1e-3"): None,
    }  # fmt: skip

    def write(run, loss):
        run.record.parent.mkdir(exist_ok=True)
        run.record.write_text(json.dumps({"values": {"final": {"loss": loss}}}))

    for run in grid[1:]:
        write(run, losses.get(tuple(run.levels.values()), 3.0))
    assert evidence.missing(["grid"]) == 1
    assert list(evidence.runs_of("best", TUNED["best"])) == list(evidence.runs_of("common", TUNED["common"])) == []
    assert evidence.count(TUNED["best"]) == 4
    write(grid[0], None)  # this one diverged
    found = {(run.levels["arm"], run.seed): run.changes for run in evidence.runs_of("best", TUNED["best"])}
    of_a = {"training.steps": 9, "model.initializer": "fan_in", "training.learning_rate": 2e-3}
    of_b = {"training.steps": 9, "model.head_norm": True, "model.initializer": "normal", "training.learning_rate": 2e-3}
    assert found == {("a", 0): of_a, ("a", 1): of_a, ("b", 0): of_b, ("b", 1): of_b}
    (of_all,) = evidence.runs_of("common", TUNED["common"])  # mean 1.7; of the best of a, 2.0
    assert of_all.changes == {"training.steps": 9, "model.initializer": "normal", "training.learning_rate": 2e-3}
    write(next(run for run in grid if tuple(run.levels.values()) == ("b", "old", "4e-3")), 1.5)
    with pytest.raises(ValueError, match=r"b: the best rate, 4e-3 from the start old, is at the grid's edge"):
        list(evidence.runs_of("best", TUNED["best"]))
    for run in grid:
        write(run, None)
    with pytest.raises(ValueError, match="a: in grid a run diverged with every start and rate"):
        list(evidence.runs_of("best", TUNED["best"]))
    with pytest.raises(ValueError, match="all arms: in grid a run diverged with every start and rate"):
        list(evidence.runs_of("common", TUNED["common"]))


@pytest.mark.slow
def test_a_run_that_diverges_has_a_record_that_says_so(tmp_path, monkeypatch):
    monkeypatch.setattr(evidence, "WORK", tmp_path)
    small = {"training.steps": 40, "training.warmup_steps": 1, "training.evaluate_every": 20, "training.threads": 1}
    wild = {**small, "training.learning_rate": 1e30, "training.clip": 1e30}
    run = evidence.Run("study", {"rate": "1e30"}, wild, 0, "demo")
    values = evidence._trained(run, run.settings([], []))["values"]
    assert values["diverged"]["step"] < 40
    assert values["final"]["loss"] is None


def test_effects_without_noise_are_the_truth():
    def truth(levels):
        attention, norm, start = (value in ("V1", "without", "b") for value in levels)
        return 4 + 0.5 * attention - 0.3 * norm + 0.1 * start + 0.2 * attention * norm

    found = effects.results(made(truth), FACTORS)
    by_name = {effect.name: effect for effect in (*found.main_effects(), *found.interactions())}
    expected = {
        "attention: V1 against softmax": 0.6, "norm: without against with": -0.2, "start: b against a": 0.1,
        "attention × norm": 0.2, "attention × start": 0.0, "norm × start": 0.0,
    }  # fmt: skip
    assert by_name.keys() == expected.keys()
    for name, value in expected.items():
        assert by_name[name].estimate == pytest.approx(value, abs=1e-12)
        assert by_name[name].high - by_name[name].low < 1e-6
    simple = {effect.name: effect.estimate for effect in found.simple_effects("attention")}
    assert simple["V1 against softmax: without norm, start b"] == pytest.approx(0.7)
    assert simple["V1 against softmax: with norm, start a"] == pytest.approx(0.5)


@pytest.mark.slow
@pytest.mark.parametrize(("seed_noise", "text_noise"), [(0.1, 0.0), (0.0, 0.5), (0.05, 0.3)])
def test_intervals_hold_the_truth_nineteen_times_in_twenty(seed_noise, text_noise):
    generator, trials, held = np.random.default_rng(1), 400, 0
    for _ in range(trials):
        runs = made(lambda levels: 4.0, seed_noise=seed_noise, text_noise=text_noise, generator=generator)
        (effect, *_) = effects.results(runs, FACTORS).main_effects()
        held += effect.low <= 0 <= effect.high
    assert stats.binomtest(held, trials, 0.95).pvalue > 0.001


@pytest.mark.slow
def test_combinations_that_are_nearly_one_model_do_not_narrow_intervals():
    """Each arm twice, with the same noise: were residuals pooled, half of the seeds' freedom would be invented."""
    generator, trials, held = np.random.default_rng(3), 400, 0
    for _ in range(trials):
        noise = dict(zip(FACTORS["attention"], 0.1 * generator.normal(size=(2, 3)), strict=True))
        runs = made(lambda levels: 4.0, blocks=40, generator=generator)
        for run in runs:
            shift = noise[run["levels"]["attention"]][run["seed"]]
            run["values"]["final"]["loss"] += shift
            run["values"]["block_losses"] = {"0": [loss + shift for loss in run["values"]["block_losses"]["0"]]}
        (effect, *_) = effects.results(runs, FACTORS).main_effects()
        held += effect.low <= 0 <= effect.high
    assert stats.binomtest(held, trials, 0.95).pvalue > 0.001


def test_neighbouring_blocks_of_text_that_are_alike_count_as_one():
    means = effects.grouped({"a": [1.0] * 20 + [2.0] * 20 + [3.0] * 20, "b": [5.0, 7.0], "c": [9.0]})
    assert means.tolist() == [1.0, 2.0, 3.0, 5.0, 7.0, 9.0]


def test_a_seed_that_lacks_a_run_is_left_out_of_what_needs_it():
    def without(seeds):
        return [run for run in made(lambda levels: 4.0) if (run["seed"] not in seeds or run["levels"]["start"] != "b")]

    found = effects.results(without([1]), FACTORS)
    assert [effect.seeds for effect in found.main_effects()] == [2, 2, 2]
    assert [effect.seeds for effect in found.simple_effects("attention")] == [3, 2, 3, 2]
    whole = effects.results(made(lambda levels: 4.0), FACTORS)
    assert found.simple_effects("attention")[0] == whole.simple_effects("attention")[0]
    one, none = (effects.results(without(seeds), FACTORS).simple_effects("norm")[1] for seeds in ([0, 1], [0, 1, 2]))
    assert (one.seeds, none.seeds) == (1, 0)
    assert one.estimate == pytest.approx(0.0)
    assert np.isnan([one.low, one.high, none.estimate, none.low, none.high]).all()


def tables_of(monkeypatch, studies, runs):
    """The tables read these studies and runs."""
    monkeypatch.setattr(tables, "studies", lambda: studies)
    monkeypatch.setattr(tables, "runs_of", lambda name: runs)
    tables.found.cache_clear()


def test_the_table_of_a_grid_marks_each_arms_lowest_loss(monkeypatch):
    losses = {("a", "new", "2e-3"): 1.0, ("b", "old", "1e-3"): 2.0, ("a", "old", "1e-3"): None}
    factors = TUNED["grid"]["factors"]
    runs = [
        {
            "levels": {"arm": arm, "start": start, "rate": rate},
            "values": {
                "final": {"loss": losses.get((arm, start, rate), 3.0)},
                "spikes": int(rate == "4e-3"),
                "diverged": {"step": 40} if losses.get((arm, start, rate), 3.0) is None else None,
            },
            "settings": {"training": {"steps": 300, "log_every": 2 if rate == "1e-3" else 10}},
        }
        for arm, start, rate in itertools.product(*factors.values())
        if (arm, start, rate) != ("b", "new", "2e-3")
    ]
    tables_of(monkeypatch, TUNED, runs)
    assert tables.tuned("grid") == [
        ["arm, start", "rate 1e-3", "rate 2e-3", "rate 4e-3", "gradient spikes"],
        ["a, start old", "diverged", "3.000", "3.000", "1 of 50"],
        ["a, start new", "3.000", "**1.000**", "3.000", "1 of 180"],
        ["b, start old", "**2.000**", "3.000", "3.000", "1 of 180"],
        ["b, start new", "3.000", "–", "3.000", "1 of 160"],
    ]


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
    tables_of(monkeypatch, {"s": {"factors": factors}}, runs)
    assert [row[:2] for row in tables.change_of_effect("s", "attention", "steps")[1:]] == [
        ["difference at steps 1,200 against that at steps 600", "+0.200"],
        ["difference at steps 2,400 against that at steps 600", "+0.600"],
    ]
    runs = [{**run, "levels": {"arm": "/".join(run["levels"].values())}} for run in runs]
    tables_of(monkeypatch, {"s": {"factors": {"arm": list(dict.fromkeys(run["levels"]["arm"] for run in runs))}}}, runs)
    rows = tables.against("s", {"V1/600": "softmax/600"})
    assert rows[1] == ["softmax/600", "7", "4.000 [4.000, 4.000]", "–", "–", "–", "–"]
    assert rows[4] == ["V1/600", "7", "3.500 [3.500, 3.500]", "softmax/600", "-0.500", "-0.500 to -0.500", "0"]


@pytest.mark.slow
def test_a_difference_that_is_detectable_is_seen_four_times_in_five():
    draws = np.random.default_rng(5)
    size, seen = 0.5, 0
    for _ in range(400):
        runs = made(lambda levels: 4.0 + size * (levels[0] == "V1"), seeds=6, seed_noise=0.2, generator=draws)
        (effect, *_) = effects.results(runs, FACTORS).simple_effects("attention")
        seen += (effect.low > 0) / 400
    # The standard deviation of the difference of two runs is 0.2 · √2
    critical, error = stats.t.ppf(0.975, 5), 0.2 * 2**0.5 / 6**0.5
    assert seen == pytest.approx(stats.nct.sf(critical, 5, size / error), abs=0.05)
    # Where the standard deviation is that of this study, what is said to be detectable has a power of four fifths
    assert stats.nct.sf(critical, 5, effect.detectable / effect.spread * 6**0.5) == pytest.approx(0.8, abs=0.03)


@pytest.mark.parametrize("alpha", [0.05, 0.05 / 6])
@pytest.mark.parametrize("seeds", [3, 5])
def test_what_is_called_detectable_is_found_four_times_in_five_by_drawing(seeds, alpha):
    size = effects.detectable_size(1 / seeds, seeds - 1, alpha)
    draws = np.random.default_rng(0).normal(size, 1.0, (100_000, seeds))
    found = (stats.ttest_1samp(draws, 0, axis=1).pvalue < alpha) & (draws.mean(1) > 0)
    assert found.mean() == pytest.approx(0.8, abs=0.005)


def test_text_narrows_no_interval():
    """Seeds that differ as much as blocks of text do: the sum of both has more degrees of freedom than three seeds."""
    runs = made(lambda levels: 4.0, seeds=3, seed_noise=0.1, generator=np.random.default_rng(2))
    for effect in effects.results(runs, FACTORS).simple_effects("attention"):
        half = stats.t.ppf(0.975, 2) * effect.spread / 3**0.5
        assert effect.high - effect.low >= 2 * half * (1 - 1e-9)
        assert effect.p >= 2 * stats.t.sf(abs(effect.estimate) / effect.spread * 3**0.5, 2) - 1e-12


def test_the_power_of_a_study_is_the_spread_of_its_differences(monkeypatch):
    runs = made(lambda levels: 4.0, seed_noise=0.1)
    tables_of(monkeypatch, {"s": {"factors": FACTORS}}, runs)
    rows = tables.power({"s": "attention"})
    known = effects.results(runs, FACTORS)
    difference = known.losses[known.combinations.index(("V1", "with", "a"))]
    difference = difference - known.losses[known.combinations.index(("softmax", "with", "a"))]
    assert rows[1][:4] == ["s", "V1 against softmax: with norm, start a", "3", f"{difference.std(ddof=1):.2g}"]
    assert len(rows) == 5
    tables_of(monkeypatch, {"s": {"factors": FACTORS}}, [run for run in runs if run["seed"] == 0])
    assert tables.power({"s": "attention"})[1][2:] == ["1", "–", "–", "–"]


def test_a_diverged_run_is_named_and_its_seed_left_out_of_effects_that_need_it(monkeypatch):
    runs = made(lambda levels: 4.0)
    for run in runs:
        if (run["seed"], run["levels"]["attention"], run["levels"]["norm"]) == (1, "V1", "with"):
            run["values"] = {"final": {"loss": None}, "block_losses": None}
    tables_of(monkeypatch, {"s": {"factors": FACTORS}}, runs)
    (_, softmax, _, broken, _) = tables.losses("s")
    assert "diverged" not in softmax[1]
    assert [cell.split(", ")[1] for cell in broken[1:]] == ["diverged", "diverged"]
    rows = tables.simple_effects("s", "start")
    assert [row[-1] for row in rows] == ["seeds", "3", "3", "2", "3"]
    tables_of(monkeypatch, {"s": {"factors": FACTORS}}, [run for run in runs if run["values"]["block_losses"]])
    assert tables.simple_effects("s", "start") == rows
    assert tables.losses("s")[3][1].count(",") == 1  # not finished: not named


def test_effects_on_one_book_are_of_its_blocks_alone(monkeypatch):
    runs = made(lambda levels: 4.0)
    for run in runs:
        gain = 0.3 * (run["levels"]["attention"] == "V1")
        run["values"]["block_losses"] = {"0": [4.0 - gain] * 30, "1": [4.0 + 2 * gain] * 10}
    tables_of(monkeypatch, {"s": {"factors": FACTORS}}, runs)
    assert [row[1:] for row in tables.by_book("s", "attention")] == [[*tables.BOOKS], *[["-0.300", "+0.600"]] * 4]
    runs[-1]["values"] = {"final": {"loss": None}, "block_losses": None}
    assert [row[1:] for row in tables.by_book("s", "attention")] == [[*tables.BOOKS], *[["-0.300", "+0.600"]] * 4]


def test_an_arm_that_diverged_at_every_rate_has_no_lowest_loss(monkeypatch):
    runs = [
        {
            "levels": {"arm": "a", "start": "old", "rate": rate},
            "values": {"final": {"loss": None}, "spikes": 0, "diverged": {"step": 15}},
            "settings": {"training": {"steps": 300, "log_every": 1}},
        }
        for rate in ("1e-3", "2e-3")
    ]
    tables_of(monkeypatch, TUNED, runs)
    assert tables.tuned("grid")[1:] == [["a, start old", "diverged", "diverged", "0 of 10"]]


def survival_runs(steps, arm):
    return [
        {"levels": {"arm": arm}, "values": {"passes": step}, "settings": {"training": {"steps": 700}}} for step in steps
    ]


def test_survival_counts_runs_that_never_passed_as_censored():
    (arm,) = effects.survivals(survival_runs([100, 200, 300, None, None], "a"), "arm", ["a"])
    assert (arm.steps, arm.censored) == ([100, 200, 300], [700, 700])
    assert arm.median() == 300
    (never,) = effects.survivals(survival_runs([100, None, None], "a"), "arm", ["a"])
    assert never.median() is None


def test_log_rank_tells_arms_apart_and_finds_nothing_in_equal_ones():
    slow, fast = [300, 400, 500, 600, None, None, 650, 700], [50, 100, 100, 150, 200, 200, 250, 150]
    runs = survival_runs(slow, "slow") + survival_runs(fast, "fast")
    one, other = effects.survivals(runs, "arm", ["slow", "fast"])
    assert effects.log_rank(one, other) < 0.001
    assert effects.log_rank(one, one) == pytest.approx(1.0)


@pytest.mark.slow
def test_rivals_have_the_parameters_of_what_they_depart_from():
    study = {name: value for name, value in evidence.studies()["rivals"].items() if name != "common_from"}
    runs = {run.levels["arm"]: run.settings(["books"], ["held-out"]) for run in evidence.runs_of("rivals", study)}
    of_mlp_channel = 3 * 128 * 4
    departures = dict(tables.DEPARTURES)
    assert set(departures) | set(departures.values()) == set(runs)
    extended = "DEX from the first step"  # which adds a matrix and λ to each layer
    assert departures.pop(extended) == "softmax"
    assert parameter_count(runs[extended]) - parameter_count(runs["softmax"]) == 4 * (16 * 16 + 1)
    for name, other in departures.items():
        difference = parameter_count(runs[name]) - parameter_count(runs[other])
        assert abs(difference) < of_mlp_channel * 1.5, name


def test_p_of_an_effect_is_that_of_students_test_and_corrected_by_holms_method(monkeypatch):
    """Without noise of the text it is the paired t test; the interval excludes zero exactly where p is below 5 %."""
    runs = made(lambda levels: 4.0, seed_noise=0.1, generator=np.random.default_rng(5))
    found = effects.results(runs, FACTORS)
    for effect in (*found.main_effects(), *found.interactions(), *found.simple_effects("attention")):
        error = (effect.high - effect.low) / 2 / stats.t.ppf(0.975, 2)
        assert effect.p == pytest.approx(2 * stats.t.sf(abs(effect.estimate) / error, 2), rel=1e-6)
        assert (effect.p < 0.05) == (effect.low > 0 or effect.high < 0)
    listed = [effects.Effect("a", 0.0, 0.0, 0.0, 3, p=p) for p in (0.01, math.nan, 0.04, 0.03)]
    assert [row[-1] for row in tables._corrected(listed)] == ["p, Holm", "0.03", "–", "0.06", "0.06"]
