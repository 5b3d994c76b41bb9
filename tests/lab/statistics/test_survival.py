"""Medians with censored seeds, and the log-rank test against a hand calculation and its own error rate."""

import math

import numpy
import pytest
from scipy import stats

from antiphase.lab.statistics import survival as survival_module
from antiphase.lab.statistics.survival import compare_steps, detectable_ratio, survival


def test_a_seed_that_never_passed_is_later_than_all():
    found = survival([100, None, 300], 500)
    assert (found.passed, found.seeds, found.median, found.until) == (2, 3, 300, 500)
    assert survival([None, None, 300], 500).median is None
    assert survival([None, None, 100, 300], 500).median == 300  # half have passed by then
    assert survival([100, 200], 500).median == 100
    assert survival([None, None, None, 300], 500).median is None


def test_the_interval_of_a_median_covers_it():
    # of ten seeds the second and the ninth: P(two or more on each side) = 97.9 %
    assert survival(list(range(10, 110, 10)), 500).median_interval == [20, 90]
    assert survival([10, 20, 30, None, None, None, None, None, None, None], 500).median_interval == [20, None]
    assert survival([10, 20, 30, 40, 50], 500).median_interval == [None, None]
    generator, held = numpy.random.default_rng(0), 0
    for _ in range(1000):
        low, high = survival((1 + 1000 * generator.exponential(size=11)).astype(int).tolist(), 10**6).median_interval
        held += low <= 1000 * math.log(2) <= high
    assert held / 1000 >= 0.95


def p_of(one, other):
    return compare_steps(one, other).p


def test_log_rank_of_few_seeds_equals_a_calculation_by_hand():
    """Of all divisions of three and three, two are as extreme as one group before the other."""
    assert p_of([1, 2, 3], [4, 5, None]) == pytest.approx(2 / 20)
    assert p_of([1, 2], [None, None]) == pytest.approx(2 / 6)
    # events less expected ones: [1, 3] has 2 - (2/4 + 1/3 + 1/2) = 2/3; only [1, 2] and [3, 4] are farther from zero
    assert p_of([1, 3], [2, None]) == pytest.approx(4 / 6)
    assert compare_steps([None], [None, None]) is None
    assert compare_steps([], [1]) is None


def test_the_hazard_ratio_is_petos():
    # at step 1: 1 event, 2 of 4 at risk are own; at 2: 1 of 3; at 3: 1 of 2. O - E = 2 - (1/2 + 1/3 + 1/2), V = sum
    found = compare_steps([1, 3], [2, None])
    variance = 1 / 4 + 1 / 3 * 2 / 3 + 1 / 4
    middle = (2 / 3) / variance
    assert found.ratio == pytest.approx(math.exp(middle))
    assert found.interval[0] == pytest.approx(math.exp(middle - 1.95996 / math.sqrt(variance)), rel=1e-4)
    turned = compare_steps([2, None], [1, 3])
    assert (turned.ratio, turned.p) == (pytest.approx(1 / found.ratio), pytest.approx(found.p))


def test_no_word_is_given_where_the_exact_test_sees_nothing():
    three = compare_steps([1, 2, 3], [4, 5, 6])
    assert three.interval[0] > 1  # Peto's interval is that of many seeds
    assert str(three.word()) == "cannot tell (log-rank p of 0.05 or more)"
    assert str(compare_steps([1, 2, 3, 4], [5, 6, 7, None]).word()) == "agrees"
    assert str(compare_steps([5, 6, 7, None], [1, 2, 3, 4]).word()) == "disagrees"
    clear = compare_steps([200, 100, 200, 500, 300, 300], [None, None, 300, 400])
    assert (clear.p < 0.05, clear.interval[0] < 1, str(clear.word())) == (True, True, "agrees")


def test_log_rank_of_many_seeds_is_scipys(monkeypatch):
    generator = numpy.random.default_rng(1)
    one, other = ([int(step) for step in 1 + generator.exponential(scale, 9)] for scale in (100, 160))
    exact = p_of(one, other)
    monkeypatch.setattr(survival_module, "MOST_DIVISIONS", 1)
    known = stats.logrank(stats.CensoredData(one), stats.CensoredData(other)).pvalue
    assert p_of(one, other) == pytest.approx(known)
    assert exact == pytest.approx(known, abs=0.03)


@pytest.mark.parametrize("seeds", [3, 5])
def test_log_rank_of_few_seeds_never_errs_more_often_than_it_says(seeds):
    generator = numpy.random.default_rng(2)
    found = [p_of(*(list(map(int, generator.exponential(500, seeds))) for _ in range(2))) for _ in range(300)]
    assert sum(p <= 0.05 for p in found) / 300 <= 0.08


def test_log_rank_errs_at_its_nominal_rate_and_has_its_power_at_the_mde():
    generator = numpy.random.default_rng(0)

    def drawn(scale):
        return [int(step) if step <= 10_000 else None for step in 1 + generator.exponential(scale, 24)]

    equal = [p_of(drawn(700), drawn(700)) < 0.05 for _ in range(400)]
    assert sum(equal) / 400 == pytest.approx(0.05, abs=0.03)
    ratio = detectable_ratio(48)
    assert ratio == pytest.approx(2.24, abs=0.01)
    unlike = [compare_steps(drawn(700), drawn(700 * ratio)) for _ in range(400)]
    assert sum(found.p < 0.05 for found in unlike) / 400 == pytest.approx(0.8, abs=0.08)
    held = sum(found.interval[0] <= ratio <= found.interval[1] for found in unlike) / 400
    assert held == pytest.approx(0.95, abs=0.04)  # Peto's estimate leans to 1 where the ratio is large
