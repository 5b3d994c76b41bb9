"""``DifferentialAttention``: a layer for any PyTorch model, in the place of multi-head attention."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from transformers import Cache

from antiphase.errors import InputError
from antiphase.interface import differential_output, visible_keys
from antiphase.models.attention import DifferentialAttentionV1
from antiphase.models.configuration import AntiphaseConfig


class DifferentialAttention(nn.Module):
    """Differential attention V1 (Ye et al., 2410.05258) over a batch of sequences, batch first.

    Self-attention, cross-attention with ``context``, causal or not, with a key-value cache; projections without biases.

    Args:
        hidden_size: width of the input and the output.
        num_attention_heads: softmax maps; the heads are half as many.
        num_key_value_heads: key maps; None: as many as ``num_attention_heads``.
        head_dim: width of a map; None: ``hidden_size / num_attention_heads``.
        context_size: width of ``context``; None: ``hidden_size``.
        is_causal: a query sees its own position and those before it, the last one aligned with the last key.
        layer_idx: 0-based depth of the layer, on which λinit depends, and its place in a cache.
        head_norm_eps: ε of the norm over each head's output.

    Raises:
        InputError: sizes that do not fit; it names the field.
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
        if layer_idx < 0:
            raise InputError(f"layer_idx must not be below 0, got {layer_idx}")
        if context_size is not None and context_size < 1:
            raise InputError(f"context_size must be at least 1, got {context_size}")
        config = AntiphaseConfig(
            attention_type="differential", hidden_size=hidden_size, num_attention_heads=num_attention_heads,
            num_key_value_heads=num_key_value_heads, head_dim=head_dim, num_hidden_layers=layer_idx + 1,
            head_norm_eps=head_norm_eps,
        )  # fmt: skip
        self.is_causal = is_causal
        self.layer_idx = layer_idx
        self.inner = DifferentialAttentionV1(config, layer_idx)
        if context_size is not None:
            keys = config.num_key_value_heads * config.head_dim
            self.inner.k_proj = nn.Linear(context_size, keys, bias=False)
            self.inner.v_proj = nn.Linear(context_size, keys, bias=False)
        for module in self.inner.modules():
            if isinstance(module, nn.Linear):
                nn.init.normal_(module.weight, std=config.initializer_range)
        self.inner.reset_lambda()

    def forward(
        self,
        hidden_states: Tensor,
        context: Tensor | None = None,
        *,
        attention_mask: Tensor | None = None,
        past_key_values: Cache | None = None,
    ) -> Tensor:
        """
        Args:
            hidden_states: (B, N, hidden).
            context: (B, M, context width) to attend to; None: the hidden states themselves.
            attention_mask: boolean, True = may attend: (B, M) for padding, or (1|B, 1, N, M), which then carries
                causality too.
            past_key_values: keys and values of earlier calls; these are added to it. A cache of fixed length needs a
                mask (1|B, 1, N, M) that hides what is not filled.

        Returns:
            (B, N, hidden).

        Raises:
            ValueError: a mask that is not boolean or of another shape, a context of another batch size, a cache
                together with ``context``, or a cache of fixed length without a mask by query.
        """
        if context is not None and past_key_values is not None:
            raise ValueError("past_key_values goes with self-attention; a context is the same at every step")
        if context is not None and len(context) != len(hidden_states):
            raise ValueError(f"context must have the batch size {len(hidden_states)}, got {len(context)}")
        layer = self.inner
        source = hidden_states if context is None else context
        query, key, value = (
            projection(tokens).unflatten(-1, (-1, layer.head_dim)).transpose(1, 2)
            for projection, tokens in (
                (layer.q_proj, hidden_states), (layer.k_proj, source), (layer.v_proj, source)
            )
        )  # fmt: skip
        if past_key_values is not None:
            filled = int(past_key_values.get_seq_length(self.layer_idx)) + key.shape[2]
            key, value = past_key_values.update(key, value, self.layer_idx)
            if key.shape[2] != filled and (attention_mask is None or attention_mask.dim() != 4):
                raise ValueError(
                    f"the cache holds {key.shape[2]} places for {filled} tokens; give attention_mask as (B, 1, N, M)"
                )
        mask = _checked_mask(attention_mask, batch=len(query), queries=query.shape[2], keys=key.shape[2])
        mask, is_causal = visible_keys(self, mask, query.shape[2])
        out = differential_output(
            query, key, value, layer.lam(), mask,
            halves=2, is_causal=is_causal, sliding_window=None, scaling=layer.scaling,
        )  # fmt: skip
        return layer.o_proj(layer.finish(out).to(hidden_states.dtype).flatten(2))


def _checked_mask(mask: Tensor | None, *, batch: int, queries: int, keys: int) -> Tensor | None:
    """(B, M) as (B, 1, 1, M); (1|B, 1, N, M) as it stands.

    Raises:
        ValueError: another dtype or shape.
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
