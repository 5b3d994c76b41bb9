"""What a portable checkpoint's code has in place of the package's kernels and attention names (``portable.py``).

The definitions are written into that file beside those of the package. Legend: B batch, N queries, M keys, H heads, G
value heads, d width of a map.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedConfig
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from antiphase.attention.caches import CACHE
from antiphase.layers.exchange import grouped
from antiphase.layers.functions import (
    AttentionFunction,
    apart,
    has_two_keys,
    is_differential,
    join_halves,
    sharing_second_map,
    subtracted,
    subtracting,
)
from antiphase.layers.weightings import WEIGHTINGS
from antiphase.models.variants import needs
from antiphase.ops.shapes import statistics_dtype


def function_for(layer: nn.Module, implementation: str) -> AttentionFunction:
    """The attention function of a layer for the name of an implementation of transformers."""
    ordinary = ALL_ATTENTION_FUNCTIONS.get_interface(implementation, eager_attention)
    if ordinary is eager_attention:
        return eager_attention  # subtracts by itself
    if has_two_keys(layer):
        return subtracting_halves(ordinary)
    return subtracting(ordinary) if is_differential(layer) else ordinary


def chosen_implementation(config: PreTrainedConfig, requested: str | None) -> str | None:
    """The attention implementation; None leaves the choice to transformers.

    Raises:
        ValueError: the requested implementation would ignore sink logits, or is one of the package ``antiphase``.
    """
    if requested is not None and requested.startswith("antiphase"):
        raise ValueError(f"attn_implementation={requested!r} needs the package antiphase; choose sdpa or eager")
    if needed := needs(config):
        if requested not in (None, "eager"):
            named = next(iter(needed.values()))
            raise ValueError(f"{named} cannot run with attn_implementation={requested!r}; choose eager")
        return "eager"
    return requested


def refuse_continuous_batching(implementation: str, *, is_v1: bool) -> None:
    """
    Raises:
        ValueError: the model is a V1 one, whose two calls of a function would add the keys to the cache twice; or
            layers are expected to add them themselves.
    """
    if CACHE == "cache":
        raise ValueError("continuous batching (generate_batch) needs transformers before 5.24; use generate")
    if is_v1:
        raise ValueError("continuous batching (generate_batch) cannot serve differential (V1) models; use generate")


def subtracting_halves(ordinary: AttentionFunction) -> AttentionFunction:
    """The attention function of V1 layers on top of an ordinary one, which is called once for each half of the values.

    Maps 2i and 2i + 1 of a head read keys 2g and 2g + 1, and both read both halves of value head g. An ordinary
    function lets map m read key and value m // (H / G), so the maps are sorted by key before it is called. Where heads
    share second maps, these are fewer, and are asked for in calls of their own.
    """

    def subtract(
        module: nn.Module, query: Tensor, key: Tensor, value: Tensor, mask: Any, *, lam: Tensor, **kwargs: Any
    ) -> tuple[Tensor, None]:
        if (shared := sharing_second_map(module, query.shape[1] // 2, None)) > 1:

            def outputs(maps: Tensor, keys: Tensor) -> Tensor:
                with grouped(module, maps.shape[1] // keys.shape[1]):
                    halves = [ordinary(module, maps, keys, value[:, i::2], mask, **kwargs)[0] for i in range(2)]
                return torch.cat(halves, dim=-1)

            signal, noise = apart(query, key, shared, two_keys=True)
            return subtracted(outputs(*signal), outputs(*noise), lam), None
        groups = key.shape[1] // 2
        pairs = query.unflatten(1, (groups, -1, 2))  # (B, G, H / G, 2, N, d)
        by_key = pairs.transpose(2, 3).flatten(1, 3)  # (B, 2H, N, d)
        swapped = value.unflatten(1, (groups, 2)).flip(2).flatten(1, 2)
        same, _ = ordinary(module, by_key, key, value, mask, **kwargs)  # (B, N, 2H, d): A₁ on half 1, A₂ on half 2
        other, _ = ordinary(module, by_key, key, swapped, mask, **kwargs)  # A₁ on half 2, A₂ on half 1
        first_1, second_2 = same.unflatten(2, (groups, 2, -1)).unbind(3)  # (B, N, G, H / G, d)
        first_2, second_1 = other.unflatten(2, (groups, 2, -1)).unbind(3)
        first, second = torch.cat([first_1, first_2], -1).flatten(2, 3), torch.cat([second_1, second_2], -1)
        factor = lam if lam.dim() < 2 else lam.movedim(-2, -1).unsqueeze(-1)
        return first - factor.to(first.dtype) * second.flatten(2, 3), None

    return subtract


def eager_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    scaling: float,
    lam: Tensor | None = None,
    s_aux: Tensor | None = None,
    weighting: str | None = None,
    **kwargs: Any,
) -> tuple[Tensor, Tensor]:
    """The formula, with weights (B, heads, N, M), signed if differential; the mask is transformers' additive one."""
    groups = key.shape[1] // 2 if has_two_keys(module) else key.shape[1]
    if lam is not None and has_two_keys(module):
        shared = sharing_second_map(module, query.shape[1] // 2, None)
        first, second = (_maps(*maps, attention_mask, scaling) for maps in apart(query, key, shared, two_keys=True))
        weights = first - lam.unsqueeze(-1) * second.repeat_interleave(shared, dim=1)
    else:
        weights = _maps(query, key, attention_mask, scaling, s_aux, weighting)
        if lam is not None:
            first, second = weights.unflatten(1, (-1, 2)).unbind(2)  # (B, H, N, M)
            weights = first - lam.unsqueeze(-1) * second
    values = join_halves(value) if has_two_keys(module) else value
    out = weights.to(value.dtype).unflatten(1, (groups, -1)) @ values.unsqueeze(2)  # (B, G, H / G, N, width)
    return out.flatten(1, 2).transpose(1, 2), weights


def _maps(
    query: Tensor,
    key: Tensor,
    mask: Tensor | None,
    scaling: float,
    s_aux: Tensor | None = None,
    weighting: str | None = None,
) -> Tensor:
    """Softmax maps (B, maps, N, M) of queries (B, maps, N, d) and keys (B, G, M, d), or those of another weighting."""
    products = query.unflatten(1, (key.shape[1], -1)) @ key.unsqueeze(2).transpose(-1, -2)
    scores = products.flatten(1, 2).to(statistics_dtype(query.dtype)) * scaling
    if weighting is not None:
        return WEIGHTINGS[weighting](scores, None if mask is None else mask == 0)
    if mask is not None:
        scores = scores + mask
    if s_aux is None:
        return torch.softmax(scores, dim=-1)
    sinks = s_aux.to(scores.dtype)[:, None, None].expand(*scores.shape[:-1], 1)
    return torch.softmax(torch.cat([scores, sinks], dim=-1), dim=-1)[..., :-1]
