"""The study of calibration on planted effects: every number that it tells is known beforehand."""

import json
import math

import numpy
import pytest
import torch
import yaml
from scipy import stats

from antiphase.base.records import Record
from antiphase.lab.studies.calibrate import measuring
from antiphase.lab.studies.calibrate.cells import Graded
from antiphase.lab.studies.calibrate.controls import random_heads
from antiphase.lab.studies.calibrate.study import CalibrationStudySettings, presentation
from antiphase.lab.studies.calibrate.study import measure as studying

COUNT, CHOSEN, JUDGES = 24, 11, 12  # one is the example before each prompt
NOISE = 2.0**-30
"""What rounding adds to every score as soon as calibration is in place."""
FACTORS = {None: 1.0, "calibrated": 1.0, "inverse": -1.0, "temperature": 0.5, "proportional": 1.0, "uniform": 0.25,
           "question": 0.75, "demonstrations": 2.0, "random-tokens": 0.1, "first-token": 0.3}  # fmt: skip


class Planted:
    """Scores to which every head adds its own effect, another one for the samples that choose than for the others."""

    def __init__(self, chosen, held_out):
        self.effects = {}
        self.keys, self.asked = [], {}
        #            on samples that choose, on the others
        for head, on_chosen, on_held_out in (
            ((0, 0), 0.1, -0.2), ((0, 1), -0.1, 0.9), ((1, 2), 0.05, 0.05), ((1, 3), 1.5 * NOISE, 1.5 * NOISE)
        ):  # fmt: skip
            effect = torch.zeros(COUNT, dtype=torch.float64)
            effect[chosen], effect[held_out] = on_chosen, on_held_out
            self.effects[head] = effect

    def evaluate(self, key, model, tasks, setting):
        self.keys.append(key)
        self.asked[key] = tasks
        score = torch.full((COUNT,), 0.8, dtype=torch.float64)
        if key[0] == "[":
            rule, where, alpha, beta, _, words = json.loads(key)
            factor = FACTORS[rule] * (alpha <= 1e6) * (1 - beta) / 0.6 * min(alpha, 5) / 5
            if rule == "random-tokens":
                factor += 0.01 * words["seed"]
            if alpha > 1e6:
                score += NOISE
            for layer, heads in where.items():
                for head in heads:
                    score += factor * self.effects.get((int(layer), head), 0.0)
        elif key.startswith("kept"):
            score += 0.05 if json.loads(key.removeprefix("kept "))[1] != 4 else 1.5 * NOISE
        numbers = {name: len(task.samples) for name, task in tasks.items()}
        return Graded(*({name: values[:count] for name, count in numbers.items()} for values in (score, score.log())))


@pytest.fixture
def found(calibration_model, monkeypatch, tmp_path):
    """The study's record and the planted scores."""
    monkeypatch.chdir(calibration_model)
    return planted_study(
        CalibrationStudySettings(name="model", tasks=["task.yaml"], samples=COUNT, shots=1), monkeypatch, tmp_path
    )


def planted_study(request, monkeypatch, tmp_path):
    planted = {}

    class Cells:
        def __init__(self, path, mode, say):
            self.known = {}

        def evaluate(self, *arguments):
            return planted["scores"].evaluate(*arguments)

    real = measuring.split_samples

    def split_samples(*arguments, **settings):
        split = real(*arguments, **settings)
        planted["split"] = split
        planted["scores"] = Planted(*(next(iter(n.values())) for n in (split.search_numbers, split.held_out_numbers)))
        return split

    slopes = {(layer, head): -1.0 for layer in range(2) for head in range(4)} | {(1, 2): 2.0, (0, 0): 1.0}

    def slopes_of(model, every, score, samples):
        planted["scores"].sloped = {name: [sample.row for sample in given] for name, given in samples.items()}
        return slopes

    monkeypatch.setattr(measuring, "split_samples", split_samples)
    monkeypatch.setattr(studying, "slopes_of", slopes_of)
    monkeypatch.setattr(studying, "Cells", Cells)
    record = studying.study(request, tmp_path / "study")
    return record.values, planted["scores"], planted["split"]


def gains(values, part):
    return {row["setting"]: row["gain"] for row in values["rows"][part]}


def test_heads_alone(found):
    values, _, _ = found
    heads = values["heads"]
    rows = {(row["layer"], row["head"]): row for row in heads["rows"]}
    assert len(rows) == 8
    assert rows[0, 0]["change"] == pytest.approx((CHOSEN * 0.1 - JUDGES * 0.2) / (CHOSEN + JUDGES))
    assert rows[0, 1]["change"] == pytest.approx((JUDGES * 0.9 - CHOSEN * 0.1) / (CHOSEN + JUDGES))
    assert (rows[0, 0]["improved"], rows[0, 0]["worsened"]) == (CHOSEN, JUDGES)
    assert rows[1, 2]["p_improves"] == pytest.approx(2.0 ** -(CHOSEN + JUDGES))
    assert rows[1, 2]["p_worsens"] == 1.0
    assert (heads["improved"], heads["tied"], heads["worsened"]) == (2 / 8, 5 / 8, 1 / 8)
    assert heads["null_tied"] == pytest.approx(5 / 8)  # an odd number of changes of one size cannot cancel
    assert heads["null_improved"] == pytest.approx(heads["null_worsened"])
    assert heads["sure_improved"] == 2 / 8
    assert heads["sure_worsened"] == 0.0  # (0, 0): 12 samples down and 11 up may be chance


def test_heads_are_chosen_on_one_part_and_judged_on_the_other(found):
    values, _, _ = found
    assert values["kept"] == {"0": [0], "1": [2]} or values["kept"] == {0: [0], 1: [2]}
    row = values["rows"]["kept heads"][0]
    assert row["gain"] == pytest.approx(-0.2 + 0.05)
    assert row["score"] == pytest.approx(0.8 - 0.15)
    assert row["heads"] == 2
    assert row["gain_interval"] == pytest.approx([-0.15, -0.15])
    assert row["log_probability_gain"] == pytest.approx(float(torch.tensor(0.65 / 0.8).log()), rel=1e-5)
    assert values["held_out_before"] == pytest.approx(0.8)
    assert values["rounding"] == pytest.approx(2 * NOISE)  # so (1, 3), which adds less, is not kept


def test_other_rules(found):
    values, _, _ = found
    assert gains(values, "inverse") == pytest.approx(
        {"inverse, kept heads": 0.15, "inverse, all heads": -0.75, "calibrated, all heads": 0.75}
    )
    assert gains(values, "temperature") == pytest.approx({"× 1.1, all heads": 0.375, "× 1/1.1, all heads": 0.375})
    assert gains(values, "redistribution") == pytest.approx(
        {"proportional": -0.15, "uniform": -0.0375, "question": -0.1125, "demonstrations": -0.3}
    )


def test_temperatures_and_slopes_get_what_they_should(found):
    _, planted, split = found
    words = [json.loads(key)[5] for key in planted.keys if key[0] == "[" and json.loads(key)[0] == "temperature"]
    assert [given["temperature"] for given in words] == pytest.approx([1.1, 1 / 1.1])
    chosen = {name: [sample.row for sample in given] for name, given in split.search.items()}
    assert planted.sloped == chosen  # never the samples that judge


def test_sweeps(found):
    values, _, _ = found
    assert gains(values, "alpha") == pytest.approx(
        {f"α = {alpha:g}": -0.15 * min(alpha, 5) / 5 for alpha in (1, 2, 5, 10, 20, 50, 100)}
    )
    assert gains(values, "beta") == pytest.approx(
        {f"β = {beta:g}": -0.15 * (1 - beta) / 0.6 for beta in (0.1, 0.2, 0.4, 0.6, 0.8, 1.0)}, abs=1e-12
    )
    assert gains(values, "subsets") == pytest.approx({"best 1": -0.2, "best 2": -0.15})
    assert [row["value"] for row in values["rows"]["samples"]] == [2, 5, 11]
    assert all(row["gain"] == pytest.approx(-0.15) for row in values["rows"]["samples"])


def test_controls(found):
    values, planted, _ = found
    rows = values["rows"]["controls"]
    assert [row["heads"] for row in rows] == [2] * 27
    assert [row["gain"] for row in rows[20:25]] == pytest.approx([-0.15 * (0.1 + 0.01 * draw) for draw in range(5)])
    assert {row["setting"]: row["gain"] for row in rows[25:]} == pytest.approx(
        {"first token alone": -0.15 * 0.3, "inverse": 0.15}
    )
    drawn = [json.loads(key)[1] for key in planted.keys if key[0] == "["]
    assert len({json.dumps(where) for where in drawn if sum(map(len, where.values())) == 2}) >= 12  # of 28 pairs
    assert rows[25]["improved"] == 0
    assert rows[25]["p"] == pytest.approx(2 * 0.5 ** rows[25]["worsened"])  # the sign test, all one way
    assert rows[26]["p"] == pytest.approx(2 * 0.5 ** rows[26]["improved"])


def test_kept_heads_that_say_nothing_are_one_draw_more_of_random_heads():
    """Effects of heads add up and the choice knows none of them, so their rank among the draws is uniform."""
    generator, tried = torch.Generator().manual_seed(0), [(layer, head) for layer in range(8) for head in range(9)]
    below = 0
    for seed in range(300):
        effects = dict(zip(tried, torch.randn(len(tried), generator=generator).tolist(), strict=True))
        kept = [tried[index] for index in torch.randperm(len(tried), generator=generator)[:32].tolist()]
        draws = list(random_heads(kept, tried, seed))
        assert all(len(set(draw.heads)) == 32 and set(draw.heads) <= set(tried) for draw in draws)
        own, *others = (sum(effects[head] for head in heads) for heads in (kept, *(draw.heads for draw in draws)))
        below += sum(other >= own for other in others) == 0
    assert stats.binomtest(below, 300, 1 / 21).pvalue > 0.01


def test_screened_heads(found):
    values, _, _ = found
    assert gains(values, "screen") == pytest.approx({"screened heads": 0.05})  # (1, 2) has the largest slope
    assert values["screen"]["evaluations_share"] == pytest.approx(4 / 8)
    assert values["screen"]["rank_correlation_metric"] > 0.5
    assert values["screen"]["rank_correlation_log_probability"] > 0.5
    changes = {(row["layer"], row["head"]): row["change"] for row in values["screen"]["rows"]}
    assert changes[0, 0] == pytest.approx(math.log(0.9 / 0.8))  # on the samples that choose
    assert changes[0, 1] == pytest.approx(math.log(0.7 / 0.8))


@pytest.mark.parametrize(
    ("p_values", "count"),
    [([0.04, 0.5, 0.9, 1.0], 0), ([0.01, 0.02, 0.03, 0.04], 4), ([0.012, 0.024, 0.9, 1.0], 2), ([0.2], 0)],
)
def test_heads_beyond_chance_are_counted_at_a_false_discovery_rate(p_values, count):
    assert studying.discoveries(p_values) == count


def test_other_numbers_of_examples_are_asked_on_samples_that_chose_no_head(found):
    values, planted, split = found
    rows = values["rows"]["shots"]
    assert [row["shots"] for row in rows if "gain" in row] == [0, 1, 4]
    held = {sample.row for sample in next(iter(split.held_out.values()))}
    for shots in (0, 1, 4):
        asked = next(tasks for key, tasks in planted.asked.items() if key == f"plain cr {shots}")
        assert {sample.row for sample in asked["cr"].samples} <= held
        assert len(asked["cr"].samples) >= len(held) - 4  # some may be examples now
    assert [row["gain"] for row in rows if row.get("shots") in (0, 1)] == pytest.approx([0.05, 0.05])
    assert [row["gain"] for row in rows if row.get("shots") == 4] == [0.0]  # no more than rounding


def test_tables_and_figures_tell_the_gains_of_the_record(found):
    """A row that was refused has none."""
    values, _, _ = found
    values["rows"]["shots"].append({"setting": "9 examples", "refused": "too long"})
    record = Record(kind="calibrate-study", values=values, config={"score": "metric"})
    rows = [(part, row) for part, listed in values["rows"].items() for row in listed if "gain" in row]
    assert [row[0] for row in presentation.effects(record).rows] == [row["setting"] for _, row in rows]
    assert [row[3] for row in presentation.effects(record).rows] == [f"{100 * row['gain']:+.1f}" for _, row in rows]
    (axes,) = presentation.effect_rows(record).axes
    dots = [float(line.get_xdata()[0]) for line in axes.lines if line.get_marker() == "o"]
    assert dots == pytest.approx([100 * row["gain"] for part, row in rows if part not in presentation.SWEEPS])
    for axes, part in zip(presentation.sweeps(record).axes, presentation.SWEEPS, strict=True):
        expected = [(row["value"], 100 * row["gain"]) for row in values["rows"][part]]
        assert axes.lines[0].get_xydata() == pytest.approx(numpy.array(expected))


def test_texts_without_examples_have_no_rows_for_them(calibration_model, monkeypatch, tmp_path):
    monkeypatch.chdir(calibration_model)
    words = [
        f"{a} {b} {c} {i}" for i in range(20) for a in ("the", "a") for b in ("glad", "sour") for c in ("day", "man")
    ]
    (tmp_path / "text.txt").write_text(" ".join(words))
    settings = {"template": "continuation", "data": "text.txt", "length": 16, "continuation": 4}
    (tmp_path / "text.yaml").write_text(yaml.safe_dump(settings))
    request = CalibrationStudySettings(name="model", tasks=[str(tmp_path / "text.yaml")], samples=COUNT)
    values, _, _ = planted_study(request, monkeypatch, tmp_path)
    assert values["rows"]["shots"] == []
    assert values["rows"]["kept heads"][0]["gain"] == pytest.approx(-0.15)
