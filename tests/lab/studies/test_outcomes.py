"""Which accuracies are split into models that learned and models that did not, by the rule."""

import numpy
import pytest

from antiphase.lab.studies.outcomes import LearnedThreshold, follows, learned_words, split_sentence

LINE = LearnedThreshold.of(0.125, 0.5)


@pytest.mark.parametrize(
    ("values", "split"),
    [
        ([0.98, 0.10, 0.97], True),  # the demo's differential arm
        ([0.17, 0.94, 0.24, 0.97, 0.20], True),
        ([0.56, 0.60, 0.54, 0.18, 0.66], True),
        ([0.94, 0.98, 0.96], False),
        ([0.10, 0.12, 0.14], False),
        ([0.44, 0.47, 0.53, 0.56], False),  # on both sides, without a gap
        ([0.98, 0.70, 0.55], False),  # a gap, but all have learned
        ([0.45, 0.05], False),  # none has
        ([0.98, None, 0.10], True),
        ([0.98], False),
        ([], False),
    ],
)
def test_a_split_has_models_on_both_sides_of_the_line_and_a_gap(values, split):
    assert LINE.splits(values) is split
    counts = LINE.counts({"a": values, "b": [0.9] * len(values)})
    assert (counts is not None) is split
    if counts is not None:
        assert counts["a"] == [sum(value is not None and value > 0.5 for value in values), len(values)]
        assert counts["b"] == [len(values)] * 2


def test_two_arms_of_which_each_is_of_one_kind_are_described_by_means():
    assert LINE.counts({"a": [0.1, 0.12, 0.1], "b": [0.95, 0.97, 0.99]}) is None


def test_accuracies_with_one_hump_are_hardly_ever_called_split():
    """Five models of like skill, spread by six points and measured on 100 sequences each."""
    generator = numpy.random.default_rng(0)
    skills = generator.uniform(0.2, 0.9, (2000, 1)) + generator.normal(0, 0.06, (2000, 5))
    measured = generator.binomial(100, skills.clip(0, 1)) / 100
    assert numpy.mean([LINE.splits(row.tolist()) for row in measured]) < 0.02


def test_the_line_is_halfway_where_no_threshold_is_above_the_guess():
    assert LearnedThreshold.of(0.5).at == LearnedThreshold.of(0.5, 0.5).at == 0.75
    assert LearnedThreshold.of(0.25, 0.5).at == 0.5


def test_a_loss_follows_who_learned_only_if_it_falls_into_the_same_groups():
    accuracies = [0.98, 0.10, 0.97]
    assert follows([0.258, 1.692, 0.324], accuracies, LINE)
    assert not follows([0.258, 0.300, 0.324], accuracies, LINE)  # between the two
    assert not follows([0.2, 0.5, 0.45], accuracies, LINE)  # further apart within than between
    assert not follows([3.65, 3.62, 3.60, 3.58, 3.60], [0.17, 0.94, 0.24, 0.97, 0.20], LINE)  # a loss on text
    assert not follows([0.258, 1.692, 0.324], [0.98, 0.95, 0.97], LINE)
    assert not follows([3.60, 3.55, 3.62], accuracies, LINE)  # who did not learn has the lowest


def test_words():
    counts = {"softmax": [3, 3], "differential": [0, 1]}
    assert learned_words(counts) == "softmax in 3 of 3 seeds, differential in 0 of 1 seed"
    assert split_sentence("first-query accuracy", counts, LINE) == (
        "First-query accuracy: models either learned (above 50 %) or did not; learned: softmax in 3 of 3 seeds, "
        "differential in 0 of 1 seed."
    )
