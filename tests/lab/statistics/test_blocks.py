"""Contrasts of blocks against calculations by hand and simulations: coverage, power at the MDE, the look at pooling."""

import math

import numpy
import pytest

from antiphase.lab.statistics.blocks import Blocks, planned_detectable, smallest_detectable
from antiphase.lab.statistics.intervals import mean_interval
from antiphase.lab.statistics.verdicts import MARGIN

ARMS = tuple("abcde")


def drawn(generator, *, blocks, effect=0.0, spreads=(1.0,) * 5):
    """Arms a, b, … in blocks that differ by three times the residual spread; ``effect`` is a's."""
    noise = generator.normal(size=(len(spreads), blocks)) * numpy.array(spreads)[:, None]
    table = noise + 3 * generator.normal(size=blocks)
    table[0] += effect
    return Blocks(ARMS[: len(spreads)], table)


def test_two_arms_have_students_paired_interval():
    one, other = [0.5, 0.7, 0.4, 0.9], [0.2, 0.6, 0.3, 0.3]
    found = Blocks.of({"a": one, "b": other}).difference("a", "b")
    differences = [first - second for first, second in zip(one, other, strict=True)]
    assert found.interval() == pytest.approx(mean_interval(differences))
    assert (found.blocks, found.degrees) == (4, 3)


def test_pooled_residuals_are_those_of_the_analysis_of_variance():
    # residuals of arm and block, by hand: ±1/6 and ±1/3 around the additive fit of this table
    blocks = Blocks.of({"a": [1.0, 2.0], "b": [2.0, 3.0], "c": [3.0, 5.0]})
    assert blocks.residuals == pytest.approx(numpy.array([[1, -1], [1, -1], [-2, 2]]) / 6)
    assert blocks.spread**2 == pytest.approx((4 * 1 + 2 * 4) / 36 / 2)
    found = blocks.contrast({"c": 1.0, "a": -0.5, "b": -0.5}, pooled=True)
    assert found.estimate == pytest.approx(2.0)
    assert (found.error**2, found.degrees) == (pytest.approx(1.5 * blocks.spread**2 / 2), 2)
    alone = blocks.contrast({"c": 1.0, "a": -0.5, "b": -0.5}, pooled=False)
    assert (alone.error**2, alone.degrees) == (pytest.approx(0.5 / 2), 1)


def test_an_arm_without_a_value_has_no_contrast_and_takes_no_block_away():
    blocks = Blocks.of({"a": [1.0, 2.0, 4.0], "b": [2.0, None, 3.0], "c": [0.0, 1.5, 2.0]})
    assert blocks.difference("b", "a") is None
    assert blocks.difference("c", "a").blocks == 3
    assert Blocks.of({"a": [1.0], "b": [2.0]}) is None
    assert Blocks.of({"a": [None, 1.0]}) is None


def coverage(draws, *, blocks, spreads, effect=0.0):
    """How often a − b holds its true value, and how often residuals were pooled."""
    generator, held, pooled = numpy.random.default_rng(blocks), 0, 0
    for _ in range(draws):
        found = drawn(generator, blocks=blocks, spreads=spreads, effect=effect)
        low, high = found.difference("a", "b").interval()
        held += low <= effect <= high
        pooled += found.is_pooled
    return held / draws, pooled / draws


@pytest.mark.parametrize("blocks", [3, 5, 8])
@pytest.mark.parametrize("arms", [2, 5])
def test_the_interval_covers_the_truth_where_arms_vary_alike(arms, blocks):
    held, pooled = coverage(1500, blocks=blocks, spreads=(1.0,) * arms, effect=0.7)
    assert 0.93 <= held <= 0.97
    assert (pooled == 0) if arms == 2 else (0.85 <= pooled <= 0.95)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("spreads", "blocks", "least", "pools"),
    [
        ((3.0, 1.0, 1.0, 1.0, 1.0), 24, 0.93, 0.05),  # the look sees it
        ((3.0, 1.0, 1.0, 1.0, 1.0), 8, 0.89, 0.3),
        ((2.0, 1.0, 1.0, 1.0, 1.0), 5, 0.86, 0.85),  # too few blocks to see it: the price of pooling
        ((1.0, 1.0, 1.0, 1.0, 2.0), 5, 0.94, 0.85),  # another arm's spread makes the interval longer
    ],
)
def test_what_unequal_arms_cost(spreads, blocks, least, pools):
    held, pooled = coverage(3000, blocks=blocks, spreads=spreads)
    assert held >= least
    assert pooled <= pools


def test_of_two_blocks_the_look_at_pooling_sees_nothing():
    generator = numpy.random.default_rng(5)
    assert {drawn(generator, blocks=2, spreads=(9.0, 1.0, 1.0, 1.0)).pooling_p for _ in range(20)} == {1.0}


def test_nearly_the_same_arms_are_not_pooled_with_others():
    """Two arms that hardly differ leave residuals that are not spherical, although every arm varies as much."""
    generator = numpy.random.default_rng(0)
    table = generator.normal(size=(4, 24))
    table[1] = table[0] + 0.001 * generator.normal(size=24)
    blocks = Blocks(ARMS[:4], table)
    assert not blocks.is_pooled
    assert blocks.difference("a", "b").error < 0.001
    assert blocks.contrast({"a": 1.0, "b": -1.0}, pooled=True).error > 0.1


@pytest.mark.parametrize(("arms", "blocks"), [(2, 5), (5, 5), (4, 8)])
def test_the_mde_is_seen_four_times_in_five(arms, blocks):
    generator, effect = numpy.random.default_rng(arms), planned_detectable(1.0, arms=arms, blocks=blocks)
    seen = 0
    for _ in range(1500):
        found = drawn(generator, blocks=blocks, effect=effect, spreads=(1.0,) * arms)
        low, _ = found.difference("a", "b").interval()
        seen += low > 0
    assert seen / 1500 == pytest.approx(0.8, abs=0.035)


def test_the_mde_of_the_programme():
    """Eight blocks of seven arms see 0.018 to 0.026 nats."""
    found = [planned_detectable(spread, arms=7, blocks=8) for spread in (0.0126, 0.018)]
    assert found == pytest.approx([0.0181, 0.0258], abs=1e-4)
    # a normal distribution in the limit: 1.96 + 0.84
    assert smallest_detectable(1.0, 10_000_000) == pytest.approx(2.8016, abs=1e-3)


@pytest.mark.parametrize(("effect", "expected"), [(MARGIN, 0.05), (0.0, None)])
def test_no_difference_is_said_at_the_margin_in_one_study_of_twenty(effect, expected):
    generator, said = numpy.random.default_rng(3), 0
    for _ in range(2000):
        table = 0.005 * generator.normal(size=(2, 8)) + generator.normal(size=8)
        table[0] += effect
        said += Blocks(("a", "b"), table).difference("a", "b").is_within(MARGIN)
    assert said / 2000 == pytest.approx(expected, abs=0.02) if expected else said / 2000 > 0.95


def test_arms_without_any_spread_have_an_interval_of_no_width():
    found = Blocks.of({"a": [1.0, 2.0, 3.0], "b": [0.5, 1.5, 2.5], "c": [0.0, 1.0, 2.0]}).difference("a", "b")
    assert (found.interval(), found.detectable) == ((0.5, 0.5), 0.0)
    assert math.isclose(Blocks.of({"a": [1.0, 2.0]}).spread, 0.0)
