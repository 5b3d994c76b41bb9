"""Medians with censored seeds, and the log-rank test against a hand calculation and its own error rate."""

import numpy
import pytest
from scipy import stats

from antiphase.uncertainty.survival import log_rank, survival


def test_a_seed_that_never_passed_is_later_than_all():
    assert survival([100, None, 300], 500) == {"passed": 2, "seeds": 3, "median": 300, "until": 500}
    assert survival([None, None, 300], 500)["median"] is None
    assert survival([100, None], 500)["median"] is None
    assert survival([100, 200], 500)["median"] == 150


def test_log_rank_equals_a_calculation_by_hand():
    """Two groups of two; the first pass at 1 and 2, the second never within 5."""
    # expected in the first group: 2/4 at step 1, 1/3 at step 2; variances 1/4 and 2/9
    chi = (2 - 5 / 6) ** 2 / (1 / 4 + 2 / 9)
    assert log_rank([1, 2], [None, None], 5) == pytest.approx(stats.chi2.sf(chi, 1), rel=1e-6)
    assert log_rank([5, None], [None, None], 5) == pytest.approx(stats.chi2.sf(0.5**2 / 0.25, 1))  # passed at the end
    assert log_rank([None], [None, None], 5) is None


def test_log_rank_errs_at_its_nominal_rate_and_sees_a_difference():
    generator = numpy.random.default_rng(0)

    def drawn(scale):
        return [int(step) if step <= 1000 else None for step in 1 + generator.exponential(scale, 24)]

    equal = [log_rank(drawn(700), drawn(700), 1000) < 0.05 for _ in range(400)]
    assert sum(equal) / 400 == pytest.approx(0.05, abs=0.03)
    unlike = [log_rank(drawn(200), drawn(900), 1000) < 0.05 for _ in range(50)]
    assert sum(unlike) > 40
