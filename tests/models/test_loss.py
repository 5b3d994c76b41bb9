"""The loss of language-model heads is transformers' own."""

import pytest
import torch
from transformers.loss.loss_utils import ForCausalLMLoss

from antiphase.models.loss import next_token_loss

ROWS, TOKENS, VOCABULARY = 3, 17, 50


def drawn(dtype):
    logits = torch.randn(ROWS, TOKENS, VOCABULARY).to(dtype)
    labels = torch.randint(VOCABULARY, (ROWS, TOKENS))
    labels[0, :6] = -100
    return logits.requires_grad_(), labels


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize(
    "further",
    [
        {},
        {"num_items_in_batch": 31},
        {"num_items_in_batch": torch.tensor(31)},
        {"ignore_index": 7},
        {"output_attentions": True},
    ],
    ids=lambda further: ", ".join(further),
)
@pytest.mark.parametrize("shifted", [False, True])
def test_loss_and_gradient_are_those_of_transformers(dtype, further, shifted):
    logits, labels = drawn(dtype)
    if "ignore_index" in further:
        labels[0, :6] = 7
    names = {"labels": None, "shift_labels": labels} if shifted else {"labels": labels}
    ours, theirs = (f(logits, vocab_size=VOCABULARY, **names, **further) for f in (next_token_loss, ForCausalLMLoss))
    torch.testing.assert_close(ours, theirs)
    grads = [torch.autograd.grad(loss, logits)[0] for loss in (ours, theirs)]
    torch.testing.assert_close(*grads)


def test_labels_that_all_are_ignored_have_no_mean():
    logits, labels = drawn(torch.float32)
    assert next_token_loss(logits, torch.full_like(labels, -100), VOCABULARY).isnan()


def test_fp64_stays_fp64():
    logits, labels = drawn(torch.float64)
    assert next_token_loss(logits, labels, VOCABULARY).dtype == torch.float64
