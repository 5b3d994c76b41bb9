"""The loss on tokens that can be recalled from the context (AR-hits; Zoology, Arora et al., 2312.04927) and others.

A predicted token is an AR-hit if the bigram of it and the previous token occurred earlier in the sequence, so that it
can be recalled, and if the bigram is not so frequent in the training text that it is memorized.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy
import torch
from torch import Tensor
from transformers import PreTrainedModel

from antiphase.lab.scoring.likelihood import negative_log_likelihoods
from antiphase.lab.text.streams import Batch

TOKENS_AT_ONCE = 1 << 22
"""Number of training tokens that are searched in one step."""


@dataclass(frozen=True)
class RecallSlices:
    """Which predicted tokens of a batch are AR-hits, and the counts behind this."""

    batch: Batch
    hits: Tensor
    """(B, L) bool."""
    frequent: int
    repeated: int
    """Predicted tokens whose bigram occurred earlier in the sequence."""
    left_out: int
    """Those of them whose bigram occurs more than ``frequent`` times in the training text."""
    training_tokens: int
    """Training tokens in which bigrams were counted; 0 for a synthetic task, in which no bigram is excluded."""

    def describe(self) -> dict[str, Any]:
        """Values for a record."""
        names = ("frequent", "repeated", "left_out", "training_tokens")
        return {name: getattr(self, name) for name in names} | {"hits": int(self.hits.sum())}


def recall_slices(batch: Batch, training: numpy.ndarray[Any, Any] | None, *, frequent: int) -> RecallSlices:
    """Divide the predicted tokens of a batch into AR-hits and others.

    Args:
        training: (tokens,) ids of the training text; None if there is none.
        frequent: bigrams that are more frequent in it are not hits; Zoology uses 1,250 in 10B tokens.
    """
    predicted = torch.zeros_like(batch.labels, dtype=torch.bool)
    predicted[:, 1:] = batch.labels[:, 1:] >= 0
    candidates = repeated_pairs(batch.input_ids) & predicted
    hits = candidates.clone()
    if training is not None and bool(candidates.any()):
        pairs = _pairs(batch.input_ids)  # (B, L - 1)
        here = candidates[:, 1:]
        wanted, places = numpy.unique(pairs[here].numpy(), return_inverse=True)
        counts = torch.from_numpy(count_pairs(training, wanted)[places])
        hits[:, 1:][here] = counts <= frequent
    count = int(candidates.sum())
    return RecallSlices(
        batch, hits, frequent, repeated=count, left_out=count - int(hits.sum()),
        training_tokens=0 if training is None else len(training),
    )  # fmt: skip


def recall_losses(model: PreTrainedModel, slices: RecallSlices) -> dict[str, float | None]:
    """``loss``, ``ar_hit`` and ``others`` in nats per token; None for a slice without tokens."""
    batch = slices.batch
    losses = negative_log_likelihoods(model, batch.input_ids, batch.labels).double()
    is_hit = slices.hits[:, 1:][batch.labels[:, 1:] >= 0]  # in the order of the losses

    def mean(chosen: Tensor) -> float | None:
        return losses[chosen].mean().item() if bool(chosen.any()) else None

    return {"loss": losses.mean().item(), "ar_hit": mean(is_hit), "others": mean(~is_hit)}


def repeated_pairs(input_ids: Tensor) -> Tensor:
    """Which tokens form a bigram with the previous token that occurred earlier in the row: (B, L) bool."""
    pairs = _pairs(input_ids).numpy()
    found = torch.ones(input_ids.shape, dtype=torch.bool)
    found[:, 0] = False
    for row, values in enumerate(pairs):
        first = numpy.unique(values, return_index=True)[1]
        found[row, 1 + torch.from_numpy(first)] = False
    return found


def count_pairs(tokens: numpy.ndarray[Any, Any], wanted: numpy.ndarray[Any, Any]) -> numpy.ndarray[Any, Any]:
    """Frequency in ``tokens`` of each bigram in ``wanted`` (sorted codes of ``_pairs``): int64."""
    counts = numpy.zeros(len(wanted), dtype=numpy.int64)
    for start in range(0, len(tokens) - 1, TOKENS_AT_ONCE):
        part = torch.from_numpy(tokens[start : start + TOKENS_AT_ONCE + 1].astype(numpy.int64))
        pairs = _pairs(part[None])[0].numpy()
        places = numpy.searchsorted(wanted, pairs).clip(max=len(wanted) - 1)
        counts += numpy.bincount(places[wanted[places] == pairs], minlength=len(wanted))
    return counts


def _pairs(input_ids: Tensor) -> Tensor:
    """Bigrams as integer codes: (B, L) to (B, L - 1) int64."""
    return (input_ids[:, :-1] << 32) + input_ids[:, 1:]
