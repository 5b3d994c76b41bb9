"""Differential attention V1 (Ye et al., 2410.05258), and its ablations.

Legend: B batch, N new tokens, M keys, d width of a map, H heads.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal, Unpack

import torch
from torch import Tensor, nn

from antiphase.base.errors import InputError
from antiphase.layers.attention import AttentionLayer, CommonArguments
from antiphase.layers.exchange import Exchange
from antiphase.layers.functions import own_implementation, unknown_arguments
from antiphase.layers.lambdas import LAMBDA_STD, check_even_maps, check_one_of
from antiphase.layers.lambdas import lambda_init as lambda_of_depth
from antiphase.layers.masks import visible_keys
from antiphase.layers.noise_heads import check_noise_heads, paired
from antiphase.layers.norm import RMSNorm
from antiphase.ops.layer import exponential_lambda, v1_step
from antiphase.ops.shapes import statistics_dtype

VECTORS = ("lambda_q1", "lambda_k1", "lambda_q2", "lambda_k2")
FORMS = ("exponential", "scalar", "head", "fixed")
"""How λ is parametrized; the first is the paper's form."""
SECOND_MAPS = ("subtracted", "added", "none")
"""What becomes of the second map; the first is the paper's form."""


class _LambdaAndNorm(nn.Module):
    """What V1 adds to a softmax layer: λ from four vectors, and a norm of each head's output."""

    lambda_init: float
    lambda_q1: nn.Parameter
    lambda_k1: nn.Parameter
    lambda_q2: nn.Parameter
    lambda_k2: nn.Parameter
    head_norm: RMSNorm

    def _add_lambda(self, width: int) -> None:
        for name in VECTORS:
            setattr(self, name, nn.Parameter(torch.zeros(width, dtype=statistics_dtype(torch.get_default_dtype()))))

    @torch.no_grad()
    def reset_lambda(self) -> None:
        """Draw the λ vectors from N(0, 0.1²) (2410.05258, section 2.1), with the global generator."""
        for vector in self._vectors():
            nn.init.normal_(vector, std=LAMBDA_STD)

    def lam(self) -> Tensor:
        """λ = exp(λq1·λk1) - exp(λq2·λk2) + λinit (equation 2), 0-d, at least fp32, shared by the layer's heads."""
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
        impl: str = "auto",
    ) -> Tensor | None:
        """The normalized head outputs (B, N, H, 2d) of a decoding step in one call; None if this path does not apply.

        Arguments as in ``v1_step``. A norm with hooks, or one that was replaced by another module, is called as usual
        instead; so is a module whose ``forward`` loads its parameters first, as in accelerate's offload. Exported
        programs run without our kernels.
        """
        norm = self.head_norm
        if type(norm) is not RMSNorm or norm._forward_hooks or norm._forward_pre_hooks:
            return None
        if "forward" in vars(norm) or norm.weight.is_meta or self.lambda_q1.is_meta or torch.compiler.is_exporting():
            return None
        out = v1_step(
            query, key, value, self._vectors(), norm.weight, mask, is_causal=is_causal, sliding_window=sliding_window,
            scale=scale, initial=self.lambda_init, eps=norm.eps, factor=norm.factor, impl=impl,
        )  # fmt: skip
        return None if out is None else out.transpose(1, 2)

    def _vectors(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        return self.lambda_q1, self.lambda_k1, self.lambda_q2, self.lambda_k2


class DifferentialHeads(_LambdaAndNorm):
    """λ and head norm as a separate module, for the attention layers of other architectures.

    Args:
        width: d.
        layer_idx: 0-based depth of the layer.
        eps: ε of the norm.
    """

    def __init__(self, width: int, layer_idx: int, eps: float) -> None:
        super().__init__()
        self.lambda_init = lambda_of_depth(layer_idx)
        self._add_lambda(width)
        self.head_norm = RMSNorm(2 * width, eps, 1.0 - self.lambda_init, is_rounded=True)
        self.reset_lambda()

    def forward(self) -> Tensor:
        """λ, as ``lam`` gives it; called as a module, so that hooks that load parameters run."""
        return self.lam()

    def finish(self, out: Tensor) -> Tensor:
        """(1 - λinit) · RMSNorm over the 2d channels of each head, (B, N, H, 2d) (equation 3)."""
        return self.head_norm(out)


class DifferentialAttentionV1(AttentionLayer, _LambdaAndNorm):
    """Differential attention of Ye et al., 2410.05258, section 2.1: pairs of maps, one λ per layer, one norm per head.

    With fewer ``num_noise_heads`` than heads, this is grouped differential attention (2510.06949, section 2.2), in
    which the heads of a group subtract the same second map.

    Args:
        hidden_size, num_attention_heads, common: as in ``AttentionLayer``; there are half as many heads as maps.
        lambda_form: parametrization of λ: "exponential", "scalar" or "head" (λinit plus one learned number per layer or
            head), "fixed" (λinit).
        lambda_init: λinit, above -1 and below 1; None means the schedule by depth.
        head_norm: whether to apply an RMSNorm to each head's output.
        head_scale: whether to apply the factor 1 - λinit after it.
        output_gate: whether to apply a sigmoid gate to every channel of the heads' outputs (2505.06708).
        second_map: "subtracted", or as controls of the subtraction "added" (A₁ + λA₂: same parameters, cost, width and
            norm) and "none" (A₁ alone: queries and keys of the second map stay but count for nothing; there is no λ).
        num_noise_heads: number of second maps of the layer; it must divide the number of heads and be a multiple of the
            number of value heads. None means one per head.
        initialize: whether to draw the λ vectors from the global generator. False leaves them at zero, where they get
            no gradient, until ``reset_lambda``; use it when a whole model is initialized afterwards.
    """

    attention_form = "differential"
    zero_at_start = ("lambda_offset",)
    kept_in_fp32 = (*VECTORS, "lambda_offset")
    by_layer: ClassVar = {"lambda_init": "a number"}

    def __init__(
        self,
        hidden_size: int,
        num_attention_heads: int,
        *,
        lambda_form: Literal["exponential", "scalar", "head", "fixed"] = "exponential",
        lambda_init: float | None = None,
        head_norm: bool = True,
        head_scale: bool = True,
        output_gate: bool = False,
        second_map: Literal["subtracted", "added", "none"] = "subtracted",
        num_noise_heads: int | None = None,
        initialize: bool = True,
        **common: Unpack[CommonArguments],
    ) -> None:
        common = self.checked(
            hidden_size=hidden_size, num_attention_heads=num_attention_heads, lambda_form=lambda_form,
            lambda_init=lambda_init, head_norm=head_norm, head_scale=head_scale, output_gate=output_gate,
            second_map=second_map, num_noise_heads=num_noise_heads, **common,
        )  # fmt: skip
        maps, heads = num_attention_heads, num_attention_heads // 2
        queries = heads + (heads if num_noise_heads is None else num_noise_heads)
        super().__init__(hidden_size, maps, queries=queries, outputs=maps, **common)
        self.lambda_form, self.num_noise_heads, self.second_map = lambda_form, num_noise_heads, second_map
        self.heads_per_noise = 1 if num_noise_heads is None else heads // num_noise_heads
        self.lambda_init = lambda_of_depth(self.layer_idx) if lambda_init is None else lambda_init
        self._has_vectors = lambda_form == "exponential" and second_map != "none"
        if self._has_vectors:
            self._add_lambda(self.head_dim)
        elif lambda_form != "fixed" and second_map != "none":
            count = heads if lambda_form == "head" else 1
            self.lambda_offset = nn.Parameter(torch.zeros(count, dtype=statistics_dtype(torch.get_default_dtype())))
        self.head_factor = 1.0 - self.lambda_init if head_scale else 1.0
        self._add_norm_and_gate(
            head_norm=head_norm, output_gate=output_gate, width=2 * self.head_dim, factor=self.head_factor
        )
        own = (type(self).lam, type(self)._finish) == (DifferentialAttentionV1.lam, DifferentialAttentionV1._finish)
        # ``step`` supports no other form
        published = head_norm and lambda_form == "exponential" and second_map == "subtracted"
        self._is_published = own and published and self.heads_per_noise == 1
        if initialize:
            self.reset_added()

    @classmethod
    def default_key_value_heads(cls, given: Mapping[str, Any]) -> int:
        noise: int | None = given.get("num_noise_heads")
        return super().default_key_value_heads(given) if noise is None else 2 * noise

    @classmethod
    def check(cls, given: Mapping[str, Any]) -> None:
        super().check(given)
        for name in ("num_attention_heads", "num_key_value_heads"):
            check_even_maps(given[name], name)
        check_one_of("lambda_form", given.get("lambda_form"), FORMS)
        check_one_of("second_map", given.get("second_map"), SECOND_MAPS)
        value = given.get("lambda_init")
        if value is not None and (isinstance(value, bool) or not isinstance(value, (int, float)) or not -1 < value < 1):
            raise InputError(f"lambda_init must be a number above -1 and below 1, got {value!r}")
        check_noise_heads(given, groups=given["num_key_value_heads"] // 2)

    def reset_added(self) -> None:
        super().reset_added()
        if self._has_vectors:
            self.reset_lambda()

    def lam(self) -> Tensor:
        """The factor with which the second map is subtracted: λ, -λ where the map is added, 0 where it does not count.

        λ is that of the published form, or in ablations λinit ("fixed") or λinit plus a learned number ("scalar"). 0-d,
        at least in fp32, or (H, 1) with one learned number per head ("head").
        """
        lam = self._lambda()
        return -lam if self.second_map == "added" else lam

    def _lambda(self) -> Tensor:
        if self._has_vectors:
            return super().lam()
        if self.lambda_form == "fixed" or self.second_map == "none":
            value = 0.0 if self.second_map == "none" else self.lambda_init
            weight = self.q_proj.weight
            return torch.tensor(value, dtype=statistics_dtype(weight.dtype), device=weight.device)
        learned = self.lambda_offset[:, None] if self.lambda_form == "head" else self.lambda_offset[0]
        return self.lambda_init + learned.to(torch.promote_types(learned.dtype, torch.float32))

    def _queries(self, hidden_states: Tensor) -> Tensor:
        """Maps 2i and 2i + 1 of head i; in ``q_proj`` the query of a noise head follows those of its heads."""
        return paired(super()._queries(hidden_states), self.num_noise_heads)

    def _extra(self, hidden_states: Tensor) -> dict[str, Any]:
        return {"lam": self.lam()}

    def _attend(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attention_mask: Tensor | None,
        hidden_states: Tensor,
        *,
        exchange: Exchange | None = None,
        **kwargs: Any,
    ) -> tuple[Tensor, Tensor | None]:
        is_plain = not (unknown_arguments(kwargs) or kwargs.get("dropout"))  # others: the function serves or refuses
        is_step = self._is_published and exchange is None and query.shape[2] == 1 and is_plain
        impl = own_implementation(self.attention_function()) if is_step else None
        if impl is not None:
            mask, _, window = visible_keys(self, attention_mask, query, key, self.sliding_window)
            out = self.step(
                query, key, value, mask, is_causal=False, sliding_window=window, scale=self.scaling, impl=impl
            )
            if out is not None:
                return out, None
        return super()._attend(query, key, value, attention_mask, hidden_states, exchange=exchange, **kwargs)

    def _finish(self, out: Tensor, hidden_states: Tensor) -> Tensor:
        """(1 - λinit) · RMSNorm of each head (equation 3), without the parts that an ablation removes."""
        return self.head_norm(out) if self.has_head_norm else out * self.head_factor
