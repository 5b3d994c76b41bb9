"""Where a token stands: numbers that padding does not move, and the sinusoids of 2017."""

from __future__ import annotations

import torch
from torch import Tensor


def sinusoidal_positions(position_ids: Tensor, width: int) -> Tensor:
    """p[2k] = sin(t / 10000^(2k / width)), p[2k + 1] = cos of the same (Vaswani et al., 1706.03762, section 3.5).

    Frequency falls with the dimension, every position has a code of its own, and p(t + s) is a rotation of p(t).

    Args:
        position_ids: (...,) whole numbers, 0-based.
        width: of the code; an odd one ends with a sine.

    Returns:
        (..., width) in fp64.
    """
    exponent = torch.arange(0, width, 2, dtype=torch.float64, device=position_ids.device) / width
    angles = position_ids.unsqueeze(-1) / 10000.0**exponent  # (..., ⌈width / 2⌉)
    return torch.stack([angles.sin(), angles.cos()], dim=-1).flatten(-2)[..., :width]


def count_positions(real: Tensor) -> Tensor:
    """(B, N) of real tokens as their 0-based numbers in their text; padding before it has 0."""
    return (real.long().cumsum(1) - 1).clamp(min=0)
