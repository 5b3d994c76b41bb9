"""A few queries against many keys: a decoding step, whose time is that of reading the cache.

Keys and values are read once each, and as the cache holds them. In V1 values come in halves there, heads 2i and 2i+1
the two halves of value head i; joining them first would cost as much again as the step itself.
"""

from __future__ import annotations

import torch
from torch import Tensor

from antiphase.ops.shapes import positions_mask, statistics_dtype

FEW_ROWS = 16
"""Queries times heads that share a value: with so few rows the scores are small beside keys and values."""


def attend_few(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    lam: Tensor,
    mask: Tensor | None,
    *,
    halves: int,
    is_causal: bool,
    sliding_window: int | None,
    scale: float,
) -> Tensor:
    """Differential attention of few queries, through plain autograd; the scores are held as a whole.

    Products are taken in the input's dtype, the softmax and the subtraction in fp32 (fp64 for fp64). A row that sees
    no key gives zeros.

    Args:
        query: (B, 2H, N, d).
        key, value: (B, Hkv · halves, M, d) as in a cache: ``halves`` 2 is V1, 1 is V2.
        lam: broadcastable to (B, H, N).
        mask: boolean, broadcastable to (B, 1, N, M), True = may attend.

    Returns:
        (B, H, N, halves · d) in the query's dtype.
    """
    batch, maps, queries, width = query.shape
    keys = key.shape[2]
    groups = key.shape[1] // halves
    repeats = maps // 2 // groups
    grouped = query.reshape(batch, groups, repeats, 2, queries, width)
    rows = grouped.movedim(3, 2)  # (B, G, 2, R, N, d): V1 multiplies each map with a key of its own, V2 both with one
    scores = rows.reshape(batch * groups * halves, -1, width) @ key.reshape(-1, keys, width).transpose(1, 2)
    scores = scores.view(batch, groups, 2, repeats, queries, keys).to(statistics_dtype(query.dtype)) * scale
    visible = positions_mask(queries, keys, is_causal=is_causal, sliding_window=sliding_window, device=query.device)
    if mask is not None:
        visible = mask if visible is None else mask & visible
    empty = None
    if visible is not None:
        visible = visible.view((1,) * (4 - visible.dim()) + tuple(visible.shape))[:, :, None, None]  # (1|B, 1, .., M)
        empty = ~visible.any(dim=-1, keepdim=True)
        scores = scores.masked_fill(~(visible | empty), float("-inf"))
    first, second = torch.softmax(scores, dim=-1).unbind(2)  # (B, G, R, N, M) each
    full_lam = lam.reshape((1,) * (3 - lam.dim()) + tuple(lam.shape)).expand(batch, maps // 2, queries)
    weights = first - full_lam.reshape(batch, groups, repeats, queries, 1) * second
    if empty is not None:
        weights = weights.masked_fill(empty[:, :, 0], 0.0)
    weights = weights.to(value.dtype).reshape(batch, groups, 1, repeats * queries, keys)
    out = weights @ value.reshape(batch, groups, halves, keys, width)  # (B, G, halves, R N, d)
    return out.movedim(2, 3).reshape(batch, maps // 2, queries, halves * width)
