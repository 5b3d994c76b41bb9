"""Second maps that neighbouring heads share (grouped differential attention, 2510.06949, section 2.2).

Legend: B batch, N new tokens, d width of a map, H heads.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from antiphase.base.errors import InputError


def check_noise_heads(given: Mapping[str, Any], *, groups: int) -> None:
    """
    Args:
        groups: value heads.

    Raises:
        InputError: the heads cannot share so many second maps.
    """
    count, heads = given.get("num_noise_heads"), given["num_attention_heads"] // 2
    if count is None:
        return
    if not isinstance(count, int) or isinstance(count, bool) or count < 1 or heads % count:
        raise InputError(f"num_noise_heads must divide the {heads} heads (half of num_attention_heads), got {count!r}")
    if count % groups:
        of = "" if groups == given["num_key_value_heads"] else "half of "
        raise InputError(
            f"num_noise_heads ({count}) must be a multiple of the {groups} value heads ({of}num_key_value_heads): "
            "heads that share a second map share its key"
        )


def paired(maps: Tensor, noise_heads: int | None) -> Tensor:
    """Maps 2i and 2i + 1 of head i, (B, 2H, N, d), from projected ones in which a noise head follows its heads.

    Only queries are repeated: attention functions form the maps that heads share once (``sharing_second_map``).
    """
    if noise_heads is None:
        return maps
    grouped = maps.unflatten(1, (noise_heads, -1))  # (B, noise heads, their heads + 1, N, d)
    signal = grouped[:, :, :-1]
    return torch.stack([signal, grouped[:, :, -1:].expand_as(signal)], dim=3).flatten(1, 3)
