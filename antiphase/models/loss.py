"""The loss of language-model heads."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from antiphase.ops.layer import cross_entropies
from antiphase.ops.shapes import IGNORED_TARGET


def next_token_loss(
    logits: Tensor,
    labels: Tensor | None,
    vocab_size: int,
    num_items_in_batch: Tensor | int | None = None,
    ignore_index: int = IGNORED_TARGET,
    shift_labels: Tensor | None = None,
    **kwargs: Any,
) -> Tensor:
    """Mean of -log p of the next tokens in nats, 0-d: what transformers' ``ForCausalLMLoss`` computes.

    Args:
        logits: (B, N, vocab_size); the loss is in fp32, or in fp64 for fp64.
        labels: (B, N) token ids; position i is predicted from the logits at i - 1.
        vocab_size: size of the last dimension.
        num_items_in_batch: divisor of the sum, with gradient accumulation; by default the number of labels that count.
        ignore_index: label of positions that do not count.
        shift_labels: (B, N) token ids that the logits at the same place predict; they replace ``labels``.
        kwargs: other arguments of the model, not used.
    """
    if shift_labels is None:
        assert labels is not None, "a loss needs labels or shift_labels"
        shift_labels = nn.functional.pad(labels, (0, 1), value=ignore_index)[..., 1:]
    targets = shift_labels.reshape(-1).to(logits.device)
    if ignore_index != IGNORED_TARGET:
        targets = targets.masked_fill(targets == ignore_index, IGNORED_TARGET)
    total = cross_entropies(logits.reshape(-1, vocab_size), targets).sum()
    count = (targets != IGNORED_TARGET).sum() if num_items_in_batch is None else num_items_in_batch
    return total / (count.to(total.device) if isinstance(count, Tensor) else count)
