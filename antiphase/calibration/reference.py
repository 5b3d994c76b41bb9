"""Attention calibration as a formula on whole maps, against which the fast implementations are tested.

Yu et al., Unveiling and Harnessing Hidden Attention Sinks, arXiv 2406.15765, section 4: weights on sinks are multiplied
by β, and the freed weight goes to the row's other keys in proportion.
"""

from __future__ import annotations

import torch
from torch import Tensor


def calibrate_map(
    weights: Tensor, *, beta: float, alpha: float | None = None, threshold: float | None = None
) -> Tensor:
    """Calibrate causal maps (..., N, N) without padding; the first token never counts as a sink.

    A key is a sink if the mean weight it receives from the N - j queries that see it is above ``threshold``, or above α
    / N.

    Raises:
        ValueError: not exactly one of ``alpha`` and ``threshold`` is given, β is outside (0, 1], or the maps are not
            square.
    """
    if (alpha is None) == (threshold is None):
        raise ValueError("give either alpha or threshold")
    if not 0 < beta <= 1:
        raise ValueError(f"beta must be above 0 and at most 1, got {beta}")
    length = weights.shape[-1]
    if weights.dim() < 2 or weights.shape[-2] != length:
        raise ValueError(f"weights must end in two equal dimensions (queries, keys), got shape {tuple(weights.shape)}")
    seen_by = torch.arange(length, 0, -1, device=weights.device)
    limit = threshold if alpha is None else alpha / length
    assert limit is not None
    sinks = weights.sum(-2) / seen_by > limit
    sinks[..., :1] = False
    return redistribute(weights, sinks.unsqueeze(-2), beta=beta)


def redistribute(weights: Tensor, sinks: Tensor, *, beta: float) -> Tensor:
    """Weights (..., N, M) with those on sinks (bool, (..., 1|N, M)) times β and the others raised in proportion.

    Rows keep their sum. A row with all its weight on sinks stays unchanged.
    """
    kept = weights.masked_fill(sinks, 0.0)
    rest = kept.sum(-1, keepdim=True)
    freed = (1 - beta) * (weights.sum(-1, keepdim=True) - rest)
    has_rest = rest > torch.finfo(weights.dtype).tiny
    raised = kept * (1 + freed / rest.where(has_rest, 1.0))
    return torch.where(has_rest, torch.where(sinks, beta * weights, raised), weights)
