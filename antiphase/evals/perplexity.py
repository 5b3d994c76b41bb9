"""Held-out loss: mean -log p of the next token, and its exponential."""

from __future__ import annotations

import math
from typing import Any

from transformers import PreTrainedModel

from antiphase.data.streams import Batch
from antiphase.evals.scoring import negative_log_likelihoods


def perplexity(model: PreTrainedModel, batch: Batch) -> dict[str, Any]:
    """``loss`` in nats per predicted token, ``perplexity`` and the number of predicted ``tokens``.

    Raises:
        NonFiniteError: a loss that is not finite.
    """
    losses = negative_log_likelihoods(model, batch.input_ids, batch.labels)
    loss = losses.double().mean().item()
    return {"loss": loss, "perplexity": math.exp(min(loss, 700.0)), "tokens": losses.numel()}
