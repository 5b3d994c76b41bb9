"""The words by hand and by their error rates."""

from typing import get_args

import numpy
import pytest

from antiphase.lab.statistics.blocks import Blocks, planned_detectable
from antiphase.lab.statistics.verdicts import Word, verdict


@pytest.mark.parametrize(
    ("interval", "detectable", "paper", "expected"),
    [
        ((0.01, 0.05), 0.03, 0.02, "agrees"),
        ((0.01, 0.05), 0.09, None, "agrees"),
        ((-0.05, -0.01), 0.03, 0.02, "disagrees"),
        ((-0.05, -0.01), 0.09, None, "disagrees"),
        ((-0.01, 0.015), 0.02, 0.02, "disagrees"),  # the paper's effect would have been inside
        ((-0.01, 0.015), 0.03, 0.02, "cannot tell (MDE > the paper's effect)"),  # it would often have been missed
        ((-0.01, 0.03), 0.03, 0.02, "cannot tell (MDE > the paper's effect)"),
        ((-0.001, 0.021), 0.015, 0.02, "cannot tell (the interval holds 0 and the paper's effect)"),
        ((-0.01, 0.03), 0.03, None, "cannot tell (the interval holds 0)"),
    ],
)
def test_words(interval, detectable, paper, expected):
    low, high = interval
    assert str(verdict(interval, lower_is_better=False, detectable=detectable, paper=paper)) == expected
    turned = None if paper is None else -paper
    assert str(verdict((-high, -low), lower_is_better=True, detectable=detectable, paper=turned)) == expected


@pytest.mark.parametrize(("truth", "wrong"), [(0.0, "agrees"), (1.0, "disagrees")], ids=["no effect", "the paper's"])
@pytest.mark.parametrize("size", [0.6, 1.0, 2.0])
def test_the_wrong_word_is_rare_and_the_mde_is_enough_for_the_right_one(truth, wrong, size):
    """``size`` is the MDE, the paper's effect being 1: of a study that sees it, one that just does, a small one."""
    generator, found = numpy.random.default_rng(7), dict.fromkeys(get_args(Word), 0)
    spread = size / planned_detectable(1.0, arms=4, blocks=6)
    for _ in range(1500):
        table = spread * generator.normal(size=(4, 6)) + generator.normal(size=6)
        table[0] += truth
        contrast = Blocks(tuple("abcd"), table).difference("a", "b")
        word = verdict(contrast.interval(), lower_is_better=False, detectable=contrast.detectable, paper=1.0).word
        found[word] += 1
    assert found[wrong] / 1500 <= 0.04
    if size < 1 or (truth and size == 1):
        assert found["agrees" if truth else "disagrees"] / 1500 >= 0.765
