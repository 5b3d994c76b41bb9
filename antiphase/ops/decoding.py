"""Attention of a few queries over many keys, as in a decoding step, whose time is that of reading the cache.

Keys and values are read once each, in the layout of the cache. There, V1 values are stored as halves: heads 2i and 2i+1
are the two halves of value head i. Joining them first would double the time of the step.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from antiphase.ops.shapes import positions_mask, statistics_dtype

FEW_ROWS, FEW_ROWS_OF_KERNELS = 16, 32
"""Number of queries times the heads that share a value head, at most: with so few rows, the scores are small compared
with keys and values. The GPU kernels take more rows, for values of width up to 128.
"""


def most_rows_of_kernels(value_width: int) -> int:
    """Largest number of rows of ``is_few`` for the kernels."""
    return FEW_ROWS_OF_KERNELS if value_width <= 128 else FEW_ROWS


def is_few(
    query: Tensor, key: Tensor, groups: int, mask: Tensor | None, most: int = FEW_ROWS, *, maps: int = 2
) -> bool:
    """Whether to use ``attend_few`` for query (B, maps · H, N, d), key (B, ·, M, d), mask (1|B, 1|H, 1|N, M).

    ``maps`` per head: 2, or 1 in softmax attention.
    """
    batch, maps_of_all, queries, _ = query.shape
    rows = queries * (maps_of_all // maps // groups)
    return batch > 0 and 0 < rows <= most and key.shape[2] > 0 and (mask is None or mask.shape[1] == 1)


def within_window(
    queries: int, key: Tensor, value: Tensor, mask: Tensor | None, sliding_window: int | None
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Keys (B, ·, M, d), values and mask without the first keys, which the window hides from the last queries."""
    if sliding_window is None or sliding_window + queries - 1 >= key.shape[2]:
        return key, value, mask
    kept = slice(1 - sliding_window - queries, None)
    if mask is not None and mask.shape[-1] > 1:
        mask = mask[..., kept]
    return key[:, :, kept], value[:, :, kept], mask


def attend_few(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    lam: Tensor,
    mask: Tensor | None,
    *,
    groups: int,
    is_causal: bool,
    sliding_window: int | None,
    scale: float,
) -> Tensor:
    """Differential attention of a few queries, differentiable by plain autograd; all scores are in memory at once.

    Products are computed in the input's dtype, the softmax and the subtraction in fp32 (fp64 for fp64). A row that sees
    no key gives zeros.

    Args:
        query: (B, 2H, N, d).
        key: (B, 2 · groups, M, d), one key per map (V1), or (B, groups, M, d), shared by both (V2).
        value: (B, groups, M, dv), or as halves, as in a cache, (B, 2 · groups, M, dv / 2).
        lam: broadcastable to (B, H, N).
        mask: boolean, broadcastable to (B, 1, N, M), True = may attend.
        groups: number of value heads.

    Returns:
        (B, H, N, dv) in the query's dtype.
    """
    batch, maps, queries, width = query.shape
    key, value, mask = within_window(queries, key, value, mask, sliding_window)
    if queries == 1:  # the query of the last key sees every key left in the window
        is_causal, sliding_window = False, None
    keys = key.shape[2]
    key_maps, parts = key.shape[1] // groups, value.shape[1] // groups
    repeats = maps // 2 // groups
    rows = query
    if repeats > 1:  # (B, G, 2, R, N, d): in V1 each map has its own key, in V2 both share one
        rows = query.view(batch, groups, repeats, 2, queries, width).transpose(2, 3)
    rows = rows.reshape(batch * groups * key_maps, -1, width)
    if query.dtype == torch.float16:  # its products overflow above 65,504; dividing by a power of two first is exact
        scale, exponent = math.frexp(scale)
        rows = rows * 2.0**exponent
    scores = torch.bmm(rows, key.reshape(-1, keys, width).transpose(1, 2))
    scores = scores.view(batch, groups, 2, repeats * queries, keys).to(statistics_dtype(query.dtype)) * scale
    visible = positions_mask(queries, keys, is_causal=is_causal, sliding_window=sliding_window, device=query.device)
    if mask is not None:
        visible = mask if visible is None else mask & visible
    empty = None
    if visible is not None:
        visible = visible.expand(*visible.shape[:-2], queries, keys)
        empty = ~visible.any(dim=-1, keepdim=True)
        hidden = ~(visible | empty)
        by_head = scores.view(batch, groups, 2, repeats, queries, keys)
        hidden, empty = (t.view(-1, 1, 1, 1, *t.shape[-2:]) for t in (hidden, empty))  # (1|B, 1, 1, 1, N, M|1)
        scores = by_head.masked_fill(hidden, float("-inf")).flatten(3, 4)
    first, second = torch.softmax(scores, dim=-1).unbind(2)  # (B, G, R N, M) each
    if lam.numel() > 1:
        full_lam = lam.reshape((1,) * (3 - lam.dim()) + tuple(lam.shape)).expand(batch, maps // 2, queries)
        lam = full_lam.reshape(batch, groups, -1, 1)
    weights = torch.addcmul(first, lam, second, value=-1)
    if empty is not None:
        by_head = weights.view(batch, groups, repeats, queries, keys)
        weights = by_head.masked_fill(empty[:, :, 0], 0.0).flatten(2, 3)
    weights = weights.to(value.dtype)
    if parts == 1:
        out = torch.matmul(weights, value)  # (B, G, R N, dv)
    else:  # (B, G, parts, R N, dv / parts)
        out = torch.matmul(weights.unsqueeze(2), value.view(batch, groups, parts, keys, -1)).transpose(2, 3)
    return out.reshape(batch, maps // 2, queries, -1)
