"""Positions: numbering that ignores padding, rotary embeddings, and the sinusoids of Vaswani et al."""

from __future__ import annotations

import torch
from torch import Tensor


def sinusoidal_positions(position_ids: Tensor, width: int) -> Tensor:
    """p[2k] = sin(t / 10000^(2k / width)), p[2k + 1] = cos of the same angle (Vaswani et al., 1706.03762, section 3.5).

    Frequencies fall with the dimension, every position has a unique code, and p(t + s) is a rotation of p(t).

    Args:
        position_ids: (...,) whole numbers, 0-based.
        width: width of the code; an odd one ends with a sine.

    Returns:
        (..., width) in fp64.
    """
    exponent = torch.arange(0, width, 2, dtype=torch.float64, device=position_ids.device) / width
    angles = position_ids.unsqueeze(-1) / 10000.0**exponent  # (..., ⌈width / 2⌉)
    return torch.stack([angles.sin(), angles.cos()], dim=-1).flatten(-2)[..., :width]


def count_positions(real: Tensor) -> Tensor:
    """0-based positions (B, N) of real tokens within their text, from a mask (B, N); padding before a text gets 0."""
    return (real.long().cumsum(1) - 1).clamp(min=0)


def rotary_positions(position_ids: Tensor, width: int, theta: float = 10000.0) -> tuple[Tensor, Tensor]:
    """Cosines and sines of rotary positions (Su et al., 2104.09864), for channels j and j + width / 2.

    Args:
        position_ids: (1|B, N) whole numbers, 0-based.
        width: width of a map, even.
        theta: base of the frequencies theta^(-2j / width).

    Returns:
        (1|B, N, width) each, in fp32.
    """
    exponent = torch.arange(0, width, 2, dtype=torch.float32, device=position_ids.device) / width
    angles = position_ids.unsqueeze(-1) / theta**exponent  # (1|B, N, width / 2)
    angles = torch.cat([angles, angles], dim=-1)
    return angles.cos(), angles.sin()


def rotate(maps: Tensor, cosines: Tensor, sines: Tensor) -> Tensor:
    """Rotate queries or keys (B, maps, N, d) by their positions, in their dtype: cosines and sines (1|B, N, r).

    The first r channels are rotated, and the others, if there are any, carry no position.
    """
    width = cosines.shape[-1]
    if width < maps.shape[-1]:
        return torch.cat([rotate(maps[..., :width], cosines, sines), maps[..., width:]], dim=-1)
    first, second = maps.chunk(2, dim=-1)
    turned = maps * cosines.unsqueeze(1) + torch.cat([-second, first], dim=-1) * sines.unsqueeze(1)
    return turned.to(maps.dtype)  # of maps in half precision, with fp32 cosines
