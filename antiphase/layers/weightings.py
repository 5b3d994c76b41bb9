"""How scores become weights where that is not by a softmax, in at least fp32; hidden keys get a weight of 0.

Arguments: scores (B, maps, N, M); visible, boolean and broadcastable to them, or None where a query sees every key.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

SMALLEST = 1e-8
"""Added to the sum of softpick, which is 0 where all scores are."""


def softpick(scores: Tensor, visible: Tensor | None) -> Tensor:
    """relu(eˣ - 1) / (Σ |eˣ - 1| + ε) (2504.20966, equation 3); both exponentials are divided by the largest."""
    if visible is not None:
        scores = scores.masked_fill(~visible, 0.0)  # e⁰ - 1 = 0
    largest = scores.amax(dim=-1, keepdim=True).clamp(min=0).detach()
    excess = torch.exp(scores - largest) - torch.exp(-largest)
    return excess.relu() / (excess.abs().sum(dim=-1, keepdim=True) + SMALLEST)


def cog(scores: Tensor, visible: Tensor | None) -> Tensor:
    """sgn(x) e^|x| / Σ e^|x| (2411.07176, section 3)."""
    sizes = scores.abs()
    if visible is not None:
        empty = ~visible.any(dim=-1, keepdim=True)
        sizes = sizes.masked_fill(~(visible | empty), float("-inf"))
    weights = torch.softmax(sizes, dim=-1) * scores.sign()
    return weights if visible is None else weights.masked_fill(~visible, 0.0)


WEIGHTINGS: dict[str, Callable[[Tensor, Tensor | None], Tensor]] = {"softpick": softpick, "cog": cog}
"""By the name that a layer passes to its attention function."""
