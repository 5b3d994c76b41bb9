"""Differential attention V2 (Microsoft, January 2026), and its ablations.

Legend: B batch, N new tokens, d width of a map, H heads.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, Unpack

import torch
from torch import Tensor, nn

from antiphase.base.errors import InputError
from antiphase.layers.attention import AttentionLayer, CommonArguments
from antiphase.layers.lambdas import check_even_maps, check_one_of
from antiphase.layers.noise_heads import check_noise_heads, paired
from antiphase.ops.shapes import statistics_dtype

FORMS = ("sigmoid", "linear", "fixed")
"""How λ is parametrized; the first is the published form."""


class DifferentialAttentionV2(AttentionLayer):
    """Differential attention V2 (Microsoft, January 2026): λ per token and head; both maps share key and value.

    It has no head norm, no factor 1 - λinit and no λ schedule, and half the output projection of V1.

    Args:
        hidden_size, num_attention_heads, common: as in ``AttentionLayer``; there are half as many heads as maps.
        lambda_form: parametrization of λ: "sigmoid", or as ablations "linear" (no sigmoid) and "fixed" (λ = 1).
        head_norm: whether to apply an RMSNorm to each head's output.
        output_gate: whether to apply a sigmoid gate to every channel of the heads' outputs (2505.06708).
        num_noise_heads: number of second maps, as in ``DifferentialAttentionV1``; with a gate, the small form of the
            attention of Motif-3. None means one per head.
    """

    attention_form = "differential_v2"

    def __init__(
        self,
        hidden_size: int,
        num_attention_heads: int,
        *,
        lambda_form: Literal["sigmoid", "linear", "fixed"] = "sigmoid",
        head_norm: bool = False,
        output_gate: bool = False,
        num_noise_heads: int | None = None,
        **common: Unpack[CommonArguments],
    ) -> None:
        common = self.checked(
            hidden_size=hidden_size, num_attention_heads=num_attention_heads, lambda_form=lambda_form,
            head_norm=head_norm, output_gate=output_gate, num_noise_heads=num_noise_heads, **common,
        )  # fmt: skip
        maps, heads = num_attention_heads, num_attention_heads // 2
        queries = heads + (heads if num_noise_heads is None else num_noise_heads)
        super().__init__(hidden_size, maps, queries=queries, outputs=heads, **common)
        self.lambda_form, self.num_noise_heads = lambda_form, num_noise_heads
        self.heads_per_noise = 1 if num_noise_heads is None else heads // num_noise_heads
        self._add_norm_and_gate(head_norm=head_norm, output_gate=output_gate, width=self.head_dim)
        if lambda_form != "fixed":
            self.lambda_proj = nn.Linear(hidden_size, heads, bias=False)

    @classmethod
    def default_key_value_heads(cls, given: Mapping[str, Any]) -> int:
        noise: int | None = given.get("num_noise_heads")
        return super().default_key_value_heads(given) // 2 if noise is None else noise

    @classmethod
    def check(cls, given: Mapping[str, Any]) -> None:
        super().check(given)
        cls.check_pairs(given["num_attention_heads"], given["num_key_value_heads"])
        check_one_of("lambda_form", given.get("lambda_form"), FORMS)
        check_noise_heads(given, groups=given["num_key_value_heads"])

    @classmethod
    def check_pairs(cls, maps: int, key_maps: int) -> None:
        """
        Raises:
            InputError: the two maps of a head would not share their key.
        """
        if maps % 2 or (maps // key_maps) % 2:
            raise InputError(
                f"num_attention_heads ({maps}) must be an even multiple of num_key_value_heads ({key_maps}) in "
                "differential_v2: both maps of a head read the same key and value"
            )

    def lam(self, hidden_states: Tensor) -> Tensor:
        """λ = sigmoid(x Wλ), (B, H, N) in fp32 (fp64), for the query tokens (B, N, hidden)."""
        dtype = statistics_dtype(hidden_states.dtype)
        if self.lambda_form == "fixed":
            return hidden_states.new_ones(1, 1, 1, dtype=dtype)
        projected = self.lambda_proj(hidden_states).to(dtype).transpose(1, 2)
        return projected if self.lambda_form == "linear" else torch.sigmoid(projected)

    def _queries(self, hidden_states: Tensor) -> Tensor:
        return paired(super()._queries(hidden_states), self.num_noise_heads)

    def _extra(self, hidden_states: Tensor) -> dict[str, Any]:
        return {"lam": self.lam(hidden_states)}


class DifferentialAttentionAcross(DifferentialAttentionV2):
    """V2 in which map i subtracts map i + H, which has another key and value; the V2 post warns against this.

    Its attention function computes softmax attention, because the two maps share no value.
    """

    attention_form = "softmax"

    @classmethod
    def check(cls, given: Mapping[str, Any]) -> None:
        super().check(given)
        if given.get("num_noise_heads") is not None:
            raise InputError("num_noise_heads cannot be used where the maps of a pair read different keys")

    @classmethod
    def check_pairs(cls, maps: int, key_maps: int) -> None:
        """
        Raises:
            InputError: the number of maps is odd, or there is a single key.
        """
        check_even_maps(maps)
        if key_maps < 2:
            raise InputError("num_key_value_heads must be at least 2: the maps of a pair read different keys")

    def _extra(self, hidden_states: Tensor) -> dict[str, Any]:
        return {}

    def _finish(self, out: Tensor, hidden_states: Tensor) -> Tensor:
        first, second = out.chunk(2, dim=2)  # (B, N, H, d)
        lam = self.lam(hidden_states).transpose(1, 2).unsqueeze(-1).to(second.dtype)
        return super()._finish(first - lam * second, hidden_states)
