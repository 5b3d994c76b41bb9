"""Medians with censored seeds, and the log-rank test against a hand calculation and its own error rate."""

import numpy
import pytest
from scipy import stats

from antiphase.uncertainty import survival as survival_module
from antiphase.uncertainty.survival import log_rank, survival


def test_a_seed_that_never_passed_is_later_than_all():
    assert survival([100, None, 300], 500) == {"passed": 2, "seeds": 3, "median": 300, "until": 500}
    assert survival([None, None, 300], 500)["median"] is None
    assert survival([None, None, 100, 300], 500)["median"] == 300  # half have passed by then
    assert survival([100, 200], 500)["median"] == 100
    assert survival([None, None, None, 300], 500)["median"] is None


def test_log_rank_of_few_seeds_equals_a_calculation_by_hand():
    """Of all divisions of three and three, two are as extreme as one group before the other."""
    assert log_rank([1, 2, 3], [4, 5, None], 5) == pytest.approx(2 / 20)
    assert log_rank([1, 2], [None, None], 5) == pytest.approx(2 / 6)
    assert log_rank([5, None], [None, None], 5) == 1.0  # passed at the end: any division is like it
    # events less expected ones: [1, 3] has 2 - (2/4 + 1/3 + 1/2) = 2/3; only [1, 2] and [3, 4] are farther from zero
    assert log_rank([1, 3], [2, None], 5) == pytest.approx(4 / 6)
    assert log_rank([None], [None, None], 5) is None


def test_log_rank_of_many_seeds_is_scipys(monkeypatch):
    generator = numpy.random.default_rng(1)
    one, other = ([int(step) for step in 1 + generator.exponential(scale, 9)] for scale in (100, 160))
    exact = log_rank(one, other, 1000)
    monkeypatch.setattr(survival_module, "MOST_DIVISIONS", 1)
    known = stats.logrank(stats.CensoredData(one), stats.CensoredData(other)).pvalue
    assert log_rank(one, other, 1000) == pytest.approx(known)
    assert exact == pytest.approx(known, abs=0.03)


@pytest.mark.parametrize("seeds", [3, 5])
def test_log_rank_of_few_seeds_never_errs_more_often_than_it_says(seeds):
    generator = numpy.random.default_rng(2)
    found = [
        log_rank(*(list(map(int, generator.exponential(500, seeds))) for _ in range(2)), 10_000) for _ in range(300)
    ]
    assert sum(p <= 0.05 for p in found) / 300 <= 0.08


def test_log_rank_errs_at_its_nominal_rate_and_sees_a_difference():
    generator = numpy.random.default_rng(0)

    def drawn(scale):
        return [int(step) if step <= 1000 else None for step in 1 + generator.exponential(scale, 24)]

    equal = [log_rank(drawn(700), drawn(700), 1000) < 0.05 for _ in range(400)]
    assert sum(equal) / 400 == pytest.approx(0.05, abs=0.03)
    unlike = [log_rank(drawn(200), drawn(900), 1000) < 0.05 for _ in range(50)]
    assert sum(unlike) > 40
