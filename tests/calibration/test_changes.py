"""Differences of scores against what is known: tails of binomials, symmetric draws, coverage of intervals."""

import itertools

import pytest
import torch
from scipy import stats

from antiphase.base.randomness import keyed_generator
from antiphase.calibration.changes import changes_of, gain_interval, mean_of, rounding_of, sign_flips
from antiphase.lab.statistics.intervals import paired_interval


def scores(*values):
    return torch.tensor(values, dtype=torch.float64)


def flips(changes, **settings):
    return sign_flips(changes, keyed_generator("test"), **settings)


def test_each_data_set_counts_alike():
    assert mean_of({"a": scores(1, 1, 1, 1), "b": scores(0)}) == 0.5


def test_differences_that_rounding_explains_are_ties():
    before = {"a": torch.rand(200, generator=torch.Generator().manual_seed(0)).double()}
    noise = 1e-6 * torch.rand(200, generator=torch.Generator().manual_seed(1)).double()
    rounding = rounding_of(before, {"a": before["a"] + noise})
    assert rounding == pytest.approx(2 * float(noise.max()), rel=1e-6)
    after = before["a"] - 1.9 * noise  # of 200 differences none is more than rounding
    after[3] += 0.1
    changes = changes_of({"a": after}, before, rounding=rounding)["a"]
    assert changes.nonzero()[:, 0].tolist() == [3]
    assert changes[3] == pytest.approx(0.1, abs=1e-5)
    assert changes_of({"a": after}, before)["a"].count_nonzero() == 200


def test_a_flipped_answer_here_and_there_is_not_the_size_of_rounding():
    before = torch.zeros(100, dtype=torch.float64)
    after = before.clone()
    after[:3] = 1.0
    assert rounding_of({"a": before}, {"a": after}) == 0.0
    after[:40] = 1.0  # however many: else every change of an answer would count as none
    assert rounding_of({"a": before}, {"a": after}) == 0.0
    assert rounding_of({"a": before[:10]}, {"a": after[39:49]}) == 0.0


def test_tails_of_answers_are_binomial():
    changes = {"a": torch.cat([torch.ones(14), -torch.ones(3), torch.zeros(23)]).double()}
    found = flips(changes)
    assert found.change == pytest.approx(11 / 40)
    assert found.improves == pytest.approx(stats.binomtest(14, 17, alternative="greater").pvalue, rel=1e-12)
    assert found.worsens == pytest.approx(stats.binomtest(14, 17, alternative="less").pvalue, rel=1e-12)
    assert found.null_improved == pytest.approx(0.5)
    assert found.null_tied == 0.0


def test_tails_reach_far_below_the_number_of_draws():
    assert flips({"a": torch.ones(60).double()}).improves == pytest.approx(2.0**-60, rel=1e-9)


def test_sums_of_two_data_sets_equal_all_choices_of_signs():
    changes = {"a": scores(1, 1, -1, 0), "b": scores(1, -1, 1, 1, 0, 0)}
    flat = torch.cat([c / len(c) / 2 for c in changes.values()])
    flat = flat[flat != 0]
    sums = torch.stack([(flat.abs() * scores(*signs)).sum() for signs in itertools.product((-1, 1), repeat=len(flat))])
    found = flips(changes)
    assert found.improves == pytest.approx(float((sums >= flat.sum() - 1e-12).double().mean()))
    assert found.worsens == pytest.approx(float((sums <= flat.sum() + 1e-12).double().mean()))
    assert found.null_tied == pytest.approx(float((sums.abs() < 1e-12).double().mean()))
    assert found.null_improved == pytest.approx(found.null_worsened)


def test_drawn_signs_agree_with_the_normal_law_where_values_are_many():
    values = 0.1 + torch.randn(400, generator=torch.Generator().manual_seed(2)).double()
    found = flips({"a": values})
    expected = stats.norm.sf(float(values.sum() / values.square().sum().sqrt()))
    assert found.improves == pytest.approx(expected, rel=0.35, abs=0.002)
    assert found.improves + found.worsens == pytest.approx(1, abs=0.01)


def test_many_tests_get_draws_enough_to_be_passed():
    values = 1 + 0.01 * torch.rand(60, generator=torch.Generator().manual_seed(3)).double()
    assert flips({"a": values}, tests=2000).improves < 0.05 / 2000


def test_no_change_is_a_tie():
    found = flips({"a": torch.zeros(5).double()})
    assert (found.change, found.improves, found.worsens, found.null_tied) == (0.0, 1.0, 1.0, 1.0)


def test_the_interval_covers_the_true_gain_as_often_as_it_says():
    covered = 0
    for trial in range(200):
        generator = torch.Generator().manual_seed(trial)
        change = 0.3 + 0.5 * torch.randn(60, generator=generator, dtype=torch.float64)
        low, high = gain_interval({"a": change}, seed=trial)
        covered += low < 0.3 < high
    assert 0.89 <= covered / 200 <= 0.99


@pytest.mark.parametrize(("samples", "better", "worse"), [(150, 0.01, 0.0), (50, 0.02, 0.0), (150, 0.02, 0.01)])
def test_the_interval_covers_a_gain_by_few_flipped_answers_too(samples, better, worse):
    """A bootstrap's covers the first two in 75 % and 63 % of the cases."""
    generator, covered = torch.Generator().manual_seed(0), 0
    for trial in range(400):
        drawn = torch.rand(samples, generator=generator)
        change = (drawn < better).double() - (drawn > 1 - worse).double()
        low, high = gain_interval({"a": change}, seed=trial)
        covered += low < better - worse < high
    assert covered / 400 >= 0.93


@pytest.mark.parametrize(("better", "worse", "trials"), [(2, 0, 150), (0, 0, 20), (7, 3, 60)])
def test_the_interval_of_flipped_answers_is_that_of_paired_proportions(better, worse, trials):
    change = scores(*[1.0] * better, *[-1.0] * worse, *[0.0] * (trials - better - worse))
    assert gain_interval({"a": change}, seed=0) == pytest.approx(paired_interval(better, worse, trials)[1])
    low, high = gain_interval({"a": change, "b": change}, seed=0)  # of two alike, narrower by √2
    one = paired_interval(better, worse, trials)[1]
    assert high - low == pytest.approx((one[1] - one[0]) / 2**0.5)


def test_the_interval_of_two_data_sets_is_that_of_their_mean():
    generator = torch.Generator().manual_seed(5)
    changes = {
        "a": torch.randn(400, generator=generator).double(), "b": 3 * torch.randn(100, generator=generator).double(),
    }  # fmt: skip
    low, high = gain_interval(changes, seed=0)
    spread = 1.96 * float((changes["a"].var() / 400 + changes["b"].var() / 100).sqrt()) / 2
    assert (high - low) / 2 == pytest.approx(spread, rel=0.08)
    assert (high + low) / 2 == pytest.approx(mean_of(changes), abs=spread / 8)
