"""Log-likelihoods and predictions of any causal language model of Hugging Face, in batches that fit in memory."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy
from transformers import PreTrainedModel

Predict = Callable[[Tensor, Tensor], Tensor]
"""Token ids (B, L) and positions (B, P) to the greedy token (B, P) for each position, given all tokens before it."""

TOKENS_AT_ONCE = 16384
"""Tokens of one forward pass."""


@torch.no_grad()
def greedy_predictions(model: PreTrainedModel, input_ids: Tensor, positions: Tensor) -> Tensor:
    """The model's first choice for the token at each position, given the true tokens before it.

    A whole answer is what greedy decoding would produce exactly if every one of its tokens is the first choice here.

    Args:
        input_ids: (B, L).
        positions: (B, P), each at least 1; below 0 means none, and gives -1.

    Returns:
        (B, P) int64 on the CPU.
    """
    chosen = torch.full_like(positions, -1)
    size = max(1, TOKENS_AT_ONCE // input_ids.shape[1])
    for start in range(0, len(input_ids), size):
        rows = slice(start, start + size)
        ids, places = input_ids[rows].to(model.device), positions[rows].to(model.device)
        real = places > 0
        hidden = _hidden_states(model, ids)
        row, column = real.nonzero(as_tuple=True)
        logits = model.get_output_embeddings()(hidden[row, places[row, column] - 1])
        found = torch.full_like(places, -1)
        found[row, column] = logits.argmax(-1)
        chosen[rows] = found.cpu()
    return chosen


@torch.no_grad()
def negative_log_likelihoods(model: PreTrainedModel, input_ids: Tensor, labels: Tensor) -> Tensor:
    """-log p in nats of each predicted token, flat, in the order of rows and positions; fp32 on the CPU.

    Args:
        input_ids, labels: (B, L); -100 in ``labels`` is not predicted, nor is a row's first token.
    """
    found = []
    size = max(1, TOKENS_AT_ONCE // input_ids.shape[1])
    for start in range(0, len(input_ids), size):
        rows = slice(start, start + size)
        targets = labels[rows, 1:].to(model.device)
        chosen = targets >= 0
        hidden = _hidden_states(model, input_ids[rows].to(model.device))[:, :-1]
        logits = model.get_output_embeddings()(hidden[chosen])
        found.append(cross_entropy(logits.float(), targets[chosen], reduction="none").cpu())
    return torch.cat(found)


def _hidden_states(model: PreTrainedModel, input_ids: Tensor) -> Tensor:
    """Last hidden states (B, L, hidden): the vocabulary-wide logits of every token would not fit."""
    return model.base_model(input_ids=input_ids, use_cache=False).last_hidden_state
