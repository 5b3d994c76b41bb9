"""``DifferentialAttention``: a layer for any PyTorch model, as a replacement for multi-head attention."""

from __future__ import annotations

from typing import Any, Protocol

import torch
from torch import Tensor, nn

from antiphase.errors import InputError
from antiphase.layers.attention import KeyValueCache
from antiphase.layers.differential import DifferentialAttentionV1

INITIAL_STD = 0.02
"""Standard deviation of the initial projection weights."""


class SizedCache(KeyValueCache, Protocol):
    """A cache that also reports how many tokens it holds."""

    def get_seq_length(self, layer_idx: int) -> int:
        """Number of tokens from earlier calls of a layer."""


class DifferentialAttention(nn.Module):
    """Differential attention V1 (Ye et al., 2410.05258) for any PyTorch model, batch first.

    Supports self-attention, cross-attention (``context``), causal masks and a key-value cache; projections have no
    biases.

    Example:
        >>> attention = antiphase.DifferentialAttention(256, num_attention_heads=8, is_causal=True, layer_idx=0)
        >>> attention(torch.randn(2, 16, 256)).shape
        torch.Size([2, 16, 256])

    Args:
        hidden_size: width of the input and the output.
        num_attention_heads: number of softmax maps, twice the number of heads.
        num_key_value_heads: number of key maps; None means ``num_attention_heads``.
        head_dim: width of a map; None means ``hidden_size / num_attention_heads``.
        context_size: width of ``context``; None means ``hidden_size``.
        is_causal: a query sees its own position and those before it; the last query is aligned with the last key.
        layer_idx: 0-based depth of the layer, which sets λinit and the index in a cache.
        head_norm_eps: ε of the norm of each head's output.

    Raises:
        InputError: a size is invalid; the message names the argument.
    """

    def __init__(
        self,
        hidden_size: int,
        num_attention_heads: int,
        *,
        num_key_value_heads: int | None = None,
        head_dim: int | None = None,
        context_size: int | None = None,
        is_causal: bool = False,
        layer_idx: int = 0,
        head_norm_eps: float = 1e-5,
    ) -> None:
        super().__init__()
        self.is_causal = is_causal
        self.layer_idx = layer_idx
        self.inner = _CheckedAttention(
            hidden_size, num_attention_heads, num_key_value_heads=num_key_value_heads, head_dim=head_dim,
            is_causal=is_causal, layer_idx=layer_idx, head_norm_eps=head_norm_eps, initialize=False,
        )  # fmt: skip
        if context_size is not None:
            if context_size < 1:
                raise InputError(f"context_size must be at least 1, got {context_size}")
            for name in ("k_proj", "v_proj"):  # after the others, so that equal seeds still give the same values
                setattr(self.inner, name, nn.Linear(context_size, self.inner.k_proj.out_features, bias=False))
        for module in self.inner.modules():
            if isinstance(module, nn.Linear):
                nn.init.normal_(module.weight, std=INITIAL_STD)
        self.inner.reset_lambda()

    def forward(
        self,
        hidden_states: Tensor,
        context: Tensor | None = None,
        *,
        attention_mask: Tensor | None = None,
        past_key_values: SizedCache | None = None,
    ) -> Tensor:
        """
        Args:
            hidden_states: (B, N, hidden).
            context: (B, M, context width) to attend to; None means self-attention.
            attention_mask: boolean, True = may attend: (B, M) for padding, or (1|B, 1, N, M), which must then include
                causality.
            past_key_values: a ``Cache`` of transformers with the keys and values of earlier calls, to which new ones
                are added. A cache of fixed length needs a mask (1|B, 1, N, M) that hides its unfilled part.

        Returns:
            (B, N, hidden).

        Raises:
            ValueError: the mask is not boolean or has another shape, the context has another batch size, both a cache
                and ``context`` are given, or a cache of fixed length comes without a mask per query.
        """
        if context is not None and len(context) != len(hidden_states):
            raise ValueError(f"context must have the batch size {len(hidden_states)}, got {len(context)}")
        filled = None
        if past_key_values is not None:
            filled = int(past_key_values.get_seq_length(self.layer_idx)) + hidden_states.shape[1]
        out, _ = self.inner(hidden_states, None, attention_mask, past_key_values, context, filled=filled)
        return out


class _CheckedAttention(DifferentialAttentionV1):
    """Checks the user's masks once the number of keys is known."""

    def _attend(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attention_mask: Tensor | None,
        hidden_states: Tensor,
        *,
        filled: int | None = None,
        **kwargs: Any,
    ) -> tuple[Tensor, Tensor | None]:
        """``filled``: number of tokens in a cache of fixed length."""
        keys = key.shape[2]
        if filled not in (None, keys) and (attention_mask is None or attention_mask.dim() != 4):
            raise ValueError(f"the cache holds {keys} places for {filled} tokens; give attention_mask as (B, 1, N, M)")
        mask = _checked_mask(attention_mask, batch=len(query), queries=query.shape[2], keys=keys)
        return super()._attend(query, key, value, mask, hidden_states, **kwargs)


def _checked_mask(mask: Tensor | None, *, batch: int, queries: int, keys: int) -> Tensor | None:
    """(B, M) as (B, 1, 1, M); (1|B, 1, N, M) unchanged.

    Raises:
        ValueError: the mask has another dtype or shape.
    """
    if mask is None:
        return None
    shapes = {(batch, keys), (batch, 1, queries, keys), (1, 1, queries, keys)}
    if mask.dtype != torch.bool or tuple(mask.shape) not in shapes:
        raise ValueError(
            f"attention_mask must be boolean (True = may attend) of shape {(batch, keys)} or "
            f"{(batch, 1, queries, keys)}, got {mask.dtype} {tuple(mask.shape)}"
        )
    return mask[:, None, None, :] if mask.dim() == 2 else mask
