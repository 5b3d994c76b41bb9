"""``DifferentialAttention`` and ``DifferentialAttentionV2``: layers for any PyTorch model, in place of multi-head
attention.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, Protocol, Self

import torch
from torch import Tensor, nn

from antiphase.base.errors import InputError
from antiphase.layers.attention import AttentionLayer, KeyValueCache
from antiphase.layers.differential import DifferentialAttentionV1
from antiphase.layers.differential_v2 import DifferentialAttentionV2 as PlainV2
from antiphase.layers.functions import eager_attention
from antiphase.ops.shapes import autocast_dtype

INITIAL_STD = 0.02
"""Standard deviation of the initial projection weights."""
INSTEAD = {
    "embed_dim": "it is called hidden_size",
    "num_heads": "give num_attention_heads, the number of maps, which is twice the number of heads",
    "kdim": "give context_size",
    "vdim": "give context_size",
    "batch_first": "leave it out: tokens are always (batch, tokens, width)",
    "attn_mask": "give attention_mask, in which True means may attend, the inverse of nn.MultiheadAttention's; a mask "
    "(N, M) of queries and keys is attention_mask=~attn_mask[None, None]",
    "key_padding_mask": "give attention_mask=~key_padding_mask",
    "need_weights": "give return_weights=True, or nothing for the output alone",
    "is_causal": "give it when the layer is made",
}
"""Arguments of ``nn.MultiheadAttention``, each with what to write here."""


class SizedCache(KeyValueCache, Protocol):
    """A cache that also reports how many tokens it holds."""

    def get_seq_length(self, layer_idx: int) -> int:
        """Number of tokens from earlier calls of a layer."""


class _Layer(nn.Module):
    """What both layers share: initial values, checks, and the call."""

    def __new__(cls, *args: Any, **given: Any) -> Self:
        """Refuse other names of the sizes before Python says that the right ones are missing."""
        _refuse(given.keys() & {"embed_dim", "num_heads"})
        return super().__new__(cls)

    def __init__(self, inner: _Checked, context_size: int | None, dropout: float, others: Collection[str]) -> None:
        super().__init__()
        _refuse(others)
        if dropout:
            raise InputError(
                f"dropout must be 0, got {dropout!r}: the weights are never formed", "apply nn.Dropout to the output"
            )
        self.is_causal, self.layer_idx, self.inner = inner.is_causal, inner.layer_idx, inner
        if context_size is not None:
            if context_size < 1:
                raise InputError(f"context_size must be at least 1, got {context_size}")
            for name in ("k_proj", "v_proj"):  # after the others, so that equal seeds still give the same values
                old = getattr(inner, name)
                setattr(inner, name, nn.Linear(context_size, old.out_features, bias=old.bias is not None))
        for module in inner.modules():
            if isinstance(module, nn.Linear):
                nn.init.normal_(module.weight, std=INITIAL_STD)
                if module.bias is not None:
                    nn.init.zeros_(module.bias)
        inner.reset_added()

    def forward(
        self,
        hidden_states: Tensor,
        context: Tensor | None = None,
        *more: Any,
        attention_mask: Tensor | None = None,
        past_key_values: SizedCache | None = None,
        return_weights: bool = False,
        **others: Any,
    ) -> Any:
        """
        Args:
            hidden_states: (B, N, hidden).
            context: (B, M, context width) to attend to, which needs ``is_causal=False``; None means self-attention.
            attention_mask: boolean, True = may attend: (B, M) for padding, or (1|B, 1, N, M), which must then include
                causality.
            past_key_values: a ``Cache`` of transformers with the keys and values of earlier calls, to which new ones
                are added. A cache of fixed length needs a mask (1|B, 1, N, M) that hides its unfilled part.
            return_weights: also return the signed weights; they take memory of N × M.

        Returns:
            (B, N, hidden), and with ``return_weights`` the weights (B, H, N, M) in fp32 (fp64) as well.

        Raises:
            TypeError: an argument of ``nn.MultiheadAttention`` that this layer does not have; the message says what to
                write.
            ValueError: the tokens have another shape or dtype than the layer, the mask is not boolean or has another
                shape, the context has another batch size or the layer is causal, both a cache and ``context`` are
                given, the layer has no ``layer_idx`` for a cache, or a cache of fixed length comes without a mask per
                query.
        """
        _refuse(others)
        if more:
            raise TypeError("give hidden_states alone for self-attention, or hidden_states and context: keys and "
                            "values come from the same tokens, unlike those of nn.MultiheadAttention")  # fmt: skip
        _check_tokens("hidden_states", hidden_states, self.inner.q_proj)
        if context is None:
            _check_tokens("without context, hidden_states", hidden_states, self.inner.k_proj)
        else:
            if len(context) != len(hidden_states):
                raise ValueError(f"context must have the batch size {len(hidden_states)}, got {len(context)}")
            _check_tokens("context", context, self.inner.k_proj)
        filled = None
        if past_key_values is not None:
            # 0 for a layer without an index, which the inner layer refuses
            filled = int(past_key_values.get_seq_length(self.layer_idx or 0)) + hidden_states.shape[1]
        out, weights = self.inner(
            hidden_states, None, attention_mask, past_key_values, context, filled=filled, return_weights=return_weights
        )
        return (out, weights) if return_weights else out


class DifferentialAttention(_Layer):
    """Differential attention V1 (Ye et al., 2410.05258) for any PyTorch model, batch first.

    Supports self-attention, cross-attention (``context``), causal masks and a key-value cache. It is causal unless it
    is given ``is_causal=False``.

    Example:
        >>> attention = antiphase.DifferentialAttention(256, num_attention_heads=8, layer_idx=0)
        >>> attention(torch.randn(2, 16, 256)).shape
        torch.Size([2, 16, 256])

    Args:
        hidden_size: width of the input and the output.
        num_attention_heads: number of softmax maps, twice the number of heads.
        layer_idx: 0-based depth of the layer, which sets λinit as published and the index in a cache, which needs it;
            None means λinit = 0.8.
        num_key_value_heads: number of key maps; None means ``num_attention_heads``.
        head_dim: width of a map; None means ``hidden_size / num_attention_heads``.
        context_size: width of ``context``; None means ``hidden_size``.
        is_causal: a query sees its own position and those before it; the last query is aligned with the last key. An
            encoder and cross-attention need False.
        bias: whether the projections have biases.
        dropout: must be 0; there is no dropout of attention weights.
        head_norm_eps: ε of the norm of each head's output.

    Raises:
        TypeError: an argument is that of ``nn.MultiheadAttention``; the message says what to write.
        InputError: a size is invalid; the message names the argument.
    """

    def __init__(
        self,
        hidden_size: int,
        num_attention_heads: int,
        *,
        layer_idx: int | None = None,
        num_key_value_heads: int | None = None,
        head_dim: int | None = None,
        context_size: int | None = None,
        is_causal: bool = True,
        bias: bool = False,
        dropout: float = 0.0,
        head_norm_eps: float = 1e-5,
        **others: Any,
    ) -> None:
        inner = _CheckedV1(
            hidden_size, num_attention_heads, num_key_value_heads=num_key_value_heads, head_dim=head_dim,
            is_causal=is_causal, layer_idx=layer_idx, bias=bias,
            head_norm_eps=head_norm_eps, initialize=False,
        )  # fmt: skip
        super().__init__(inner, context_size, dropout, others)


class DifferentialAttentionV2(_Layer):
    """Differential attention V2 (Microsoft, January 2026), used as ``DifferentialAttention``.

    Both maps of a head share key and value, λ is learned per token and head, and there is no norm of the heads' outputs
    and no λinit.

    Example:
        >>> attention = antiphase.DifferentialAttentionV2(256, num_attention_heads=8, layer_idx=0)
        >>> attention(torch.randn(2, 16, 256)).shape
        torch.Size([2, 16, 256])

    Args:
        num_key_value_heads: number of keys; None means one a head, ``num_attention_heads / 2``.
        layer_idx: the index in a cache, which needs it.
        hidden_size, num_attention_heads, head_dim, context_size, is_causal, bias, dropout: as in
            ``DifferentialAttention``.

    Raises:
        TypeError, InputError: as there.
    """

    def __init__(
        self,
        hidden_size: int,
        num_attention_heads: int,
        *,
        layer_idx: int | None = None,
        num_key_value_heads: int | None = None,
        head_dim: int | None = None,
        context_size: int | None = None,
        is_causal: bool = True,
        bias: bool = False,
        dropout: float = 0.0,
        **others: Any,
    ) -> None:
        inner = _CheckedV2(
            hidden_size, num_attention_heads, num_key_value_heads=num_key_value_heads, head_dim=head_dim,
            is_causal=is_causal, layer_idx=layer_idx, bias=bias,
        )  # fmt: skip
        super().__init__(inner, context_size, dropout, others)


def _refuse(others: Collection[str]) -> None:
    """
    Raises:
        TypeError: there are arguments without a meaning here; the message says what to write.
    """
    for name in sorted(others):
        raise TypeError(f"{name} is not an argument here; {INSTEAD.get(name, 'see help() of the layer')}")


def _check_tokens(name: str, tokens: Tensor, projection: nn.Module) -> None:
    """
    Raises:
        ValueError: the tokens have another shape or dtype than the projection.
    """
    if type(projection) is not nn.Linear:  # adapters and quantized projections have rules of their own
        return
    if tokens.dim() != 3 or tokens.shape[-1] != projection.in_features:
        raise ValueError(
            f"{name} must have the shape (batch, tokens, {projection.in_features}), got {tuple(tokens.shape)}"
        )
    dtype = projection.weight.dtype
    if tokens.dtype != dtype and not (tokens.is_floating_point() and autocast_dtype(tokens)):
        raise ValueError(
            f"{name} has the dtype {tokens.dtype}, but the layer has {dtype}: use {name}.to({dtype}), or convert the "
            "layer with its .to(dtype)"
        )


class _Checked(AttentionLayer):
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
        return_weights: bool = False,
        **kwargs: Any,
    ) -> tuple[Tensor, Tensor | None]:
        """``filled``: number of tokens in a cache of fixed length."""
        keys = key.shape[2]
        if filled not in (None, keys) and (attention_mask is None or attention_mask.dim() != 4):
            raise ValueError(f"the cache holds {keys} places for {filled} tokens; give attention_mask as (B, 1, N, M)")
        mask = _checked_mask(attention_mask, batch=len(query), queries=query.shape[2], keys=keys)
        if not return_weights:
            return super()._attend(query, key, value, mask, hidden_states, **kwargs)
        out, weights = eager_attention(
            self, query, key, value, mask, scaling=self.scaling, sliding_window=self.sliding_window,
            **self._extra(hidden_states), **kwargs,
        )  # fmt: skip
        return self._finish(out, hidden_states), weights


class _CheckedV1(_Checked, DifferentialAttentionV1):
    """V1 with these checks."""


class _CheckedV2(_Checked, PlainV2):
    """V2 with these checks."""


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
            f"{', which is mask[None, None]' if tuple(mask.shape) == (queries, keys) else ''}"
        )
    return mask[:, None, None, :] if mask.dim() == 2 else mask
