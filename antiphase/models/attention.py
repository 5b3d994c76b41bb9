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

from antiphase.interface import AttentionFunction, differential_function, subtracting_function
from antiphase.interface import eager_attention as eager_attention_forward  # transformers' name for what a module holds
from antiphase.models.classic_configs import VanillaConfig
from antiphase.models.configuration import AntiphaseConfig
from antiphase.ops.shapes import statistics_dtype

LAMBDA_STD = 0.1


class Attention(nn.Module):
    """Softmax attention with grouped keys, causal or not (Vaswani et al., 1706.03762, section 3.2)."""

    def __init__(
        self, config: AntiphaseConfig | VanillaConfig, layer_idx: int, *, is_causal: bool = True, bias: bool = False
    ) -> None:
        super().__init__()
        self.is_causal = is_causal
        self.config = config
        self.layer_idx = layer_idx
        self.head_dim = config.head_dim
        self.scaling = config.head_dim**-0.5
        self.num_key_value_groups = config.num_attention_heads // config.num_key_value_heads
        is_sliding = config.layer_types[layer_idx] == "sliding_attention"
        self.sliding_window = config.sliding_window if is_sliding else None
        queries = config.num_attention_heads * config.head_dim
        keys = config.num_key_value_heads * config.head_dim
        self.q_proj = nn.Linear(config.hidden_size, queries, bias=bias)
        self.k_proj = nn.Linear(config.hidden_size, keys, bias=bias)
        self.v_proj = nn.Linear(config.hidden_size, keys, bias=bias)
        self.o_proj = nn.Linear(self.outputs * config.head_dim, config.hidden_size, bias=bias)

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
        query = self._maps(self.q_proj(hidden_states))  # (B, maps, N, d)
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
        out, weights = self._attention_function()(
            self, query, key, value, attention_mask, scaling=self.scaling, dropout=0.0,
            sliding_window=self.sliding_window, **self._extra(hidden_states), **kwargs,
        )  # fmt: skip
        return self.o_proj(self._finish(out).reshape(*tokens, -1)), weights

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
        return {}

    def _finish(self, out: Tensor) -> Tensor:
        """What happens to the heads' outputs (B, N, heads, width) before the output projection."""
        return out


class _LambdaAndNorm(nn.Module):
    """What V1 adds to a softmax layer: λ by four vectors, and a norm of each head's output."""

    def _add_lambda_and_norm(self, width: int, layer_idx: int, eps: float) -> None:
        self.lambda_init = lambda_init(layer_idx)
        self.lambda_q1 = nn.Parameter(torch.zeros(width, dtype=torch.float32))
        self.lambda_k1 = nn.Parameter(torch.zeros(width, dtype=torch.float32))
        self.lambda_q2 = nn.Parameter(torch.zeros(width, dtype=torch.float32))
        self.lambda_k2 = nn.Parameter(torch.zeros(width, dtype=torch.float32))
        self.head_norm = nn.RMSNorm(2 * width, eps=eps)

    @torch.no_grad()
    def reset_lambda(self) -> None:
        """λ vectors from N(0, 0.1²) (2410.05258, section 2.1), drawn from the global generator."""
        for vector in (self.lambda_q1, self.lambda_k1, self.lambda_q2, self.lambda_k2):
            nn.init.normal_(vector, std=LAMBDA_STD)

    def lam(self) -> Tensor:
        """λ = exp(λq1·λk1) - exp(λq2·λk2) + λinit (equation 2), a 0-d fp32 tensor shared by the layer's heads."""
        with torch.autocast(self.lambda_q1.device.type, enabled=False):
            first = torch.exp(torch.dot(self.lambda_q1.float(), self.lambda_k1.float()))
            second = torch.exp(torch.dot(self.lambda_q2.float(), self.lambda_k2.float()))
            return first - second + self.lambda_init

    def finish(self, out: Tensor) -> Tensor:
        """(1 - λinit) · RMSNorm over the 2d channels of each head, (B, N, H, 2d) (equation 3)."""
        normed = self.head_norm(out.to(self.head_norm.weight.dtype))  # in full precision under autocast
        return normed * (1.0 - self.lambda_init)


class DifferentialHeads(_LambdaAndNorm):
    """The same as a module of its own, for the attention layers of other architectures."""

    def __init__(self, width: int, layer_idx: int, eps: float) -> None:
        super().__init__()
        self._add_lambda_and_norm(width, layer_idx, eps)
        self.reset_lambda()


class DifferentialAttentionV1(Attention, _LambdaAndNorm):
    """Differential attention of Ye et al., 2410.05258, section 2.1: pairs of maps, λ by layer, a norm by head."""

    def __init__(self, config: AntiphaseConfig | VanillaConfig, layer_idx: int, **options: bool) -> None:
        super().__init__(config, layer_idx, **options)
        self._add_lambda_and_norm(config.head_dim, layer_idx, config.head_norm_eps)

    def _attention_function(self) -> AttentionFunction:
        return differential_function(self.config._attn_implementation)

    def _extra(self, hidden_states: Tensor) -> dict[str, Any]:
        return {"lam": self.lam()}

    def _finish(self, out: Tensor) -> Tensor:
        return self.finish(out)


class DifferentialAttentionV2(Attention):
    """Differential attention V2 (Microsoft, January 2026): both maps of a head share key and value.

    λ by token and head, no head norm, no factor 1 - λinit, no schedule; half the output projection of V1.
    """

    def __init__(self, config: AntiphaseConfig | VanillaConfig, layer_idx: int, **options: bool) -> None:
        super().__init__(config, layer_idx, **options)
        self.lambda_proj = nn.Linear(config.hidden_size, config.num_attention_heads // 2, bias=False)

    @property
    def outputs(self) -> int:
        return self.config.num_attention_heads // 2

    def lam(self, hidden_states: Tensor) -> Tensor:
        """λ = sigmoid(x Wλ), (B, H, N) in fp32 (fp64), of the tokens (B, N, hidden) that ask."""
        return torch.sigmoid(self.lambda_proj(hidden_states).to(statistics_dtype(hidden_states.dtype))).transpose(1, 2)

    def _attention_function(self) -> AttentionFunction:
        return subtracting_function(self.config._attn_implementation)

    def _extra(self, hidden_states: Tensor) -> dict[str, Any]:
        return {"lam": self.lam(hidden_states)}


def lambda_init(layer_idx: int) -> float:
    """λinit = 0.8 - 0.6·exp(-0.3·(l - 1)) of the 1-based layer l; ``layer_idx`` is 0-based (section 2.1)."""
    return 0.8 - 0.6 * math.exp(-0.3 * layer_idx)


ATTENTION_LAYERS: dict[str, type[Attention]] = {
    "softmax": Attention,
    "differential": DifferentialAttentionV1,
    "differential_v2": DifferentialAttentionV2,
}
