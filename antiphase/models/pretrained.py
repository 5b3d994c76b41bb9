"""The base class of all models with the project's attention layers: attention implementations and fp32 parameters."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from transformers import PreTrainedConfig, PreTrainedModel
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from antiphase.attention import interface
from antiphase.layers.attention import AttentionLayer
from antiphase.layers.marks import first_weight
from antiphase.layers.mlp import PolyNorm
from antiphase.layers.registry import LAYERS
from antiphase.models.variants import needs


class AttendingPreTrainedModel(PreTrainedModel):
    """A model whose attention goes through transformers' interface, by default to this project's function."""

    _supports_flash_attn = True
    _supports_sdpa = True
    _supports_flex_attn = True
    _supports_attention_backend = True
    _can_compile_fullgraph = True
    _keep_in_fp32_modules_strict: Any = tuple(sorted({name for kind in LAYERS.values() for name in kind.kept_in_fp32}))

    def get_correct_attn_implementation(self, requested_attention: str | None, is_init_check: bool = False) -> str:
        """As in transformers, after the checks of ``chosen_implementation``."""
        requested = chosen_implementation(self.config, requested_attention)
        return super().get_correct_attn_implementation(requested, is_init_check)

    def post_init(self) -> None:
        """As in transformers; of the parameters kept in fp32, the model names those that it has."""
        super().post_init()
        there = {name.rpartition(".")[2] for name, _ in self.named_parameters()}
        self._keep_in_fp32_modules_strict = there.intersection(self._keep_in_fp32_modules_strict)

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        """Draw λ vectors from N(0, 0.1²) (2410.05258, section 2.1) and set norms and activations as published."""
        if isinstance(module, nn.RMSNorm):
            nn.init.constant_(module.weight, first_weight(module))
        elif isinstance(module, AttentionLayer):
            module.reset_added()
        elif isinstance(module, PolyNorm):
            module.reset_parameters()
        else:
            super()._init_weights(module)


def chosen_implementation(config: PreTrainedConfig, requested: str | None) -> str | None:
    """The project's own attention function unless another is requested.

    Raises:
        ValueError: flash or flex attention was requested for V1, which cannot use their masks, or a function that would
            silently ignore λ or sink logits.
    """
    chosen = interface.NAME if requested is None else requested
    form = LAYERS[config.attention_type].attention_form
    if form == "differential" and chosen in interface.BUILT_IN - {"eager", "sdpa"}:
        raise ValueError(
            f"differential attention (V1) cannot run with attn_implementation={chosen!r}; choose antiphase or "
            "eager, or attention_type differential_v2"
        )
    if form == "differential" and chosen not in interface.BUILT_IN:
        interface.require_lambda(chosen)
    for argument, named in needs(config).items():
        if chosen in ALL_ATTENTION_FUNCTIONS and not interface.takes(chosen, argument):
            raise ValueError(
                f"{named} cannot run with attn_implementation={chosen!r}, which has no parameter {argument}; choose "
                "antiphase or eager"
            )
    return chosen
