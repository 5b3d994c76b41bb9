"""The loss on what the context has said before, and on the rest: AR-hit (Zoology, Arora et al., 2312.04927).

A predicted token is an AR-hit if it and the token before it stood together earlier in the same sequence, so that it can
be looked up there, and if training did not show the pair so often that it is known anyway.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy
import torch
from torch import Tensor
from transformers import PreTrainedModel

from antiphase.data.streams import Batch
from antiphase.scoring.likelihood import negative_log_likelihoods

TOKENS_AT_ONCE = 1 << 22
"""Training tokens that are looked through in one step."""


@dataclass(frozen=True)
class RecallSlices:
    """Which predicted tokens of a batch are AR-hits, and how that came about."""

    batch: Batch
    hits: Tensor
    """(B, L) bool."""
    frequent: int
    repeated: int
    """Predicted tokens whose pair stood earlier in the sequence."""
    left_out: int
    """Of those, how many training showed more than ``frequent`` times."""
    training_tokens: int
    """Tokens among which pairs were counted; 0: a synthetic task, from which nothing is left out."""

    def describe(self) -> dict[str, Any]:
        """For a record."""
        names = ("frequent", "repeated", "left_out", "training_tokens")
        return {name: getattr(self, name) for name in names} | {"hits": int(self.hits.sum())}


def recall_slices(batch: Batch, training: numpy.ndarray[Any, Any] | None, *, frequent: int) -> RecallSlices:
    """Divide the predicted tokens of a batch.

    Args:
        training: (tokens,) ids of the training text; None: there is none.
        frequent: pairs that stand more often in it are no hits; Zoology allows 1,250 times in 10B tokens.
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
    """Where a token and the one before it stood together earlier in the row: (B, L) bool."""
    pairs = _pairs(input_ids).numpy()
    found = torch.ones(input_ids.shape, dtype=torch.bool)
    found[:, 0] = False
    for row, values in enumerate(pairs):
        first = numpy.unique(values, return_index=True)[1]
        found[row, 1 + torch.from_numpy(first)] = False
    return found


def count_pairs(tokens: numpy.ndarray[Any, Any], wanted: numpy.ndarray[Any, Any]) -> numpy.ndarray[Any, Any]:
    """How often each of the pairs ``wanted`` (sorted, as ``_pairs`` numbers them) stands in ``tokens``: int64."""
    counts = numpy.zeros(len(wanted), dtype=numpy.int64)
    for start in range(0, len(tokens) - 1, TOKENS_AT_ONCE):
        part = torch.from_numpy(tokens[start : start + TOKENS_AT_ONCE + 1].astype(numpy.int64))
        pairs = _pairs(part[None])[0].numpy()
        places = numpy.searchsorted(wanted, pairs).clip(max=len(wanted) - 1)
        counts += numpy.bincount(places[wanted[places] == pairs], minlength=len(wanted))
    return counts


def _pairs(input_ids: Tensor) -> Tensor:
    """Neighbours as one number: (B, L) to (B, L - 1) int64."""
    return (input_ids[:, :-1] << 32) + input_ids[:, 1:]
