"""Keyed permutations: every number once, another order for another key, and none more likely than others."""

from collections import Counter
from itertools import pairwise, permutations

import pytest

from antiphase.base.randomness import KeyedPermutation


def test_a_keyed_permutation_shows_every_number_once():
    for count in (*range(1, 40), 1000, 1023, 1025):
        found = KeyedPermutation(count, 3, "order", 0)
        assert sorted(found) == list(range(count))
        assert [found[place] for place in range(count)] == list(KeyedPermutation(count, 3, "order", 0))


def test_places_outside_and_empty_ranges_are_refused():
    found = KeyedPermutation(5, 0)
    for place in (-1, 5):
        with pytest.raises(IndexError):
            found[place]
    with pytest.raises(ValueError, match="at least 1"):
        KeyedPermutation(0)


def test_every_order_of_four_is_equally_likely_over_keys():
    count = Counter(tuple(KeyedPermutation(4, key)) for key in range(2400))
    assert set(count) == set(permutations(range(4)))
    chi_square = sum((found - 100) ** 2 / 100 for found in count.values())
    assert chi_square < 49.7  # 23 degrees of freedom, p = 0.001


def test_neighbours_do_not_stay_together():
    """The distance of numbers at neighbouring places has the mean of random pairs, a third of the count."""
    for count in (1000, 10_007):
        order = list(KeyedPermutation(count, "distance"))
        distances = [abs(one - other) for one, other in pairwise(order)]
        assert sum(distances) / len(distances) == pytest.approx(count / 3, rel=0.06)
        assert order != list(KeyedPermutation(count, "another"))


def test_a_large_permutation_needs_no_memory():
    found = KeyedPermutation(10**15, 0)
    places = {found[place] for place in range(200)}
    assert len(places) == 200
    assert max(places) > 9 * 10**14
