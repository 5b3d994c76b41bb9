"""Softmax attention with two optional extensions that compete with differential attention: sink logits and DEX."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Unpack

import torch
from torch import Tensor, nn

from antiphase.base.errors import InputError
from antiphase.layers.attention import AttentionLayer, CommonArguments
from antiphase.layers.lambdas import lambda_init
from antiphase.ops.shapes import statistics_dtype


class SoftmaxAttention(AttentionLayer):
    """Softmax attention with grouped keys, causal or not (Vaswani et al., 1706.03762, section 3.2).

    Args:
        hidden_size, num_attention_heads, common: as in ``AttentionLayer``.
        head_norm: whether to apply an RMSNorm to each head's output.
        output_gate: whether to apply a sigmoid gate, computed from the layer's input, to every channel of the heads'
            outputs (Qiu et al., 2505.06708, G1 elementwise).
        sink_logits: whether each map has a learned logit in the denominator of its softmax, as in gpt-oss.
        dex_heads: heads that DEX extends (2505.16333); None means none.
        dex_steps: training steps over which DEX anneals its λ.
    """

    zero_at_start = ("sinks", "dex_weight", "dex_lambda")
    kept_in_fp32 = ("dex_lambda",)
    by_layer: ClassVar = {"dex_heads": "heads"}

    def __init__(
        self,
        hidden_size: int,
        num_attention_heads: int,
        *,
        head_norm: bool = False,
        output_gate: bool = False,
        sink_logits: bool = False,
        dex_heads: Sequence[int] | None = None,
        dex_steps: int = 0,
        **common: Unpack[CommonArguments],
    ) -> None:
        common = self.checked(
            hidden_size=hidden_size, num_attention_heads=num_attention_heads, head_norm=head_norm,
            output_gate=output_gate, sink_logits=sink_logits, dex_heads=dex_heads, dex_steps=dex_steps, **common,
        )  # fmt: skip
        maps = num_attention_heads
        super().__init__(hidden_size, maps, queries=maps, outputs=maps, **common)
        self._add_norm_and_gate(head_norm=head_norm, output_gate=output_gate, width=self.head_dim)
        self.has_sinks = sink_logits
        if sink_logits:
            self.sinks = nn.Parameter(torch.zeros(maps))
        self.dex_heads, self.dex_steps, self.dex_progress = dex_heads, dex_steps, 1.0
        if dex_heads is not None:
            self.dex_weight = nn.Parameter(torch.zeros(self.head_dim, self.head_dim))
            self.dex_lambda = nn.Parameter(torch.zeros(1, dtype=statistics_dtype(torch.get_default_dtype())))

    @classmethod
    def check(cls, given: Mapping[str, Any]) -> None:
        super().check(given)
        chosen, steps, heads = given.get("dex_heads"), given.get("dex_steps") or 0, given["num_attention_heads"]
        if not isinstance(steps, int) or isinstance(steps, bool) or steps < 0:
            raise InputError(f"dex_steps must be a whole number from 0, got {steps!r}")
        if chosen is None:
            if steps:
                raise InputError("dex_steps cannot be used without dex_heads")
            return
        is_list = isinstance(chosen, Sequence) and all(isinstance(head, int) and 0 <= head < heads for head in chosen)
        if not is_list or len(set(chosen)) < len(chosen):
            raise InputError(f"dex_heads must name different heads from 0 to {heads - 1} in a list, got {chosen}")

    @classmethod
    def needs(cls, given: Mapping[str, Any]) -> dict[str, str]:
        return {"s_aux": "sink_logits"} if given.get("sink_logits") else {}

    def at_step(self, step: int) -> None:
        """Set α = min(1, t / ``dex_steps``) for training step t."""
        self.dex_progress = min(1.0, step / self.dex_steps) if self.dex_steps else 1.0

    def extension_lambda(self) -> Tensor:
        """λ(t) = (1 - α)·α·λinit + α·λlearned of DEX (2505.16333, equation 4), (1,) in fp32.

        α = min(1, t / ``dex_steps``) at training step t, and 1 in a model that is not being trained.
        """
        alpha = self.dex_progress
        return (1.0 - alpha) * alpha * lambda_init(self.layer_idx) + alpha * self.dex_lambda

    def _extra(self, hidden_states: Tensor) -> dict[str, Any]:
        return {"s_aux": self.sinks} if self.has_sinks else {}

    def _finish(self, out: Tensor, hidden_states: Tensor) -> Tensor:
        if self.dex_heads is not None:
            chosen = [head in self.dex_heads for head in range(out.shape[2])]
            scale = self.extension_lambda() * torch.tensor(chosen, device=out.device)  # (heads,)
            out = out - scale[:, None].to(out.dtype) * (out @ self.dex_weight.to(out.dtype))
        return super()._finish(out, hidden_states)
