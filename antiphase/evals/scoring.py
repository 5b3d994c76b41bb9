"""Log-likelihoods and predictions of any causal language model of Hugging Face, in batches that fit in memory."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
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
        row, column = real.nonzero(as_tuple=True)
        found = torch.full_like(places, -1)
        found[row, column] = _logits(model, ids, row, places[row, column] - 1).argmax(-1)
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
        logits = _logits(model, input_ids[rows].to(model.device), *chosen.nonzero(as_tuple=True))
        found.append(cross_entropy(logits.float(), targets[chosen], reduction="none").cpu())
    return torch.cat(found)


def _logits(model: PreTrainedModel, input_ids: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
    """Logits (P, vocabulary) after the tokens at ``rows``, ``columns``, (P,) each; those of every token would not fit.

    The head is handed these tokens alone, so that what a model does to its logits (scaling, soft-capping) is done.
    """

    def choose(_: nn.Module, arguments: tuple[Tensor]) -> tuple[Tensor]:
        return (arguments[0][rows, columns].unsqueeze(0),)  # (1, P, hidden)

    handle = model.get_output_embeddings().register_forward_pre_hook(choose)
    try:
        return model(input_ids=input_ids, use_cache=False).logits[0]
    finally:
        handle.remove()
