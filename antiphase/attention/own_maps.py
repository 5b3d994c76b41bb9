"""Maps of calls that change their scores (soft caps, position biases, sink logits), by the layers' own code."""

from __future__ import annotations

import inspect
import sys
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from antiphase.attention.calls import AttentionCall, Pairing
from antiphase.base.errors import NonFiniteError
from antiphase.layers.functions import AttentionFunction, softmax_weights, unknown_arguments
from antiphase.layers.masks import HIDDEN, combine_mask
from antiphase.ops.shapes import statistics_dtype

CLOSENESS = 1e-3
"""Relative tolerance between a layer's recomputed and actual outputs; 16 roundings if that is more."""


def changes_scores(call: AttentionCall, *also_read: str) -> bool:
    """Whether more than q·k · scale, which keys are visible, and ``also_read`` enters a layer's softmax maps."""
    unknown = unknown_arguments(call.unread(*also_read))
    return call.kind.pairing is Pairing.NONE and (bool(unknown) or _bias_of(call) is not None)


def without_bias(call: AttentionCall) -> AttentionCall:
    """The same call with a mask that only says which keys are visible, once for all heads.

    Raises:
        ValueError: heads see different keys.
    """
    mask = call.attention_mask
    if not isinstance(mask, Tensor) or (mask.shape[1] == 1 and _bias_of(call) is None):
        return call
    hidden = mask <= HIDDEN if mask.is_floating_point() else ~mask
    if not torch.equal(hidden.all(1), hidden.any(1)):
        raise ValueError(f"{type(call.module).__name__} has a separate attention mask per head, which is not supported")
    seen = torch.zeros_like(mask).masked_fill_(hidden, -torch.inf) if mask.is_floating_point() else mask
    return replace(call, attention_mask=seen[:, :1])


def own_maps(call: AttentionCall, heads: Tensor) -> Tensor:
    """The maps (B, maps, N, M) of a softmax layer with everything that it does to its scores; rows that see no key are
    zero. Statistics are in fp32, or fp64 for fp64.

    Sink logits have one known formula. Everything else is left to the eager attention function of the layer's own file,
    if it knows the argument: layers that choose keys (``indices`` of DeepSeek V3.2) hide the others in a mask for eager
    attention only.

    Args:
        heads: (B, N, heads, dv), what the layer computed; the maps must lead to it.

    Raises:
        NonFiniteError: weights are not finite.
        ValueError: the maps do not lead to it, or the layer has no eager function that knows its arguments, or attends
            to hidden keys.
    """
    name = type(call.module).__name__
    visible = _visible(call)
    query, key, value = (part.to(statistics_dtype(part.dtype)) for part in (call.query, call.key, call.value))
    if not changes_scores(call, "s_aux"):
        sinks: Tensor = call.arguments["s_aux"]
        maps = softmax_weights(query, key, visible, is_causal=False, sliding_window=None, scale=call.scale, s_aux=sinks)
    else:
        bias = _bias_of(call)
        base = query.new_zeros(()) if bias is None else bias.to(query.dtype)
        mask = torch.where(visible, base, torch.finfo(base.dtype).min)
        eager = _eager_of(call.module)
        call.refuse_unread("dropout", *inspect.signature(eager).parameters)
        shown = eager(call.module, query, key, value, mask, **call.arguments)[1]
        if shown is None:
            raise ValueError(f"the eager attention function of {name} shows no weights")
        maps = shown
    sees_none = ~visible.any(-1, keepdim=True)
    maps, heads = maps.masked_fill(sees_none, 0.0), heads.masked_fill(sees_none.transpose(1, 2), 0.0)
    if not bool(maps.isfinite().all()):
        raise NonFiniteError("its attention is NaN or infinite, so it measures nothing")
    if bool(maps.masked_fill(visible, 0.0).any()):
        raise ValueError(f"{name} has weight on keys hidden by its mask")
    values = value.repeat_interleave(maps.shape[1] // call.value.shape[1], dim=1)
    found, scale = ((maps @ part).transpose(1, 2) for part in (values, values.abs()))
    if found.shape != heads.shape or not is_close(found, heads, scale):
        raise ValueError(f"the weights that {name} shows in eager attention are not those that make its output")
    return maps


def shares(call: AttentionCall, heads: Tensor) -> Tensor:
    """``own_maps``, whose weights are shares of a query's attention.

    Raises:
        ValueError: weights are negative, as well as ``own_maps``.
    """
    maps = own_maps(call, heads)
    if bool((maps < 0).any()):
        raise ValueError(
            f"{type(call.module).__name__} has negative weights, which are no shares of attention; antiphase look "
            "shows its maps"
        )
    return maps


def is_close(found: Tensor, true: Tensor, scale: Tensor) -> bool:
    """Whether the distance is small relative to a scale, by their norms."""
    allowed = max(CLOSENESS, 16 * torch.finfo(true.dtype).eps)
    return bool((found - true).double().norm() <= allowed * scale.double().norm())


def _bias_of(call: AttentionCall) -> Tensor | None:
    """The additive mask of a call, if it holds more than 0 and values that hide a key."""
    mask = call.attention_mask
    if not isinstance(mask, Tensor) or not mask.is_floating_point():
        return None
    return None if bool(((mask == 0) | (mask <= HIDDEN)).all()) else mask


def _visible(call: AttentionCall) -> Tensor:
    """The keys that each query sees, (1|B, 1, N, M) bool."""
    seen, queries, keys = without_bias(call), call.query.shape[2], call.key.shape[2]
    found = combine_mask(
        seen.mask, queries, keys, is_causal=seen.is_causal, sliding_window=seen.sliding_window,
        device=call.query.device,
    )  # fmt: skip
    whole = torch.ones(1, 1, queries, keys, dtype=torch.bool, device=call.query.device)
    return whole if found is None else whole & found


def _eager_of(module: nn.Module) -> AttentionFunction:
    """``eager_attention_forward`` of the file that defines a layer's class."""
    homes: list[Any] = [sys.modules.get(one.__module__) for one in type(module).__mro__]
    for home in homes:
        if hasattr(home, "eager_attention_forward"):
            found: AttentionFunction = home.eager_attention_forward
            return found
    raise ValueError(f"{type(module).__name__} changes its scores and has no eager attention function to show how")
