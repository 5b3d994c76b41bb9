"""Where accuracy falls to a half, of systems whose crossing is known."""

import math

import numpy
import pytest

from antiphase.lab.scoring.needles import crossings
from antiphase.lab.statistics.crossings import crossed

NEEDLES = [2, 4, 8, 16, 32, 64]


def chances(at, fall):
    """Of a system that crosses a half at ``at`` and loses ``fall`` of log-odds per doubling."""
    return [1 / (1 + math.exp(-fall * (math.log2(at) - math.log2(size)))) for size in NEEDLES]


@pytest.mark.parametrize(
    ("at", "fall"), [(12, 2.0), *(pytest.param(*one, marks=pytest.mark.slow) for one in ((5, 1.0), (30, 3.0)))]
)
def test_the_crossing_of_a_known_system_is_found_and_its_interval_has_it_95_times_in_100(at, fall):
    exact = crossed(NEEDLES, [round(100_000 * chance) for chance in chances(at, fall)], [100_000] * 6)
    assert exact.value == pytest.approx(at, rel=0.005)
    draw = numpy.random.default_rng(1)
    found = [crossed(NEEDLES, draw.binomial(100, chances(at, fall)), [100] * 6) for _ in range(100)]
    inside = [(low or 0) <= at <= (high or math.inf) for low, high in (one.interval for one in found)]
    assert 0.88 <= numpy.mean(inside) <= 0.99
    errors = [math.log2(one.value / at) for one in found]
    assert abs(numpy.mean(errors)) < 3 * numpy.std(errors) / math.sqrt(100) + 0.02
    few = crossed(NEEDLES, [round(20 * chance) for chance in chances(at, fall)], [20] * 6).interval
    many = crossed(NEEDLES, [round(500 * chance) for chance in chances(at, fall)], [500] * 6).interval
    assert (few[0] or 0) < many[0] < at < many[1] < (few[1] or math.inf)


def test_what_is_always_right_or_always_wrong_crosses_nowhere():
    always = crossed(NEEDLES, [100] * 6, [100] * 6)
    assert (always.value, always.beyond, always.interval) == (None, "above", (64.0, None))
    never = crossed(NEEDLES, [0] * 6, [100] * 6)
    assert (never.value, never.beyond, never.interval) == (None, "below", (None, 2.0))


def test_a_system_that_guesses_crosses_at_the_smallest_number_or_below():
    """One of N numbers named at random is right half of the time with two needles."""
    draw = numpy.random.default_rng(2)
    for _ in range(20):
        found = crossed(NEEDLES, draw.binomial(200, [1 / size for size in NEEDLES]), [200] * 6)
        assert found.beyond == "below" or found.value < 2.6
        assert found.interval[0] is None or found.interval[0] < 2.2
    lengths = crossed([128, 256, 512, 1024], [25, 24, 26, 25], [200] * 4)  # one of eight
    assert (lengths.value, lengths.beyond, lengths.interval) == (None, "below", (None, 128.0))


def test_a_step_lies_anywhere_between_its_neighbours():
    found = crossed(NEEDLES, [100, 100, 100, 0, 0, 0], [100] * 6)
    assert 8 < found.value < 16
    assert found.value == pytest.approx(math.sqrt(8 * 16), rel=0.01)
    low, high = found.interval
    assert 8 <= low < 8.5
    assert 15 < high <= 16


def test_accuracy_that_rises_crosses_on_no_side_that_was_not_measured():
    rising = crossed([2, 8, 32], [60, 80, 95], [100] * 3)
    assert (rising.value, rising.beyond) == (None, "above")
    half = crossed([2, 8, 32], [50, 50, 50], [100] * 3)
    assert half.interval == (None, None)


def test_a_crossing_beyond_the_sizes_has_no_value_though_its_interval_begins_within_them():
    found = crossed(NEEDLES, [20, 20, 20, 20, 19, 14], [20] * 6)
    assert (found.value, found.beyond, found.interval[1]) == (None, "above", None)
    assert 32 < found.interval[0] < 64


def test_a_crossing_near_the_end_has_an_open_interval():
    found = crossed(NEEDLES, [20, 20, 19, 18, 15, 9], [20] * 6)
    assert 32 < found.value <= 64
    assert found.interval[0] is not None
    assert found.interval[1] is None


def cell(needles, length, correct, depth=None, queries=1):
    return {
        "needles": needles, "length": length, "queries": queries, "depth": depth, "correct": correct, "samples": 50,
    }  # fmt: skip


def test_a_grid_gives_a_crossing_for_each_line_of_three_sizes():
    correct = {2: 50, 8: 40, 32: 5}
    cells = [cell(needles, length, correct[needles]) for needles in (32, 2, 8) for length in (100, 400)]
    cells += [cell(8, 200, 30), cell(8, 1600, 10), cell(2, 100, 0, depth=0.5), cell(2, 100, 0, queries=2)]
    found = crossings(cells)
    assert [(row["over"], row["at"], row["queries"], row["sizes"]) for row in found] == [
        ("needles", 100, 1, [2, 8, 32]), ("needles", 400, 1, [2, 8, 32]), ("length", 8, 1, [100, 200, 400, 1600]),
    ]  # fmt: skip
    assert found[0]["value"] == crossed([2, 8, 32], [50, 40, 5], [50] * 3).value
    assert 8 < found[0]["value"] < 32
    assert 400 < found[2]["value"] < 1600
    assert found[2]["samples"] == 200
