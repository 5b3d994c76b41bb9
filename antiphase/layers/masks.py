"""Which keys a query sees: masks, causality and windows, in the form that attention functions get."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.attention.flex_attention import BlockMask, create_mask

from antiphase.ops.shapes import positions_mask

HIDDEN = -1e4
"""A score plus this or less leaves no weight: exp(-1e4) is 0 even in fp64."""


def visible_keys(
    module: nn.Module,
    attention_mask: Tensor | BlockMask | None,
    query: Tensor,
    key: Tensor,
    window: int | None,
    is_causal: bool | None = None,
) -> tuple[Tensor | None, bool, int | None]:
    """A boolean mask, whether causality must still be applied, and the window that must still be applied.

    A mask with a row per query already includes both, except that a single query may have a mask of padding alone: of
    the keys that it shows, the window leaves the last ones. The window w of a layer that is not causal lets query i see
    key j if |i - j| < w, as in transformers' flash attention; it becomes part of the mask. ``is_causal``: as for
    ``layer_is_causal``.
    """
    mask = None if attention_mask is None else boolean_mask(attention_mask, module)
    queries, keys = query.shape[2], key.shape[2]
    if mask is not None and carries_positions(mask, queries):
        return mask if queries > 1 or window is None else last_visible(mask, window), False, None
    if layer_is_causal(module, attention_mask, is_causal):
        return mask, queries > 1, window
    if window is None or window >= max(queries, keys):
        return mask, False, None
    places = torch.arange(queries, device=query.device)[:, None] + (keys - queries)
    near = ((places - torch.arange(keys, device=query.device)).abs() < window)[None, None]  # (1, 1, N, M)
    return near if mask is None else near & mask, False, None


def layer_is_causal(
    module: nn.Module, attention_mask: Tensor | BlockMask | None, is_causal: bool | None = None
) -> bool:
    """Whether a layer's queries are hidden from later keys, given the mask that it passes.

    What the model says in the call (``is_causal``, as CLIP's text encoder does) precedes what the layer declares.
    Layers that do not declare it (LayoutLM's) are causal without a mask, as in transformers' SDPA. With an additive
    mask per key they are not, because no function of transformers would hide more than the mask does.
    """
    declared = getattr(module, "is_causal", None) if is_causal is None else is_causal
    if declared is None:
        is_additive = isinstance(attention_mask, Tensor) and attention_mask.dtype != torch.bool
        return attention_mask is None or not is_additive or attention_mask.shape[-2] > 1
    return bool(declared)


def carries_positions(mask: Tensor | None, queries: int) -> bool:
    """Whether a mask has a row per query and so already includes causality and window.

    The single query of a decoding step may face a static cache, whose last key is not the query's own, so that no
    window can be counted from the end of the keys.
    """
    return mask is not None and mask.shape[-2] == queries


def last_visible(mask: Tensor, count: int) -> Tensor:
    """A mask (..., M) in which only the last ``count`` visible keys of each row stay visible."""
    return mask & (mask.flip(-1).cumsum(-1).flip(-1) <= count)


def boolean_mask(mask: Tensor | BlockMask, layer: nn.Module | None = None) -> Tensor:
    """A boolean mask, True = may attend, from any other.

    Args:
        mask: boolean, additive with 0 and values as low as ``HIDDEN``, or one of PyTorch's flex attention, whose
            function is evaluated at every pair of query and key.
        layer: named in messages.

    Raises:
        ValueError: the mask holds other values, such as a position bias.
    """
    if isinstance(mask, BlockMask):
        batch, heads = mask.kv_num_blocks.shape[:2]
        return create_mask(mask.mask_mod, batch, heads, *mask.seq_lengths, device=mask.kv_num_blocks.device)
    if mask.dtype == torch.bool:
        return mask
    if not mask.is_floating_point():
        raise ValueError(f"attention_mask must be boolean (True = may attend) or additive, got {mask.dtype}")
    visible = mask == 0
    if not torch.compiler.is_compiling() and not bool((visible | (mask <= HIDDEN)).all()):
        whose = "" if layer is None else f" of {type(layer).__name__}"
        raise ValueError(
            f"the attention_mask{whose} holds values other than 0 and very low ones; additive biases are not "
            'supported: choose attn_implementation="eager"'
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
