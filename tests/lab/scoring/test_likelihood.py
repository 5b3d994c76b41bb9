"""Losses and predictions equal the model's own, whatever the batching, for models of any maker."""

import math

import pytest
import torch
from torch.nn.functional import cross_entropy
from transformers import Gemma2Config, Gemma2ForCausalLM

from antiphase.lab.scoring import likelihood
from antiphase.lab.scoring.beginnings import PADDING, batches
from antiphase.lab.scoring.likelihood import greedy_predictions, negative_log_likelihoods
from antiphase.lab.scoring.perplexity import losses_by_sequence, perplexity
from antiphase.lab.text.streams import Batch
from support.models import SIZES


@pytest.fixture(params=["softmax", "differential", "llama", "gpt2", "gemma2"])
def model(request, any_model):
    if request.param != "gemma2":
        return any_model(request.param)
    squeezing = {"final_logit_softcapping": 2.0, "attn_implementation": "eager"}  # its logits, after the head
    found = Gemma2ForCausalLM(Gemma2Config(**SIZES, head_dim=8, **squeezing)).eval()
    with torch.no_grad():
        for parameter in found.parameters():
            parameter += 0.2 * torch.randn_like(parameter)
    return found


def labelled(rows=5, length=17):
    ids = torch.randint(3, 61, (rows, length))
    return ids, ids.masked_fill(torch.rand(rows, length) < 0.4, -100)


def test_perplexity_equals_the_loss_of_the_model_itself(model):
    ids, labels = labelled()
    found = perplexity(model, Batch(ids, labels))
    expected = model(ids, labels=labels).loss.item()
    assert found["loss"] == pytest.approx(expected, rel=1e-5)
    assert found["perplexity"] == pytest.approx(math.exp(expected), rel=1e-5)
    assert found["tokens"] == (labels[:, 1:] != -100).sum()


def test_likelihoods_come_in_the_order_of_rows_and_positions(model):
    ids, labels = labelled()
    logits = model(ids).logits[:, :-1]
    each = cross_entropy(logits.transpose(1, 2), labels[:, 1:], reduction="none")
    found = negative_log_likelihoods(model, ids, labels)
    assert found.dtype == torch.float32
    torch.testing.assert_close(found, each[labels[:, 1:] != -100].float(), rtol=1e-5, atol=1e-5)


def test_large_vocabularies_are_read_in_smaller_batches(tiny_model, monkeypatch):
    model, (ids, labels) = tiny_model(), labelled()
    whole, rows = negative_log_likelihoods(model, ids, labels), []
    model.register_forward_pre_hook(lambda module, given, named: rows.append(len(named["input_ids"])), with_kwargs=True)
    monkeypatch.setattr(likelihood, "LOGITS_AT_ONCE", 2 * ids.shape[1] * model.config.vocab_size)
    torch.testing.assert_close(negative_log_likelihoods(model, ids, labels), whole, rtol=1e-5, atol=1e-5)
    assert rows == [2, 2, 1]


@pytest.mark.parametrize("tokens", [1, 17, 40, 10**6])
def test_batching_changes_no_figure(tiny_model, monkeypatch, tokens):
    model, (ids, labels) = tiny_model(), labelled()
    positions = torch.tensor([[1, 16, -1], [3, 4, 5], [-1, -1, -1], [16, 2, 9], [7, 7, 8]])
    likelihoods = negative_log_likelihoods(model, ids, labels)
    predictions = greedy_predictions(model, ids, positions)
    monkeypatch.setattr(likelihood, "TOKENS_AT_ONCE", tokens)
    torch.testing.assert_close(negative_log_likelihoods(model, ids, labels), likelihoods, rtol=1e-5, atol=1e-5)
    assert torch.equal(greedy_predictions(model, ids, positions), predictions)


def test_a_prediction_is_the_first_choice_given_all_before_it(model):
    ids, _ = labelled()
    positions = torch.tensor([[1, 16, -1], [3, 4, 5], [-1, -1, -1], [16, 2, 9], [7, 7, 8]])
    choices = model(ids).logits.argmax(-1)
    found = greedy_predictions(model, ids, positions)
    for row in range(5):
        for place, token in zip(positions[row].tolist(), found[row].tolist(), strict=True):
            assert token == (-1 if place < 0 else choices[row, place - 1])
    later = ids.clone()
    later[:, 10:] = 5  # nothing after a position matters
    early = positions.clamp(max=9)
    assert torch.equal(greedy_predictions(model, later, early), greedy_predictions(model, ids, early))


def test_nothing_is_predicted_at_the_first_token(tiny_model):
    ids, _ = labelled(2)
    assert greedy_predictions(tiny_model(), ids, torch.tensor([[0], [-1]])).tolist() == [[-1], [-1]]
    only_first = torch.full_like(ids, -100)
    only_first[:, 0] = ids[:, 0]
    assert negative_log_likelihoods(tiny_model(), ids, only_first).numel() == 0


def test_an_untrained_model_has_about_the_perplexity_of_guessing(tiny_config):
    import antiphase

    ids = torch.randint(3, 61, (4, 30))
    found = perplexity(antiphase.AntiphaseForCausalLM(tiny_config()).eval(), Batch(ids, ids))
    assert found["perplexity"] == pytest.approx(61, rel=0.1)
    assert found["tokens"] == 4 * 29


def test_a_hopeless_model_has_a_finite_perplexity(tiny_model):
    model = tiny_model("softmax")
    with torch.no_grad():
        model.lm_head.weight *= 1e4
    ids = torch.randint(3, 61, (2, 9))
    found = perplexity(model, Batch(ids, ids))
    assert found["loss"] > 700
    assert math.isfinite(found["perplexity"])


def test_the_losses_of_sequences_have_the_loss_as_their_mean_and_its_standard_error(tiny_model):
    """Sequences predict different numbers of tokens, so the loss is a ratio; its error is known from many draws."""
    model = tiny_model("softmax")
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(1, 61, (60, 12), generator=generator)
    labels = ids.clone()
    for row, hidden in enumerate(torch.randint(0, 9, (60,), generator=generator).tolist()):
        labels[row, 1 : 1 + hidden] = -100
    found = torch.tensor(losses_by_sequence(model, Batch(ids, labels)))
    assert found.mean().item() == pytest.approx(perplexity(model, Batch(ids, labels))["loss"], rel=1e-6)

    losses = negative_log_likelihoods(model, ids, labels).double()
    tokens = (labels[:, 1:] >= 0).sum(1)
    sums = torch.stack([part.sum() for part in losses.split(tokens.tolist())])
    drawn = torch.randint(0, 60, (4000, 60), generator=generator)
    spread = (sums[drawn].sum(1) / tokens[drawn].sum(1)).std().item()
    assert found.std().item() / 60**0.5 == pytest.approx(spread, rel=0.06)


def test_batches_of_prompts_with_options_have_little_padding(tiny_model):
    """Until a batch holds enough tokens, it may; each prompt stands in one batch, and none has too many tokens."""
    generator = torch.Generator().manual_seed(5)
    lengths = torch.randint(3, 90, (300,), generator=generator).tolist()
    prompts = [[0] * length for length in lengths]
    model = tiny_model()
    found = list(batches(model, prompts, 1500, filled=200))
    assert sorted(row for rows in found for row in rows) == list(range(300))
    for rows in found:
        *real, longest = sorted(lengths[row] for row in rows)
        assert len(rows) * longest <= 1500
        padded = len(rows) * longest - sum(real) - longest
        assert padded <= PADDING * len(rows) * longest or sum(real) < 200
    padding = sum(len(rows) * max(lengths[row] for row in rows) for rows in found) - sum(lengths)
    assert padding < PADDING * sum(lengths)
    assert len(found) < 30
    assert [len(rows) for rows in batches(model, [[0], [0] * 90], 1500)] == [2]
