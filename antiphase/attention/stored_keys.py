"""Attention of a few tokens over the stored keys and values of a longer text, and over their own.

The ends of several texts with a common beginning, or several copies of an end, are further queries and keys of one
sequence, so that the stored keys are not copied.
Legend: B sequences, K copies of each, N tokens of a copy, R keys of its own, M stored keys.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention

from antiphase.attention.calls import AttentionCall
from antiphase.attention.rows import LayerRows, rows_of

NUMBERS_AT_ONCE = 1 << 27
"""Number of weights or logits of the copies that run at once, 0.5 GiB in fp32."""


@dataclass(frozen=True)
class Stored:
    """Tensors of one call of an attention function in the pass over a whole text."""

    module: nn.Module
    number: int
    """The model's number of the layer."""
    index: int
    """Index of the layer in the order of calls."""
    query: Tensor
    """(B, maps, N, d), of the last tokens."""
    key: Tensor
    """(B, key maps, M, d)."""
    value: Tensor
    visible: Tensor | None
    """(1|B, 1|maps, 1|N, M): keys that the last tokens see; None: all."""
    window: int | None
    """The sliding window of the layer, if it has one."""


def attend(stored: Stored, call: AttentionCall, copies: int, visible: Tensor) -> tuple[AttentionCall, LayerRows]:
    """Attention of a call's B·K sequences over the stored keys of B sequences and over all keys of their copies.

    Args:
        call: with queries (B·K, maps, N, d) and their own keys (B·K, key maps, R, d).
        visible: (B, 1|maps, K·N, M + K·R), the keys that each query sees.

    Returns:
        The call with all keys and values (B, ·, M + K·R, ·), and the rows of its queries (K·N).
    """
    query, key, value = _joined(stored, call, copies)
    lam = call.lam if call.kind.subtracts else None
    if lam is not None and (lam.shape[0] > 1 or lam.shape[2] > 1):
        lam = lam.expand(len(call.query), -1, call.query.shape[2])
        lam = lam.unflatten(0, (-1, copies)).transpose(1, 2).flatten(2)
    return replace(call, key=key, value=value), rows_of(call, query, key, visible, lam)


def attended(stored: Stored, call: AttentionCall, copies: int, visible: Tensor) -> Tensor:
    """The heads' outputs (B·K, N, heads, dv) of ``attend``, where every query sees a key."""
    if call.kind.subtracts or call.arguments.get("s_aux") is not None:
        whole, rows = attend(stored, call, copies, visible)
        return apart(output_of(rows, whole.values), copies)
    query, key, value = _joined(stored, call, copies)
    key, value = (tensor.repeat_interleave(query.shape[1] // tensor.shape[1], dim=1) for tensor in (key, value))
    heads = scaled_dot_product_attention(query, key, value, attn_mask=visible, scale=call.scale)
    return apart(heads.transpose(1, 2), copies)


def _joined(stored: Stored, call: AttentionCall, copies: int) -> tuple[Tensor, Tensor, Tensor]:
    """Queries (B, maps, K·N, d), and all keys and values (B, ·, M + K·R, ·)."""
    key, value = (
        torch.cat([old, together(new, copies)], dim=2)
        for old, new in ((stored.key, call.key), (stored.value, call.value))
    )
    return together(call.query, copies), key, value


def together(new: Tensor, copies: int) -> Tensor:
    """(B·K, ·, N, ·) as (B, ·, K·N, ·)."""
    return new.unflatten(0, (-1, copies)).transpose(1, 2).flatten(2, 3)


def apart(outputs: Tensor, copies: int) -> Tensor:
    """(B, K·N, heads, dv) as (B·K, N, heads, dv)."""
    return outputs.unflatten(1, (copies, -1)).flatten(0, 1)


def among_copies(own: Tensor) -> Tensor:
    """Which keys of all copies a query sees, if it sees ``own`` (B, ·, K, N, R) of its own copy: (B, ·, K, N, K·R)."""
    same = torch.eye(own.shape[2], dtype=torch.bool, device=own.device)
    return (own.unsqueeze(-2) & same[:, None, :, None]).flatten(-2)


def output_of(rows: LayerRows, value: Tensor, *, only: Tensor | None = None, absolute: bool = False) -> Tensor:
    """Heads' outputs (B, N, heads, dv): weights times values, of ``only`` some keys (B, M), or with absolute values.

    ``value`` (B, value heads, M, dv) holds whole heads.
    """
    weights = rows.weights()  # (B, heads, N, M)
    if absolute:
        value = value.abs()
        weights = rows.maps[:, :, 0] if rows.lam is None else 2 * rows.maps[:, :, 0] - weights  # A1 + λ A2
    if only is not None:
        weights = weights * only[:, None, None]
    values = value.repeat_interleave(weights.shape[1] // value.shape[1], dim=1)
    return (weights.to(values.dtype) @ values).transpose(1, 2)
