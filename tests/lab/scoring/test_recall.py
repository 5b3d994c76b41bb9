"""AR-hit: pairs of the context, without those that training showed often; systems whose split is known."""

import itertools
import math
from types import SimpleNamespace

import numpy
import pytest
import torch
from torch import nn
from transformers import PreTrainedConfig

from antiphase.lab.scoring import recall
from antiphase.lab.scoring.recall import count_pairs, recall_losses, recall_slices, repeated_pairs
from antiphase.lab.text.streams import Batch

WORDS = 50


def batch_of(ids, labels=None):
    return Batch(ids, ids if labels is None else labels)


def by_hand(ids):
    found = torch.zeros_like(ids, dtype=torch.bool)
    for row in range(len(ids)):
        seen = set()
        for place in range(1, ids.shape[1]):
            pair = (int(ids[row, place - 1]), int(ids[row, place]))
            found[row, place] = pair in seen
            seen.add(pair)
    return found


class System(nn.Module):
    """A language model by rule: log probabilities from what stands before."""

    device = torch.device("cpu")
    config = PreTrainedConfig(vocab_size=WORDS)

    def __init__(self, rule):
        super().__init__()
        self.rule, self.head = rule, nn.Identity()

    def get_output_embeddings(self):
        return self.head

    def forward(self, input_ids, **kwargs):
        return SimpleNamespace(logits=self.head(torch.stack([self.rule(row) for row in input_ids])))


def uniform(row):
    return torch.zeros(len(row), WORDS)


def copying(row):
    """What followed this token the last time; else nothing is known."""
    logits, following = torch.zeros(len(row), WORDS), {}
    for place, token in enumerate(row.tolist()):
        if token in following:
            logits[place, following[token]] = 40.0
        if place + 1 < len(row):
            following[token] = int(row[place + 1])
    return logits


def walks(rows, length):
    """Rows in which a word is always followed by the same one: cycles, entered anew now and then."""
    found = []
    for row in range(rows):
        order = torch.randperm(WORDS, generator=torch.Generator().manual_seed(row))[: length // 2]
        found.append(order.repeat(3)[:length])
    return torch.stack(found)


def test_repeated_pairs_are_those_of_a_plain_count():
    ids = torch.randint(0, 6, (7, 23))
    assert torch.equal(repeated_pairs(ids), by_hand(ids))
    assert by_hand(ids).any()
    same = torch.tensor([[4, 4, 4, 4]])
    assert repeated_pairs(same).tolist() == [[False, False, True, True]]


@pytest.mark.parametrize("at_once", [1, 3, 1000])
@pytest.mark.parametrize("kind", ["uint16", "uint32"])
def test_counting_pairs_does_not_depend_on_the_cut(monkeypatch, at_once, kind):
    monkeypatch.setattr(recall, "TOKENS_AT_ONCE", at_once)
    tokens = numpy.random.default_rng(0).integers(0, 5, 61).astype(kind)
    pairs = [(a, b) for a in range(7) for b in range(7)]
    wanted = numpy.array([(a << 32) + b for a, b in pairs])
    found = count_pairs(tokens, wanted)
    expected = [sum((x, y) == pair for x, y in itertools.pairwise(tokens)) for pair in pairs]
    assert found.tolist() == expected


def test_a_copying_system_is_perfect_on_hits_and_a_uniform_one_alike_everywhere():
    slices = recall_slices(batch_of(walks(5, 20)), None, frequent=5)
    assert slices.hits.sum() == 5 * 9  # the second round, but for the step from its last word to its first
    found = recall_losses(System(copying), slices)
    assert found["ar_hit"] < 1e-6
    assert found["others"] == pytest.approx(math.log(WORDS))
    found = recall_losses(System(uniform), slices)
    assert found["ar_hit"] == pytest.approx(found["others"]) == pytest.approx(found["loss"])
    assert found["loss"] == pytest.approx(math.log(WORDS))


def test_pairs_that_training_showed_often_are_others():
    ids = walks(1, 20)
    pair = ids[0, 2:4].numpy()
    training = numpy.tile(pair, 4).astype(numpy.uint16)  # the pair 4 times, its reverse 3 times
    for frequent, missing in ((3, 1), (4, 0)):
        slices = recall_slices(batch_of(ids), training, frequent=frequent)
        assert slices.describe() == {
            "frequent": frequent, "repeated": 9, "left_out": missing, "training_tokens": 8, "hits": 9 - missing
        }  # fmt: skip
        assert bool(slices.hits[0, 13]) == (missing == 0)
        found = recall_losses(System(copying), slices)
        assert found["others"] == pytest.approx(math.log(WORDS) * 10 / (10 + missing))


def test_only_predicted_tokens_count_and_an_empty_slice_is_none():
    ids = walks(2, 20)
    labels = ids.clone()
    labels[:, 11:] = -100
    slices = recall_slices(batch_of(ids, labels), None, frequent=5)
    assert not slices.hits.any()
    assert recall_losses(System(uniform), slices)["ar_hit"] is None
    labels = torch.full_like(ids, -100)
    labels[0, 12], labels[1, 5] = ids[0, 12], ids[1, 5]
    found = recall_losses(System(copying), recall_slices(batch_of(ids, labels), None, frequent=5))
    assert found["ar_hit"] < 1e-6
    assert found["others"] == pytest.approx(math.log(WORDS))
