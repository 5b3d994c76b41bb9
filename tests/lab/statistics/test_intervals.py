"""Intervals against published values, scipy and their own meaning: how often they hold the truth."""

import math
import random
import statistics

import numpy
import pytest
from scipy import stats

from antiphase.lab.statistics.intervals import (
    area_interval,
    jackknife_interval,
    mcnemar,
    mean_interval,
    paired_interval,
    share_interval,
    slope_interval,
    wilson_interval,
)


@pytest.mark.parametrize(
    ("successes", "trials", "low", "high"),
    [
        # Newcombe (1998), Statistics in Medicine 17, table I, method 3
        (81, 263, 0.2553, 0.3662),
        (15, 148, 0.0624, 0.1605),
        (0, 20, 0.0, 0.1611),
        (1, 29, 0.0061, 0.1718),
    ],
)
def test_wilson_equals_published_values(successes, trials, low, high):
    assert wilson_interval(successes, trials) == pytest.approx((low, high), abs=6e-5)


@pytest.mark.parametrize("seeds", [1, 3, 5, 8])
def test_equal_shares_have_the_interval_of_one_whatever_their_mean_rounds_to(seeds):
    for right in range(101):
        assert share_interval([right / 100] * seeds, 100) == wilson_interval(right, 100)
    low, high = share_interval([0.2, 0.3, 0.4], 100)
    assert (low, high) == pytest.approx(mean_interval([0.2, 0.3, 0.4]))


@pytest.mark.parametrize(("successes", "trials"), [(0, 1), (1, 1), (3, 7), (250, 2000), (2000, 2000)])
@pytest.mark.parametrize("confidence", [0.8, 0.95, 0.99])
def test_wilson_solves_its_quadratic_and_stays_in_bounds(successes, trials, confidence):
    z = stats.norm.ppf((1 + confidence) / 2)
    share, low, high = successes / trials, *wilson_interval(successes, trials, confidence)
    for edge in (low, high):
        assert (share - edge) ** 2 == pytest.approx(z**2 * edge * (1 - edge) / trials, abs=1e-9)
    assert 0 <= low <= share <= high <= 1
    assert isinstance(low, float)


def test_without_trials_nothing_is_known():
    assert wilson_interval(0, 0) == (0.0, 1.0)


@pytest.mark.slow
def test_wilson_covers_the_truth_about_as_often_as_it_says():
    drawn = numpy.random.default_rng(0).binomial(50, 0.3, 2000)
    held = [low <= 0.3 <= high for low, high in (wilson_interval(int(count), 50) for count in drawn)]
    assert sum(held) / 2000 == pytest.approx(0.95, abs=0.02)


def test_student_equals_scipy_and_the_table():
    values = [0.31, -0.2, 0.55, 0.1, 0.48]
    expected = stats.t.interval(0.95, 4, loc=numpy.mean(values), scale=stats.sem(values))
    assert mean_interval(values) == pytest.approx(expected, rel=1e-12)
    # t(0.975, 4) = 2.776, t(0.95, 1) = 6.314
    assert mean_interval([1.0, 2, 3, 4, 5])[1] - 3 == pytest.approx(2.776 * math.sqrt(0.5), abs=1e-3)
    assert mean_interval([0.0, 2.0], 0.9) == pytest.approx((1 - 6.314, 1 + 6.314), abs=1e-3)


def test_student_has_zero_width_for_equal_values_and_none_for_one():
    assert mean_interval([0.5, 0.5, 0.5]) == (0.5, 0.5)
    assert mean_interval([0.5]) is None
    assert mean_interval([]) is None


@pytest.mark.parametrize("probabilities", [(0.1, 0.1, 0.8), (0.3, 0.05, 0.65), (0.02, 0.0, 0.98)])
def test_a_paired_interval_covers_the_truth_about_as_often_as_it_says(probabilities):
    truth = probabilities[0] - probabilities[1]
    held = 0
    for better, worse, _ in numpy.random.default_rng(0).multinomial(50, probabilities, 2000):
        difference, (low, high) = paired_interval(int(better), int(worse), 50)
        assert difference == (better - worse) / 50
        held += low <= truth <= high
    assert held / 2000 > 0.93


def test_two_that_never_differ_are_still_uncertain():
    difference, (low, high) = paired_interval(0, 0, 50)
    assert difference == 0.0
    assert -high == pytest.approx(low)
    # ±1.96 · √(2/52 / 52)
    assert high == pytest.approx(1.96 * math.sqrt(2 / 52 / 52), rel=1e-3)


def test_a_slope_is_by_doubling_and_its_interval_is_students():
    points = [(256, 1.0), (256, 0.0), (512, 1.0), (1024, 0.0), (1024, 0.0)]
    slope, (low, high) = slope_interval(points)
    fitted = stats.linregress([8, 8, 9, 10, 10], [1.0, 0, 1, 0, 0])
    half = stats.t.interval(0.95, 3)[1] * fitted.stderr
    assert (slope, low, high) == pytest.approx((fitted.slope, fitted.slope - half, fitted.slope + half))
    assert slope_interval([(2, 0.0), (8, 1.0)]) == (0.5, (-math.inf, math.inf))


@pytest.mark.parametrize(("better", "worse"), [(0, 0), (1, 0), (3, 9), (9, 3), (14, 14), (40, 22)])
def test_mcnemar_sums_what_fair_coins_give(better, worse):
    """The exact test counts the outcomes that are no likelier than the observed one."""
    count = better + worse
    ways = [math.comb(count, one) for one in range(count + 1)]
    expected = sum(way for way in ways if way <= ways[better]) / 2**count
    assert mcnemar(better, worse) == pytest.approx(expected)


@pytest.mark.parametrize(("area", "positive", "negative"), [(0.5, 1, 1), (0.8, 12, 30), (1.0, 7, 7), (0.0, 40, 9)])
def test_an_area_has_an_interval_of_positive_width_in_bounds(area, positive, negative):
    low, high = area_interval(area, positive, negative)
    assert 0 <= low <= area <= high <= 1
    assert high - low > 0.05
    assert area_interval(1 - area, negative, positive) == pytest.approx((1 - high, 1 - low), abs=1e-9)


def test_the_interval_of_an_area_covers_the_truth_about_as_often_as_it_says():
    generator = numpy.random.default_rng(0)
    for shift in (0.0, 1.0):
        truth = stats.norm.cdf(shift / math.sqrt(2))
        held = []
        for _ in range(1000):
            own, other = generator.normal(shift, 1, 25), generator.normal(0, 1, 40)
            low, high = area_interval((own[:, None] > other).mean(), 25, 40)
            held.append(low <= truth <= high)
        assert numpy.mean(held) == pytest.approx(0.95, abs=0.025)


def test_equal_values_say_nothing_of_the_spread_of_a_slope():
    assert slope_interval([(256, 1.0), (512, 1.0), (1024, 1.0)]) == (0.0, (-math.inf, math.inf))


def test_the_jackknife_of_a_mean_is_students_interval():
    values = [0.3, -1.2, 2.5, 0.9, 4.0]
    assert jackknife_interval(values, statistics.fmean) == pytest.approx(mean_interval(values))
    assert jackknife_interval(values[:1], statistics.fmean) is None
    assert jackknife_interval([1.0, 0.0, 0.0], lambda own: 1 / max(own) if max(own) else math.inf) is None


def test_the_jackknife_of_a_ratio_covers_it():
    """Mean over root mean square, of which the truth is 1 / √2 for values of mean and variance 1."""
    draw = random.Random(3)
    covered = 0
    for _ in range(400):
        values = [draw.gauss(1, 1) for _ in range(40)]
        low, high = jackknife_interval(
            values, lambda own: statistics.fmean(own) / math.sqrt(statistics.fmean(one * one for one in own))
        )
        covered += low < math.sqrt(0.5) < high
    assert 0.91 < covered / 400 < 0.98
