"""Which keys a query sees: masks, causality and windows, in the form that attention functions get."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from antiphase.ops.shapes import positions_mask

HIDDEN = -1e4
"""A score plus this or less leaves no weight: exp(-1e4) is 0 even in fp64."""


def visible_keys(module: nn.Module, attention_mask: Tensor | None, queries: int) -> tuple[Tensor | None, bool]:
    """A boolean mask, and whether causality must still be applied: only a mask with a row per query includes it."""
    mask = None if attention_mask is None else boolean_mask(attention_mask)
    causal = layer_is_causal(module, attention_mask)
    return mask, causal and queries > 1 and not carries_positions(mask, queries)


def layer_is_causal(module: nn.Module, attention_mask: Tensor | None) -> bool:
    """Whether a layer's queries are hidden from later keys, given the mask that it passes.

    Layers that do not declare it (LayoutLM's) are causal without a mask, as in transformers' SDPA. With an additive
    mask per key they are not, because no function of transformers would hide more than the mask does.
    """
    declared = getattr(module, "is_causal", None)
    if declared is None:
        return attention_mask is None or attention_mask.dtype == torch.bool or attention_mask.shape[-2] > 1
    return bool(declared)


def carries_positions(mask: Tensor | None, queries: int) -> bool:
    """Whether a mask has a row per query and so already includes causality and window.

    The single query of a decoding step may face a static cache, whose last key is not the query's own, so that no
    window can be counted from the end of the keys.
    """
    return mask is not None and mask.shape[-2] == queries


def boolean_mask(mask: Tensor) -> Tensor:
    """A boolean mask, True = may attend, from a boolean or an additive one with 0 and values as low as ``HIDDEN``.

    Raises:
        ValueError: the mask holds other values, such as a position bias.
    """
    if mask.dtype == torch.bool:
        return mask
    if not mask.is_floating_point():
        raise ValueError(f"attention_mask must be boolean (True = may attend) or additive, got {mask.dtype}")
    visible = mask == 0
    if not torch.compiler.is_compiling() and not bool((visible | (mask <= HIDDEN)).all()):
        raise ValueError(
            "attention_mask holds values other than 0 and very low ones; additive biases are not supported"
        )
    return visible


def combine_mask(
    mask: Tensor | None, queries: int, keys: int, *, is_causal: bool, sliding_window: int | None, device: torch.device
) -> Tensor | None:
    """One boolean mask that broadcasts to (B, heads, N, M), or None if everything is visible."""
    positions = positions_mask(queries, keys, is_causal=is_causal, sliding_window=sliding_window, device=device)
    if mask is None or positions is None:
        return mask if positions is None else positions
    return mask & positions
