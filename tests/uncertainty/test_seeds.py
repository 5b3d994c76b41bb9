"""Intervals over seeds and sample hold a known truth as often as they say; Holm against its definition."""

import math

import numpy
import pytest
from scipy import stats

from antiphase.uncertainty.intervals import mean_interval
from antiphase.uncertainty.seeds import ALONE, BOOTSTRAP_FROM, Sample, holm, seeds_interval

SIZE = 80


def coverage(seeds, *, of_seeds, of_samples, shared, known, trials):
    """How often the interval holds 0, the mean of a population with these standard deviations."""
    generator = numpy.random.default_rng(seeds)
    held = 0
    for _ in range(trials):
        own = generator.normal(0, of_seeds, (seeds, 1)) if of_seeds else numpy.zeros((seeds, 1))
        scores = own + of_samples * generator.normal(size=(1 if shared else seeds, SIZE))
        if known == "per sample":
            sample = Sample.of_scores(scores, shared=shared)
        else:
            sample = Sample.of_errors([of_samples / math.sqrt(SIZE)] * seeds, SIZE, shared=shared)
        found = seeds_interval(scores.mean(1).tolist(), sample)
        assert found is not None
        held += found.low <= 0 <= found.high
    return held / trials


SEEDS = [3, pytest.param(5, marks=pytest.mark.slow), pytest.param(10, marks=pytest.mark.slow)]
"""As many as ``compare`` takes by default, and others."""


@pytest.mark.grid
@pytest.mark.parametrize("known", ["per sample", "standard errors"])
@pytest.mark.parametrize(
    ("of_seeds", "of_samples"), [(0.1, 1e-9), (0.0, 1.0), (0.1, 1.0)], ids=["seeds alone", "sample alone", "both"]
)
@pytest.mark.parametrize("seeds", SEEDS)
def test_a_shared_sample_is_covered(seeds, of_seeds, of_samples, known):
    """95 %, give or take what 600 trials leave open; a deviation of 1 over 80 samples is 0.11, about the seeds'."""
    found = coverage(seeds, of_seeds=of_seeds, of_samples=of_samples, shared=True, known=known, trials=600)
    assert 0.92 <= found <= 0.98


@pytest.mark.grid
@pytest.mark.parametrize("known", ["per sample", "standard errors"])
@pytest.mark.parametrize(
    ("of_seeds", "of_samples"), [(0.1, 1e-9), (0.0, 1.0), (0.1, 1.0)], ids=["seeds alone", "samples alone", "both"]
)
@pytest.mark.parametrize("seeds", SEEDS)
def test_samples_of_each_seed_are_covered(seeds, of_seeds, of_samples, known):
    """Never narrower than either source asks for, so that where samples are all there is it holds more often."""
    found = coverage(seeds, of_seeds=of_seeds, of_samples=of_samples, shared=False, known=known, trials=600)
    assert 0.92 <= found <= 0.995


@pytest.mark.parametrize("seeds", [3, 10, 40])
def test_seeds_that_draw_from_one_file_do_not_know_other_rows(seeds):
    """Held-out tenths of 400 rows: more seeds are not more rows, and the interval is about other rows like them."""
    generator, held, trials = numpy.random.default_rng(seeds), 0, 300
    for _ in range(trials):
        right = generator.random(400) < 0.7  # the model is right about a row or is not, whatever the seed
        values = [float(right[generator.permutation(400)[:40]].mean()) for _ in range(seeds)]
        found = seeds_interval(values, Sample.of_counts(values, 40, shared=False, drawn_from=400))
        held += found.low <= 0.7 <= found.high
    assert held / trials >= 0.92


def test_students_interval_forgets_a_shared_sample():
    """What the module is for: with the sample alone, Student's interval over ten seeds has no width at all."""
    generator = numpy.random.default_rng(0)
    values = [float(generator.normal())] * 10
    low, high = mean_interval(values)
    assert low == high != 0
    found = seeds_interval(values, Sample.of_errors([1.0] * 10, SIZE, shared=True))
    assert (found.low, found.high) == pytest.approx((values[0] - 1.96, values[0] + 1.96), abs=0.1)


@pytest.mark.parametrize("count", [2, 3, 5, 7, 8, 10, 30])
@pytest.mark.parametrize("shared", [True, False])
def test_without_variance_of_the_sample_it_is_students(count, shared):
    values = numpy.random.default_rng(count).normal(1, 1, count).tolist()
    samples = None, Sample.of_errors([0.0] * count, 50, shared=shared)
    for sample in samples:
        found = seeds_interval(values, sample)
        assert (found.low, found.high) == pytest.approx(mean_interval(values), rel=1e-12)
        assert found.basis.p == pytest.approx(stats.ttest_1samp(values, 0).pvalue, rel=1e-9)
        assert (found.basis.method, found.basis.degrees) == ("Student", count - 1)
    assert seeds_interval([1.0]) is None
    assert (seeds_interval([0.5] * 4).low, seeds_interval([0.5] * 4).high) == (0.5, 0.5)
    assert (seeds_interval([0.5] * 4).basis.p, seeds_interval([0.0] * 4).basis.p) == (0.0, 1.0)


def test_variances_add_up_with_satterthwaites_degrees():
    values, error, size = [0.1, 0.3, 0.2, 0.5], 0.1, 25
    found = seeds_interval(values, Sample.of_errors([error] * 4, size, shared=True))
    seeds = numpy.var(values, ddof=1) / 4
    whole = seeds + error**2
    degrees = whole**2 / (seeds**2 / 3 + error**4 / 24)
    half = stats.t.ppf(0.975, degrees) * math.sqrt(whole)
    assert (found.low, found.high) == pytest.approx((0.275 - half, 0.275 + half))
    assert found.basis.p == pytest.approx(2 * stats.t.sf(0.275 / math.sqrt(whole), degrees))
    assert (found.basis.seed_variance, found.basis.sample_variance) == (pytest.approx(seeds), pytest.approx(error**2))
    assert (found.basis.covers, found.basis.sample) == (
        "seeds and sample",
        "standard errors, one sample for all seeds of 25",
    )


@pytest.mark.parametrize("error", [0.02, 0.05, 0.1, 0.2, 0.5])
def test_a_sample_narrows_no_interval(error):
    """It can bring more degrees of freedom than variance: with three seeds, Student's quantile is 4.3, later 2."""
    values = [0.1, 0.3, 0.2]
    alone = seeds_interval(values)
    found = seeds_interval(values, Sample.of_errors([error] * 3, 400, shared=True))
    assert found.low <= alone.low
    assert found.high >= alone.high
    assert (found.low == alone.low) is (found.basis.method == ALONE) is (error <= 0.1)
    assert found.basis.p >= alone.basis.p - 1e-12


def test_agreeing_seeds_claim_no_more_than_their_samples_allow():
    """The case that was published: 294 to 295 right of 377 with each of three seeds gave ±0.3 points."""
    shares = [294 / 377, 294 / 377, 293 / 377]
    found = seeds_interval(shares, Sample.of_counts(shares, 377, shared=False))
    assert found.basis.method == "the samples' own"
    assert found.high - found.low == pytest.approx(2 * 1.96 * math.sqrt(0.78 * 0.22 / 377 / 3), rel=0.02)
    held = seeds_interval(shares, Sample.of_counts(shares, 377, shared=True))
    assert held.high - held.low == pytest.approx(2 * 1.96 * math.sqrt(0.78 * 0.22 / 377), rel=0.02)  # ±4.2


def test_the_p_of_a_bootstrap_agrees_with_its_interval():
    generator = numpy.random.default_rng(1)
    for shift in (0.0, 0.1, 0.2, 0.3, 0.4):
        scores = shift + generator.normal(0, 0.2, (BOOTSTRAP_FROM, 1)) + generator.normal(0, 1, (1, 60))
        values = scores.mean(1).tolist()
        one = seeds_interval(values, Sample.of_scores(scores, shared=True))
        assert one.basis.method == "hierarchical bootstrap"
        assert (one.basis.p < 0.05) == (not one.low <= 0 <= one.high)
        assert seeds_interval(values, Sample.of_scores(scores, shared=True)) == one  # no draw is left to chance


def test_pairing_by_sample_removes_common_difficulty():
    generator = numpy.random.default_rng(2)
    hard = generator.normal(0, 1, (1, 400))
    arms = [Sample.of_scores(mean + hard + generator.normal(0, 0.1, (5, 400)), shared=True) for mean in (1.0, 1.2)]
    paired = arms[1].minus(arms[0])
    assert paired.variance_of_mean() < 0.001 < 0.004 < arms[0].variance_of_mean() + arms[1].variance_of_mean()
    counted = Sample.of_counts([0.5] * 5, 400, shared=True)
    mixed = arms[1].minus(counted)
    assert (mixed.known_by, mixed.scores) == ("counts", None)
    assert mixed.variance_of_mean() == pytest.approx(sum(arms[1].variances) / 5 + 0.25 / 400)
    some = paired.of_seeds([0, 3])
    assert numpy.array_equal(some.scores, paired.scores[[0, 3]])


@pytest.mark.parametrize("right", [0, 20])
def test_a_share_of_none_or_all_keeps_a_variance(right):
    assert Sample.of_counts([right / 20], 20, shared=True).variances[0] == pytest.approx(21 / 22 * 1 / 22 / 20)


def test_holm_is_its_definition_and_keeps_the_order():
    # Holm (1979): 4 · 0.01, max(that, 3 · 0.02), max(that, 2 · 0.03), max(that, 1 · 0.5)
    assert holm([0.02, 0.5, 0.01, 0.03]) == pytest.approx([0.06, 0.5, 0.04, 0.06])
    assert holm([]) == []
    assert holm([0.9, 0.8]) == [1.0, 1.0]
    with pytest.raises(ValueError, match="a p-value is NaN"):
        holm([0.01, float("nan"), 0.03])


def test_holm_keeps_the_whole_family_at_five_per_cent():
    generator = numpy.random.default_rng(0)
    alone = together = 0
    for p_values in generator.uniform(size=(2000, 10)):
        alone += min(p_values) < 0.05
        together += min(holm(p_values.tolist())) < 0.05
    assert together / 2000 == pytest.approx(0.05, abs=0.015)
    assert alone / 2000 > 0.35


@pytest.mark.parametrize("shared", [True, False])
def test_one_more_seed_does_not_take_away_what_was_clear(shared):
    """4,000 draws alone cannot show a p below 0.007 to 0.01, too much for Holm's correction of five tests."""
    values = [0.5 + 0.01 * place for place in range(BOOTSTRAP_FROM)]
    few, enough = (
        seeds_interval(own, Sample.of_errors([0.001] * len(own), SIZE, shared=shared)).basis
        for own in (values[:-1], values)
    )
    assert enough.method == "hierarchical bootstrap"
    assert few.p < 1e-6
    assert enough.p < 1e-6
