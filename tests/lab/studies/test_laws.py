"""Power laws: known ones come back, and a known saving is found."""

import numpy
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from antiphase.lab.studies.scaling.laws import Law, equal_loss, fit_law

SIZES = [1e5, 3e5, 1e6, 3e6, 1e7]


@pytest.mark.slow
@settings(deadline=None, max_examples=40)
@given(st.floats(0.0, 3.0), st.floats(0.5, 5.0), st.floats(0.08, 0.8))
def test_a_law_without_noise_comes_back(floor, height, exponent):
    law = Law(floor, height * 1e6**exponent, exponent)
    found = fit_law(SIZES, [law(x) for x in SIZES])
    for x in (2e5, 5e6):
        assert found(x) == pytest.approx(law(x), rel=1e-3)
    assert found.inverse(law(2e6)) == pytest.approx(2e6, rel=0.05)


def test_a_loss_below_the_floor_is_never_reached():
    law = Law(2.0, 5.0, 0.3)
    assert law.inverse(1.9) is None
    assert law.inverse(law(1e6)) == pytest.approx(1e6)


def test_too_few_sizes_and_losses_of_nothing_are_refused():
    with pytest.raises(ValueError, match="at least 4 different sizes, got 3"):
        fit_law([1, 2, 3, 3], [3, 2, 1, 1])
    with pytest.raises(ValueError, match="above 0"):
        fit_law([1, 2, 3, 4], [3, 2, 1, 0])


def losses_of(law, seeds, noise, generator):
    return {x: [law(x) * (1 + noise * generator.standard_normal()) for _ in range(seeds)] for x in SIZES}


def test_a_known_saving_is_found():
    """An arm that reaches with 65 % of the parameters what the baseline reaches with all of them."""
    base = Law(1.5, 40.0, 0.25)
    arm = Law(1.5, 40.0 * 0.65**0.25, 0.25)
    generator = numpy.random.default_rng(0)
    exact = equal_loss(losses_of(base, 1, 0.0, generator), losses_of(arm, 1, 0.0, generator))
    assert exact.ratio == pytest.approx(0.65, rel=0.02)
    assert exact.interval is None
    assert exact.baseline == 1e7
    assert exact.loss == pytest.approx(base(1e7), rel=1e-3)
    noisy = equal_loss(losses_of(base, 5, 0.002, generator), losses_of(arm, 5, 0.002, generator))
    low, high = noisy.interval
    assert low < 0.65 < high
    assert high - low < 0.5
    same = equal_loss(losses_of(base, 5, 0.002, generator), losses_of(base, 5, 0.002, generator))
    assert same.interval[0] < 1 < same.interval[1]


def test_an_arm_that_never_gets_there_has_no_ratio():
    generator = numpy.random.default_rng(0)
    found = equal_loss(
        losses_of(Law(1.0, 40.0, 0.25), 2, 0.0, generator), losses_of(Law(3.0, 40.0, 0.25), 2, 0.0, generator)
    )
    assert (found.needed, found.ratio, found.interval) == (None, None, None)


@pytest.mark.slow
def test_intervals_of_the_ratio_hold_the_truth_as_often_as_they_say():
    """With two seeds, where resampling would hold it half the time."""
    base, arm = Law(1.5, 40.0, 0.25), Law(1.5, 40.0 * 0.65**0.25, 0.25)
    generator = numpy.random.default_rng(2)
    held = 0
    for _ in range(20):
        low, high = equal_loss(*(losses_of(law, 2, 1e-4, generator) for law in (base, arm))).interval
        held += low <= 0.65 <= high
    assert held >= 15  # of 19 expected
