"""Texts of unequal lengths in one batch: token ids, the mask of real tokens, and what a model must know of it."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any, Literal

import torch
from torch import Tensor
from transformers import PreTrainedModel

from antiphase.layers.positions import count_positions


def padded(
    rows: Sequence[Sequence[int]], device: torch.device, *, side: Literal["left", "right"] = "left"
) -> tuple[Tensor, Tensor]:
    """Token ids (B, L), padded with id 0, and an int64 mask (B, L) of real tokens."""
    longest = max(map(len, rows))
    ids = torch.zeros(len(rows), longest, dtype=torch.int64)
    mask = torch.zeros_like(ids)
    for index, row in enumerate(rows):
        here = slice(longest - len(row), longest) if side == "left" else slice(0, len(row))
        ids[index, here] = torch.tensor(row)
        mask[index, here] = 1
    return ids.to(device), mask.to(device)


def padding(model: PreTrainedModel, mask: Tensor, *, before: int = 0) -> dict[str, Any]:
    """Arguments that tell a model which tokens (B, L) are padding; none if there is none.

    Without padding the model counts its positions itself: some do not begin at 0 (RoBERTa).

    Args:
        mask: (B, L), 1 at real tokens, including those in the cache.
        before: number of tokens in the cache.
    """
    if bool(mask.all()):
        return {}
    if "position_ids" not in inspect.signature(model.forward).parameters:
        return {"attention_mask": mask}
    return {"attention_mask": mask, "position_ids": count_positions(mask)[:, before:]}
