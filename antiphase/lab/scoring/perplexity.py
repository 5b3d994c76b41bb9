"""Held-out loss (mean -log p of the next token) and its exponential."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from transformers import PreTrainedModel

from antiphase.lab.scoring.division import Divide, alone
from antiphase.lab.scoring.likelihood import negative_log_likelihoods
from antiphase.lab.text.streams import Batch


def perplexity(
    model: PreTrainedModel,
    batch: Batch,
    report: Callable[[int, int], None] = lambda done, count: None,
    divide: Divide = alone,
) -> dict[str, Any]:
    """``loss`` in nats per predicted token, ``perplexity`` and the number of predicted ``tokens``.

    ``report`` is called with the numbers of finished sequences and of all; ``divide`` says how several processes divide
    the forward passes.

    Raises:
        NonFiniteError: a loss is not finite.
    """
    losses = negative_log_likelihoods(model, batch.input_ids, batch.labels, report, divide)
    loss = losses.double().mean().item()
    return {"loss": loss, "perplexity": math.exp(min(loss, 700.0)), "tokens": losses.numel()}


def losses_by_sequence(model: PreTrainedModel, batch: Batch) -> list[float]:
    """One number per sequence for confidence intervals; their mean is the loss in nats per predicted token.

    If sequences have different numbers of predicted tokens, the loss is a ratio of sums. Each number is then the loss
    plus the sequence's influence on it (the linearized ratio estimator, Cochran 1977, section 6.4).
    """
    losses = negative_log_likelihoods(model, batch.input_ids, batch.labels).double()
    tokens = (batch.labels[:, 1:] >= 0).sum(1)
    sums = torch.stack([part.sum() for part in losses.split(tokens.tolist())])
    loss = losses.mean()
    found: list[float] = (loss + (sums - loss * tokens) / tokens.double().mean()).tolist()
    return found
