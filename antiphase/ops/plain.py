"""Operations of a layer around attention by PyTorch alone, differentiable any number of times."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy


def plain_rms_norm(
    tensor: Tensor, weight: Tensor, eps: float, factor: float = 1.0, dtype: torch.dtype | None = None
) -> Tensor:
    """``layer.rms_norm``."""
    out = torch.rms_norm(tensor.to(weight.dtype), weight.shape, weight, eps)
    out = out if factor == 1.0 else out * factor
    return out if dtype is None else out.to(dtype)


def plain_lambda(vectors: Sequence[Tensor], initial: float) -> Tensor:
    """``layer.exponential_lambda``."""
    q1, k1, q2, k2 = vectors
    with nullcontext() if q1.is_meta else torch.autocast(q1.device.type, enabled=False):
        wide = torch.promote_types(q1.dtype, torch.float32)
        first = torch.exp(torch.dot(q1.to(wide), k1.to(wide)))
        second = torch.exp(torch.dot(q2.to(wide), k2.to(wide)))
        return first - second + initial


def plain_cross_entropies(logits: Tensor, targets: Tensor) -> Tensor:
    """``layer.cross_entropies``."""
    return cross_entropy(logits.to(torch.promote_types(logits.dtype, torch.float32)), targets, reduction="none")
