"""Evidence: every combination is a run of its own; effects and their intervals are right where the truth is known."""

import itertools
import json
from dataclasses import replace

import numpy as np
import pytest
from scipy import stats

from antiphase.base.errors import InputError
from antiphase.lab.settings.presets import to_yaml
from antiphase.lab.studies.ablations.rows import parameter_count
from experiments import evidence
from experiments import evidence_effects as effects
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


@pytest.mark.slow
def test_every_study_is_whole_and_its_runs_have_names_of_their_own():
    for name, study in evidence.studies().items():
        runs = list(evidence.runs_of(name, study))
        waits = bool(evidence.missing(evidence.sources_of(study)))
        assert len({run.name for run in runs}) == len(runs) == (0 if waits else evidence.count(study))
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
    record = same.record
    assert (record["study"], record["levels"], record["values"]) == ("two", {"arm": "x"}, kept["values"])
    assert evidence.reusable(other.settings([], [])) is None


def test_a_run_that_is_measured_otherwise_is_trained_again(tmp_path, monkeypatch):
    """Its held-out loss is of other text."""
    monkeypatch.setattr(evidence, "RECORDS", tmp_path)
    settings = evidence.Run("one", {}, {}, 0, "demo").settings([], [])
    kept = {"settings": evidence.finite(evidence.asdict(settings))}
    (tmp_path / "one.jsonl").write_text(json.dumps(kept) + "\n")
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
        path = tmp_path / f"{run.study}.jsonl"
        others = [line for line in evidence.lines(path) if line["run"] != run.name]
        own = {"run": run.name, "values": {"final": {"loss": loss}}}
        path.write_text("".join(json.dumps(line) + "\n" for line in [*others, own]))

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
        assert by_name[name].found.estimate == pytest.approx(value, abs=1e-12)
        assert by_name[name].found.error < 1e-6
    simple = {effect.name: effect.found.estimate for effect in found.simple_effects("attention")}
    assert simple["V1 against softmax: without norm, start b"] == pytest.approx(0.7)
    assert simple["V1 against softmax: with norm, start a"] == pytest.approx(0.5)


@pytest.mark.slow
def test_intervals_hold_the_truth_nineteen_times_in_twenty():
    generator, trials, held = np.random.default_rng(1), 400, 0
    for _ in range(trials):
        (effect, *_) = effects.results(
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
        (effect, *_) = effects.results(runs, FACTORS).main_effects()
        low, high = effect.found.interval()
        held += low <= 0 <= high
    assert stats.binomtest(held, trials, 0.95).pvalue > 0.001


def test_a_seed_whose_runs_are_not_finished_is_no_block_and_an_arm_that_diverged_has_no_effect():
    runs = made(lambda levels: 4.0)
    found = effects.results([run for run in runs if run["seed"] != 1 or run["levels"]["start"] != "b"], FACTORS)
    assert [effect.found.blocks for effect in found.simple_effects("attention")] == [2, 2, 2, 2]
    assert effects.results(runs[:9], FACTORS).simple_effects("attention")[0].found is None  # one whole seed
    for run in runs:
        if (run["seed"], *run["levels"].values()) == (1, "V1", "with", "a"):
            run["values"] = {"final": {"loss": None}, "block_losses": None}
    known = [effect.found for effect in effects.results(runs, FACTORS).simple_effects("attention")]
    assert known[0] is None
    assert [one.blocks for one in known[1:]] == [3, 3, 3]


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
    assert rows[4] == ["V1/600", "7", "3.500 [3.500, 3.500]", "softmax/600", "-0.500", "-0.500 to -0.500", "0.000"]


def test_the_power_of_a_study_is_of_its_residuals(monkeypatch):
    runs = made(lambda levels: 4.0, seed_noise=0.1)
    tables_of(monkeypatch, {"s": {"factors": FACTORS}}, runs)
    blocks = effects.results(runs, FACTORS).blocks
    (row,) = tables.power(["s"])[1:]
    assert row == [
        "s", "8", "3", f"{blocks.spread:.2g}", f"{blocks.pooling_p:.2g}", "yes",
        f"{blocks.difference(*blocks.arms[:2]).detectable:.2g}",
    ]  # fmt: skip
    assert 0.06 < blocks.spread < 0.14
    tables_of(monkeypatch, {"s": {"factors": FACTORS}}, [run for run in runs if run["seed"] == 0])
    assert tables.power(["s"])[1:] == []


def test_both_variances_of_a_contrast_stand_side_by_side(monkeypatch):
    generator = np.random.default_rng(1)
    runs = [
        {"levels": {"arm": arm}, "seed": seed, "values": {"final": {"loss": 4 + generator.normal()}}}
        for seed in range(5) for arm in ("softmax", "V1", "V2")
    ]  # fmt: skip
    tables_of(monkeypatch, {"s": {"factors": {"arm": ["softmax", "V1", "V2"]}}}, runs)
    (row,) = tables.variances({"s": ("V1", "softmax")})[1:]
    losses = tables.found("s").losses
    assert float(row[4]) == pytest.approx(stats.ttest_rel(losses[1], losses[0]).pvalue, rel=0.05)
    assert (row[6] != row[4], row[8]) == (True, "all")


def test_tokens_for_an_equal_loss_by_a_law_through_three_runs(monkeypatch):
    """V1 is softmax with 1.25 times as many tokens, so it needs 80 % of them, whichever law is read."""
    lengths = {"600": 1e6, "1,200": 2e6, "2,400": 4e6}
    runs = [
        {"levels": {"attention": arm, "steps": steps}, "seed": seed,
         "values": {"tokens": count, "final": {"loss": 3 + (1 + 0.1 * seed) * (factor * count / 1e6) ** -0.5}}}
        for arm, factor in (("softmax", 1), ("V1", 1.25)) for steps, count in lengths.items() for seed in range(3)
    ]  # fmt: skip
    factors = {"attention": ["softmax", "V1"], "steps": list(lengths)}
    tables_of(monkeypatch, {"s": {"factors": factors}}, runs)
    assert tables.equal_loss("s")[1:] == [
        [f"{count / 1e6:.1f}M tokens", "80 % [80 to 80]", "80 % [80 to 80]"] for count in lengths.values()
    ]


def test_a_diverged_run_is_named_and_its_arm_has_no_effect(monkeypatch):
    runs = made(lambda levels: 4.0)
    for run in runs:
        if (run["seed"], run["levels"]["attention"], run["levels"]["norm"]) == (1, "V1", "with"):
            run["values"] = {"final": {"loss": None}, "block_losses": None}
    tables_of(monkeypatch, {"s": {"factors": FACTORS}}, runs)
    (_, softmax, _, broken, _) = tables.losses("s")
    assert "diverged" not in softmax[1]
    assert [cell.split(", ")[1] for cell in broken[1:]] == ["diverged", "diverged"]
    assert [row[1] == "–" for row in tables.simple_effects("s", "start")[1:]] == [False, False, True, False]
    tables_of(monkeypatch, {"s": {"factors": FACTORS}}, [run for run in runs if run["values"]["block_losses"]])
    assert tables.losses("s")[3][1].count(",") == 1  # not finished: not named


def test_effects_on_one_book_are_of_its_blocks_alone(monkeypatch):
    runs = made(lambda levels: 4.0)
    for run in runs:
        gain = 0.3 * (run["levels"]["attention"] == "V1")
        run["values"]["block_losses"] = {"0": [4.0 - gain] * 30, "1": [4.0 + 2 * gain] * 10}
    tables_of(monkeypatch, {"s": {"factors": FACTORS}}, runs)
    assert [row[1:] for row in tables.by_book("s", "attention")] == [[*tables.BOOKS], *[["-0.300", "+0.600"]] * 4]
    runs[-1]["values"] = {"final": {"loss": None}, "block_losses": None}
    assert [row[1:] for row in tables.by_book("s", "attention")][1:] == [*[["-0.300", "+0.600"]] * 3, ["–", "–"]]


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


def test_steps_until_runs_learn_stand_beside_the_first_arm(monkeypatch):
    steps = {"slow": [300, 400, 500, 600, None, None, 650, 700], "fast": [50, 100, 100, 150, 200, 200, 250, 150]}
    runs = [
        {"levels": {"arm": arm}, "values": {"passes": step}, "settings": {"training": {"steps": 700}}}
        for arm, own in steps.items() for step in own
    ]  # fmt: skip
    tables_of(monkeypatch, {"s": {"factors": {"arm": list(steps)}}}, runs)
    _, slow, fast = tables.learned("s", "arm")
    assert slow == ["slow", "6 of 8", "600", "300 to never", "–", "–", "–"]
    assert fast[:4] == ["fast", "8 of 8", "150", "50 to 250"]
    assert float(fast[4]) > 3
    assert float(fast[6]) < 0.001


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
