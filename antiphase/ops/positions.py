"""The sinusoidal positions of the Transformer of 2017 (Vaswani et al., 1706.03762, section 3.5)."""

from __future__ import annotations

import torch
from torch import Tensor

BASE = 10_000.0


def sinusoidal_positions(length: int, width: int, *, base: float = BASE) -> Tensor:
    """(length, width) in fp32: sin(p / base^(2i/width)) in column 2i, the cosine of the same in column 2i + 1.

    Raises:
        ValueError: a width that is odd.
    """
    if width % 2:
        raise ValueError(f"width must be even, a sine and a cosine for each frequency, got {width}")
    rates = base ** (-torch.arange(0, width, 2, dtype=torch.float64) / width)
    angles = torch.arange(length, dtype=torch.float64)[:, None] * rates  # (length, width / 2)
    return torch.stack((angles.sin(), angles.cos()), dim=-1).flatten(1).float()
