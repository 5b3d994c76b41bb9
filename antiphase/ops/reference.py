"""Differential attention written as its formula: the specification that every fast implementation is tested against.

Ye et al., Differential Transformer, arXiv 2410.05258, section 2.1, equation 1: ``(softmax(Q1 K1ᵀ/√d) - λ softmax(Q2
K2ᵀ/√d)) V``. Plain autograd; exact in fp64. Legend: B batch, H heads, G value heads, R = H / G, S = 2 maps per head, N
queries, M keys, d, dv widths.
"""

from __future__ import annotations

import torch
from torch import Tensor

from antiphase.ops.shapes import Shapes, positions_mask, statistics_dtype


def reference_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    lam: Tensor,
    mask: Tensor | None,
    *,
    is_causal: bool,
    sliding_window: int | None,
    scale: float,
    shapes: Shapes,
) -> tuple[Tensor, Tensor]:
    """Output (B, H, N, dv) in the input's dtype, and the signed weights (B, H, N, M) in the statistics dtype.

    ``lam`` (1|B, 1|H, 1|N) and ``mask`` (1|B, 1|H, 1|N, M) have been checked by ``shapes``. Products are computed in
    the input's dtype, the softmax and the subtraction in fp32 (fp64 for fp64). A row that sees no key gives zeros.
    """
    maps = softmax_maps(
        query, key, mask, is_causal=is_causal, sliding_window=sliding_window, scale=scale, shapes=shapes
    )
    first, second = maps.unbind(2)  # (B, H, N, M) each
    weights = first - lam.unsqueeze(-1) * second
    values = value.repeat_interleave(shapes.heads_per_value, dim=1)  # (B, H, M, dv)
    return weights.to(value.dtype) @ values, weights


def softmax_maps(
    query: Tensor,
    key: Tensor,
    mask: Tensor | None,
    *,
    is_causal: bool,
    sliding_window: int | None,
    scale: float,
    shapes: Shapes,
) -> Tensor:
    """Both softmax maps of every head, (B, H, 2, N, M); rows that see no key are zero."""
    batch, heads, groups = shapes.batch, shapes.heads, shapes.value_heads
    queries = query.reshape(batch, heads, 2, shapes.queries, shapes.width)
    keys = key.reshape(batch, groups, shapes.key_maps, shapes.keys, shapes.width)
    keys = keys.expand(-1, -1, 2, -1, -1).repeat_interleave(shapes.heads_per_value, dim=1)  # (B, H, S, M, d)
    scores = (queries @ keys.transpose(-1, -2)).to(statistics_dtype(query.dtype)) * scale
    visible = positions_mask(
        shapes.queries, shapes.keys, is_causal=is_causal, sliding_window=sliding_window, device=query.device
    )
    if mask is not None:
        visible = mask if visible is None else mask & visible  # (1|B, 1|H, N, M)
    if visible is None:
        return torch.softmax(scores, dim=-1)
    if visible.dim() == 4:
        visible = visible.unsqueeze(2)
    empty = ~visible.any(dim=-1, keepdim=True)
    # An empty row would give softmax(-inf, ...) = NaN, and NaN gradients: let it see every key, then clear it.
    scores = scores.masked_fill(~(visible | empty), float("-inf"))
    return torch.softmax(scores, dim=-1).masked_fill(empty, 0.0)
