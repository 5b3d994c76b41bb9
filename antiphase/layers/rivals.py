"""Rivals of differential attention that change how scores become weights, or what is done with a head's output.

Legend: B batch, N new tokens, M keys, d width of a map, H heads.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Unpack

from torch import Tensor
from torch.nn.functional import normalize

from antiphase.base.errors import InputError
from antiphase.layers.attention import AttentionLayer, CommonArguments
from antiphase.ops.shapes import statistics_dtype


class RivalAttention(AttentionLayer):
    """Attention with grouped keys and one map per head; the base of the kinds below.

    Args:
        hidden_size, num_attention_heads, common: as in ``AttentionLayer``.
        head_norm: whether to apply an RMSNorm to each head's output.
        output_gate: whether to apply a sigmoid gate to every channel of the heads' outputs (2505.06708).
    """

    passes: ClassVar[Mapping[str, str]] = {}
    """What the layer passes to the attention function, which must not ignore it, and what it is for."""

    def __init__(
        self,
        hidden_size: int,
        num_attention_heads: int,
        *,
        head_norm: bool = False,
        output_gate: bool = False,
        **common: Unpack[CommonArguments],
    ) -> None:
        common = self.checked(
            hidden_size=hidden_size, num_attention_heads=num_attention_heads, head_norm=head_norm,
            output_gate=output_gate, **common,
        )  # fmt: skip
        maps = num_attention_heads
        super().__init__(hidden_size, maps, queries=maps, outputs=maps, **common)
        self._add_norm_and_gate(head_norm=head_norm, output_gate=output_gate, width=self.head_dim)

    @classmethod
    def needs(cls, given: Mapping[str, Any]) -> dict[str, str]:
        return dict(cls.passes)


class SoftmaxOneAttention(RivalAttention):
    """Softmax-1, eˣ / (1 + Σ eˣ): a sink logit that stays 0, so that a head may attend to nothing (Miller, 2023)."""

    passes: ClassVar = {"s_aux": "softmax-1"}

    def _extra(self, hidden_states: Tensor) -> dict[str, Any]:
        return {"s_aux": hidden_states.new_zeros(self.q_proj.out_features // self.head_dim)}


class SoftpickAttention(RivalAttention):
    """Softpick, relu(eˣ - 1) / Σ |eˣ - 1|: weights may be 0, and rows may sum to less than 1 (2504.20966)."""

    passes: ClassVar = {"weighting": "softpick"}

    def _extra(self, hidden_states: Tensor) -> dict[str, Any]:
        return {"weighting": "softpick"}


class CogAttention(RivalAttention):
    """Cog attention, sgn(x) e^|x| / Σ e^|x|: negative weights without a second map (2411.07176)."""

    passes: ClassVar = {"weighting": "Cog attention"}

    def _extra(self, hidden_states: Tensor) -> dict[str, Any]:
        return {"weighting": "cog"}


class ExclusiveAttention(RivalAttention):
    """Exclusive self-attention: softmax attention without the part of a head's output along the token's own value.

    z = y - (y · u) u, u = v / |v| (2603.09078). It has no parameters, and the value is projected once more for it.
    """

    @classmethod
    def check(cls, given: Mapping[str, Any]) -> None:
        super().check(given)
        if given.get("context_size") is not None:
            raise InputError("exclusive attention is self-attention; leave out context_size")

    def _finish(self, out: Tensor, hidden_states: Tensor) -> Tensor:
        """
        Args:
            out: (B, N, H, d).
        """
        dtype = statistics_dtype(out.dtype)
        own = self._maps(self.v_proj(hidden_states)).transpose(1, 2)  # (B, N, key maps, d)
        own = normalize(own.to(dtype), dim=-1).repeat_interleave(out.shape[2] // own.shape[2], dim=2)
        whole = out.to(dtype)
        alone = whole - (whole * own).sum(-1, keepdim=True) * own
        return super()._finish(alone.to(out.dtype), hidden_states)
