"""What is told of a grid of learning rates besides its losses."""

import pytest

from antiphase.studies.tune.measure import BEFORE, gradient_spikes

CALM = [1.0, 1.2, 0.9] * 7


@pytest.mark.parametrize(("norms", "count"), [
    (CALM, 0),
    ([*CALM, 5.2], 1),
    ([*CALM, 4.8], 0),
    ([*CALM, 9.0, *CALM, 9.0], 2),
    ([*CALM, None], 1),  # a norm that is no number
    ([100.0, *CALM[: BEFORE - 2]], 0),  # nothing to compare with yet
    ([*[4.0 * 1.1**step for step in range(40)]], 0),  # growing is no spike
    ([None] * 25, 15),
    ([], 0),
])  # fmt: skip
def test_a_spike_stands_far_above_what_came_before(norms, count):
    assert gradient_spikes(norms) == count
