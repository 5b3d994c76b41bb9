"""Packed batches: several texts in a row, which only positions that start again tell apart."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from transformers import Cache


def check_packing(
    kwargs: dict[str, Any],
    tokens: Tensor,
    position_ids: Tensor | None,
    attention_mask: Tensor | dict[str, Tensor | None] | None,
    past_key_values: Cache | None,
) -> None:
    """Refuse packed texts that the mask would not separate, so that a token would see those of other texts.

    Args:
        kwargs: may hold ``cu_seq_lens_q`` (texts + 1), where texts begin in the flattened batch, and ``seq_idx``
            (B, N), the number of each token's text.
        tokens: (B, N, ...).
        position_ids: (1|B, N).

    Raises:
        ValueError: these arguments come without ``position_ids``; or they name several texts in a row and
            ``position_ids`` do not start again there, or the mask does not depend on them because ``attention_mask``
            (B, M) or ``past_key_values`` are given.
    """
    name = next((name for name in ("cu_seq_lens_q", "seq_idx") if kwargs.get(name) is not None), None)
    if name is None:
        return
    if position_ids is None:
        raise ValueError(f"{name} needs position_ids, which start again at 0 in each text of a packed row")
    is_whole = isinstance(attention_mask, dict) or (attention_mask is not None and attention_mask.dim() == 4)
    if is_whole or torch.compiler.is_compiling():
        return
    begins = _begins(kwargs, *tokens.shape[:2]).to(position_ids.device)
    if not bool(begins.any()):
        return
    if attention_mask is not None or past_key_values is not None:
        other = "past_key_values" if attention_mask is None else "attention_mask"
        raise ValueError(f"{name} names several texts in a row, which cannot be combined with {other}; leave it out")
    if bool((begins & (position_ids.diff(dim=1) == 1)).any()):
        raise ValueError(f"{name} names several texts in a row, but position_ids do not start again at 0 in each")


def _begins(kwargs: dict[str, Any], rows: int, length: int) -> Tensor:
    """Whether a text begins at tokens 1 to N - 1 of each row: (B, N - 1)."""
    found = torch.zeros(rows, length, dtype=torch.bool)
    if (ends := kwargs.get("cu_seq_lens_q")) is not None:
        inside = ends[(ends > 0) & (ends < rows * length)].long().cpu()
        found.view(-1)[inside] = True
    if (numbers := kwargs.get("seq_idx")) is not None:
        found[:, 1:] |= (numbers.diff(dim=1) != 0).cpu()
    return found[:, 1:]
