"""Attention layers: one skeleton, in which softmax and differential attention differ in a few places.

Legend: B batch, N new tokens, M keys, d width of a map.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn
from transformers import Cache, EncoderDecoderCache
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS
from transformers.models.llama.modeling_llama import apply_rotary_pos_emb

from antiphase.interface import (
    AttentionFunction,
    antiphase_attention,
    carries_positions,
    differential_function,
    refuse_unknown,
    subtracting_function,
    visible_keys,
)
from antiphase.interface import eager_attention as eager_attention_forward  # transformers' name for what a module holds
from antiphase.models.norm import RMSNorm
from antiphase.models.start import mark_first_weight, mark_residual_output
from antiphase.models.variants import ACROSS, variant_of
from antiphase.ops.layer import exponential_lambda, v1_step
from antiphase.ops.shapes import statistics_dtype

LAMBDA_STD = 0.1
ZERO_AT_START = ("sinks", "lambda_offset", "dex_weight", "dex_lambda")
"""Parameters of variants that begin at 0, so that a layer begins as its published form does."""


class Attention(nn.Module):
    """Softmax attention with grouped keys, causal or not (Vaswani et al., 1706.03762, section 3.2).

    Its variants, by fields of the configuration: a norm of each head's output; ``output_gate``, a sigmoid gate on every
    channel of the heads' outputs, from the layer's input (2505.06708, G1 elementwise); ``sink_logits``, a learned logit
    of each map in the denominator of its softmax, as in gpt-oss; ``dex_heads``, DEX (2505.16333).
    """

    def __init__(self, config: Any, layer_idx: int, *, is_causal: bool = True, bias: bool = False) -> None:
        super().__init__()
        self.is_causal = is_causal
        self.config = config
        self.layer_idx = layer_idx
        self.head_dim = config.head_dim
        self.scaling = config.head_dim**-0.5
        self.num_key_value_groups = config.num_attention_heads // config.num_key_value_heads
        is_sliding = config.layer_types[layer_idx] == "sliding_attention"
        self.sliding_window = config.sliding_window if is_sliding else None
        self.variant = variant_of(config)
        queries = self.queries * config.head_dim
        keys = config.num_key_value_heads * config.head_dim
        self.q_proj = nn.Linear(config.hidden_size, queries, bias=bias)
        self.k_proj = nn.Linear(config.hidden_size, keys, bias=bias)
        self.v_proj = nn.Linear(config.hidden_size, keys, bias=bias)
        self.o_proj = nn.Linear(self.outputs * config.head_dim, config.hidden_size, bias=bias)
        mark_residual_output(self.o_proj)
        self._add_variant()

    def _add_variant(self) -> None:
        """Parameters besides the four projections."""
        variant, config, width = self.variant, self.config, self.head_dim
        if variant.head_norm:
            self.head_norm = RMSNorm(self.head_width, config.head_norm_eps, self.head_factor)
            mark_first_weight(self.head_norm, getattr(config, "head_norm_init", 1.0))
        if variant.output_gate:
            self.output_gate = nn.Linear(config.hidden_size, self.outputs * width, bias=False)
        if variant.sink_logits:
            self.sinks = nn.Parameter(torch.zeros(config.num_attention_heads))
        if variant.dex_heads is not None:
            self.dex_weight = nn.Parameter(torch.zeros(width, width))
            self.dex_lambda = nn.Parameter(torch.zeros(1, dtype=torch.float32))
            self.dex_progress = 1.0

    @torch.no_grad()
    def reset_variant(self) -> None:
        """What a variant adds, as it begins; drawn from nothing."""
        for name in ZERO_AT_START:
            if isinstance(getattr(self, name, None), nn.Parameter):
                nn.init.zeros_(getattr(self, name))

    @property
    def queries(self) -> int:
        """Vectors of width d that a token asks with."""
        return self.config.num_attention_heads

    @property
    def head_width(self) -> int:
        """Width of a head's output."""
        return self.head_dim

    @property
    def head_factor(self) -> float:
        """Constant factor of the heads' outputs, behind their norm."""
        return 1.0

    @property
    def outputs(self) -> int:
        """Vectors of width d that the heads give together."""
        return self.config.num_attention_heads

    def forward(
        self,
        hidden_states: Tensor,
        position_embeddings: tuple[Tensor, Tensor] | None,
        attention_mask: Tensor | None = None,
        past_key_values: Cache | None = None,
        context: Tensor | None = None,
        **kwargs: Any,
    ) -> tuple[Tensor, Tensor | None]:
        """(B, N, hidden) to (B, N, hidden), and the weights where the implementation forms them.

        Args:
            position_embeddings: cosines and sines of rotary positions; None: none.
            context: (B, M, hidden) of another sequence to attend to, the same at every step; None: the hidden states.
        """
        tokens = hidden_states.shape[:-1]
        query = self._queries(hidden_states)  # (B, maps, N, d)
        if context is None:
            key, value = self._maps(self.k_proj(hidden_states)), self._maps(self.v_proj(hidden_states))
            if position_embeddings is not None:
                query, key = apply_rotary_pos_emb(query, key, *position_embeddings)
            if isinstance(past_key_values, EncoderDecoderCache):
                past_key_values = past_key_values.self_attention_cache
            if past_key_values is not None:
                key, value = past_key_values.update(key, value, self.layer_idx)
        else:
            assert past_key_values is None or isinstance(past_key_values, EncoderDecoderCache)
            key, value = self._keys_of_context(context, past_key_values)
        out, weights = self._attend(query, key, value, attention_mask, hidden_states, **kwargs)
        out = out.reshape(*tokens, -1)
        if self.variant.output_gate:
            out = out * torch.sigmoid(self.output_gate(hidden_states))
        return self.o_proj(out), weights

    def _attend(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attention_mask: Tensor | None,
        hidden_states: Tensor,
        **kwargs: Any,
    ) -> tuple[Tensor, Tensor | None]:
        """The heads' outputs (B, N, heads, width) before gate and output projection, and the weights or None."""
        out, weights = self._attention_function()(
            self, query, key, value, attention_mask, scaling=self.scaling, dropout=0.0,
            sliding_window=self.sliding_window, **self._extra(hidden_states), **kwargs,
        )  # fmt: skip
        return self._finish(out, hidden_states), weights

    def _queries(self, hidden_states: Tensor) -> Tensor:
        """(B, N, hidden) to (B, maps, N, d)."""
        return self._maps(self.q_proj(hidden_states))

    def _maps(self, projected: Tensor) -> Tensor:
        """(B, N, maps · d) as (B, maps, N, d)."""
        return projected.unflatten(-1, (-1, self.head_dim)).transpose(1, 2)

    def _keys_of_context(self, context: Tensor, cache: EncoderDecoderCache | None) -> tuple[Tensor, Tensor]:
        """Keys and values (B, key maps, M, d) of another sequence, projected once where there is a cache."""
        if cache is not None and cache.is_updated.get(self.layer_idx):
            kept = cache.cross_attention_cache.layers[self.layer_idx]
            return kept.keys, kept.values
        key, value = self._maps(self.k_proj(context)), self._maps(self.v_proj(context))
        if cache is not None:
            key, value = cache.cross_attention_cache.update(key, value, self.layer_idx)
            cache.is_updated[self.layer_idx] = True
        return key, value

    def _attention_function(self) -> AttentionFunction:
        return ALL_ATTENTION_FUNCTIONS.get_interface(self.config._attn_implementation, eager_attention_forward)

    def _extra(self, hidden_states: Tensor) -> dict[str, Any]:
        """Arguments of the attention function beside those of softmax attention."""
        return {"s_aux": self.sinks} if self.variant.sink_logits else {}

    def _finish(self, out: Tensor, hidden_states: Tensor) -> Tensor:
        """What happens to the heads' outputs (B, N, heads, width) before gate and output projection."""
        if self.variant.dex_heads is not None:
            chosen = [head in self.variant.dex_heads[self.layer_idx] for head in range(out.shape[2])]
            scale = self.extension_lambda() * torch.tensor(chosen, device=out.device)  # (heads,)
            out = out - scale[:, None].to(out.dtype) * (out @ self.dex_weight.to(out.dtype))
        return self.head_norm(out) if self.variant.head_norm else out

    def extension_lambda(self) -> Tensor:
        """λ(t) = (1 - α)·α·λinit + α·λlearned of DEX (2505.16333, equation 4), (1,) in fp32.

        α = min(1, t / ``dex_steps``) at training step t; 1 in a model that is not being trained.
        """
        alpha = self.dex_progress
        return (1.0 - alpha) * alpha * lambda_init(self.layer_idx) + alpha * self.dex_lambda


class _LambdaAndNorm(nn.Module):
    """What V1 adds to a softmax layer: λ by four vectors, and a norm of each head's output."""

    lambda_init: float
    head_norm: RMSNorm

    def _add_lambda(self, width: int) -> None:
        self.lambda_q1 = nn.Parameter(torch.zeros(width, dtype=torch.float32))
        self.lambda_k1 = nn.Parameter(torch.zeros(width, dtype=torch.float32))
        self.lambda_q2 = nn.Parameter(torch.zeros(width, dtype=torch.float32))
        self.lambda_k2 = nn.Parameter(torch.zeros(width, dtype=torch.float32))

    @torch.no_grad()
    def reset_lambda(self) -> None:
        """λ vectors from N(0, 0.1²) (2410.05258, section 2.1), drawn from the global generator."""
        for vector in (self.lambda_q1, self.lambda_k1, self.lambda_q2, self.lambda_k2):
            nn.init.normal_(vector, std=LAMBDA_STD)

    def lam(self) -> Tensor:
        """λ = exp(λq1·λk1) - exp(λq2·λk2) + λinit (equation 2), a 0-d fp32 tensor shared by the layer's heads."""
        return exponential_lambda(self._vectors(), self.lambda_init)

    def step(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        mask: Tensor | None,
        *,
        is_causal: bool,
        sliding_window: int | None,
        scale: float,
    ) -> Tensor | None:
        """The heads' outputs (B, N, H, 2d), normed, of a decoding step in one call; None where it does not apply.

        Arguments as in ``v1_step``. A norm that has hooks, or that was replaced by another module, is called as usual.
        """
        norm = self.head_norm
        if type(norm) is not RMSNorm or norm._forward_hooks or norm._forward_pre_hooks:
            return None
        out = v1_step(
            query, key, value, self._vectors(), norm.weight, mask, is_causal=is_causal, sliding_window=sliding_window,
            scale=scale, initial=self.lambda_init, eps=norm.eps, factor=norm.factor,
        )  # fmt: skip
        return None if out is None else out.transpose(1, 2)

    def _vectors(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        return self.lambda_q1, self.lambda_k1, self.lambda_q2, self.lambda_k2

    def finish(self, out: Tensor) -> Tensor:
        """(1 - λinit) · RMSNorm over the 2d channels of each head, (B, N, H, 2d) (equation 3)."""
        return self.head_norm(out)


class DifferentialHeads(_LambdaAndNorm):
    """The same as a module of its own, for the attention layers of other architectures."""

    def __init__(self, width: int, layer_idx: int, eps: float) -> None:
        super().__init__()
        self.lambda_init = lambda_init(layer_idx)
        self._add_lambda(width)
        self.head_norm = RMSNorm(2 * width, eps, 1.0 - self.lambda_init)
        self.reset_lambda()


class DifferentialAttentionV1(Attention, _LambdaAndNorm):
    """Differential attention of Ye et al., 2410.05258, section 2.1: pairs of maps, λ by layer, a norm by head.

    With ``num_noise_heads`` below the number of heads: grouped differential attention (2510.06949, section 2.2), in
    which as many heads as there are for each noise head subtract the same second map.
    """

    def _add_variant(self) -> None:
        constant, form = self.variant.lambda_init, self.variant.lambda_form
        self.lambda_init = lambda_init(self.layer_idx) if constant is None else constant
        if form == "exponential":
            self._add_lambda(self.head_dim)
        elif form != "fixed":
            count = self.config.num_attention_heads // 2 if form == "head" else 1
            self.lambda_offset = nn.Parameter(torch.zeros(count, dtype=torch.float32))
        super()._add_variant()

    @property
    def queries(self) -> int:
        heads = self.config.num_attention_heads // 2
        return heads + (heads if self.variant.num_noise_heads is None else self.variant.num_noise_heads)

    @property
    def head_width(self) -> int:
        return 2 * self.head_dim

    @property
    def head_factor(self) -> float:
        return 1.0 - self.lambda_init if self.variant.head_scale else 1.0

    def reset_variant(self) -> None:
        super().reset_variant()
        if self.variant.lambda_form == "exponential":
            self.reset_lambda()

    def lam(self) -> Tensor:
        """λ of the published form; in ablations λinit ("fixed"), or λinit and a learned number ("scalar").

        0-d in fp32; with a learned number for each head ("head") it is (H, 1).
        """
        form = self.variant.lambda_form
        if form == "exponential":
            return super().lam()
        if form == "fixed":
            return torch.tensor(self.lambda_init, dtype=torch.float32, device=self.q_proj.weight.device)
        return self.lambda_init + (self.lambda_offset[:, None] if form == "head" else self.lambda_offset[0]).float()

    def _queries(self, hidden_states: Tensor) -> Tensor:
        """Maps 2i and 2i + 1 of head i; a noise head's query follows those of its heads in ``q_proj``."""
        maps = super()._queries(hidden_states)
        noise = self.variant.num_noise_heads
        if noise is None:
            return maps
        grouped = maps.unflatten(1, (noise, -1))  # (B, noise heads, their heads + 1, N, d)
        signal = grouped[:, :, :-1]
        return torch.stack([signal, grouped[:, :, -1:].expand_as(signal)], dim=3).flatten(1, 3)

    def _attention_function(self) -> AttentionFunction:
        return differential_function(self.config._attn_implementation)

    def _extra(self, hidden_states: Tensor) -> dict[str, Any]:
        return {"lam": self.lam()}

    def _attend(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attention_mask: Tensor | None,
        hidden_states: Tensor,
        **kwargs: Any,
    ) -> tuple[Tensor, Tensor | None]:
        published = self.variant.lambda_form == "exponential" and self.variant.head_norm
        if published and query.shape[2] == 1 and self._attention_function() is antiphase_attention:
            refuse_unknown(kwargs)
            mask, _ = visible_keys(self, attention_mask, 1)
            out = self.step(
                query, key, value, mask, is_causal=False, scale=self.scaling,
                sliding_window=None if carries_positions(mask, 1) else self.sliding_window,
            )  # fmt: skip
            if out is not None:
                return out, None
        return super()._attend(query, key, value, attention_mask, hidden_states, **kwargs)

    def _finish(self, out: Tensor, hidden_states: Tensor) -> Tensor:
        """(1 - λinit) · RMSNorm of each head (equation 3), without what an ablation leaves out."""
        return self.head_norm(out) if self.variant.head_norm else out * self.head_factor


class DifferentialAttentionV2(Attention):
    """Differential attention V2 (Microsoft, January 2026): both maps of a head share key and value.

    λ by token and head, no head norm, no factor 1 - λinit, no schedule; half the output projection of V1. Ablations:
    λ without its sigmoid ("linear"), and no λ, which is λ = 1 ("fixed").
    """

    def __init__(self, config: Any, layer_idx: int, **options: bool) -> None:
        super().__init__(config, layer_idx, **options)
        if self.variant.lambda_form != "fixed":
            self.lambda_proj = nn.Linear(config.hidden_size, config.num_attention_heads // 2, bias=False)

    @property
    def outputs(self) -> int:
        return self.config.num_attention_heads // 2

    def lam(self, hidden_states: Tensor) -> Tensor:
        """λ = sigmoid(x Wλ), (B, H, N) in fp32 (fp64), of the tokens (B, N, hidden) that ask."""
        dtype = statistics_dtype(hidden_states.dtype)
        if self.variant.lambda_form == "fixed":
            return hidden_states.new_ones(1, 1, 1, dtype=dtype)
        projected = self.lambda_proj(hidden_states).to(dtype).transpose(1, 2)
        return projected if self.variant.lambda_form == "linear" else torch.sigmoid(projected)

    def _attention_function(self) -> AttentionFunction:
        return subtracting_function(self.config._attn_implementation)

    def _extra(self, hidden_states: Tensor) -> dict[str, Any]:
        return {"lam": self.lam(hidden_states)}


class DifferentialAttentionAcross(DifferentialAttentionV2):
    """V2 with map i subtracting map i + H, which reads another key and value: the pairing that V2 warns of."""

    def _attention_function(self) -> AttentionFunction:
        return Attention._attention_function(self)

    def _extra(self, hidden_states: Tensor) -> dict[str, Any]:
        return {}

    def _finish(self, out: Tensor, hidden_states: Tensor) -> Tensor:
        first, second = out.chunk(2, dim=2)  # (B, N, H, d)
        lam = self.lam(hidden_states).transpose(1, 2).unsqueeze(-1).to(second.dtype)
        return super()._finish(first - lam * second, hidden_states)


def lambda_init(layer_idx: int) -> float:
    """λinit = 0.8 - 0.6·exp(-0.3·(l - 1)) of the 1-based layer l; ``layer_idx`` is 0-based (section 2.1)."""
    return 0.8 - 0.6 * math.exp(-0.3 * layer_idx)


ATTENTION_LAYERS: dict[str, type[Attention]] = {
    "softmax": Attention,
    "differential": DifferentialAttentionV1,
    "differential_v2": DifferentialAttentionV2,
    ACROSS: DifferentialAttentionAcross,
}


def set_training_step(model: nn.Module, step: int) -> None:
    """Tell the layers that anneal something which step of a training run they are at."""
    for layer in model.modules():
        if isinstance(layer, Attention) and layer.variant.dex_heads is not None:
            layer.dex_progress = min(1.0, step / layer.variant.dex_steps) if layer.variant.dex_steps else 1.0
