"""Scores of an answer: against probabilities multiplied out, and where these round to one."""

import math

import pytest
import torch

from antiphase.attention.answers import answer_scores
from antiphase.base.errors import NonFiniteError


def test_scores_are_those_of_the_product_of_probabilities():
    logits, targets = torch.randn(4, 3, 7), torch.randint(0, 7, (4, 3))
    targets[1, 2] = targets[2, 1] = -1
    logits[0, range(3), targets[0]] += 20
    found = answer_scores(logits, targets)
    for row in range(4):
        product = math.prod(
            logits[row, place].double().softmax(-1)[word].item()
            for place, word in enumerate(targets[row].tolist()) if word >= 0
        )  # fmt: skip
        assert found.log_probability[row] == pytest.approx(math.log(product), rel=1e-9)
        assert found.log_odds[row] == pytest.approx(math.log(product / (1 - product)), rel=1e-5)
    assert found.is_right.tolist() == [
        all(word in (-1, logits[row, place].argmax()) for place, word in enumerate(targets[row].tolist()))
        for row in range(4)
    ]
    assert found.is_right[0]


def test_the_odds_of_a_certain_answer_are_finite():
    found = answer_scores(torch.tensor([[[60.0, 0.0, 0.0]]]), torch.tensor([[0]]))
    assert found.log_odds.item() == pytest.approx(60 - math.log(2), rel=1e-12)


def test_logits_that_are_not_finite_are_refused():
    with pytest.raises(NonFiniteError):
        answer_scores(torch.tensor([[[math.nan, 0.0]]]), torch.tensor([[0]]))
