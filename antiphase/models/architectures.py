"""Differential attention inside architectures of transformers: everything except attention stays the same.

This follows the paper, which replaces the attention of an existing Transformer and keeps its hyperparameters. The
projections are the architecture's own; each attention layer gets λ vectors and a head norm, and its heads become pairs
of maps. Value heads 2i and 2i+1 are the two halves of a new value head i, so the layout of caches does not change.
"""

from __future__ import annotations

import os
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from transformers import (
    AttentionInterface,
    AttentionMaskInterface,
    AutoModel,
    AutoModelForCausalLM,
    AutoModelForMaskedLM,
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
    PreTrainedConfig,
    PreTrainedModel,
)
from transformers.initialization import guard_torch_init_functions

from antiphase.attention.interface import (
    INSIDE,
    INSIDE_EAGER,
    REPLACEMENT_PREFIX,
    antiphase_mask,
    refuse_continuous_batching,
)
from antiphase.layers.differential import DifferentialHeads
from antiphase.layers.functions import (
    differential_output,
    join_halves,
    refuse_mixed_texts,
    refuse_unknown,
    split_halves,
    warn_of_weights,
)
from antiphase.layers.masks import visible_keys
from antiphase.models.portable import refuse_portable
from antiphase.models.registration import register_causal_name
from antiphase.ops.api import differential_attention

ATTENTION_CLASSES = frozenset(
    {"LlamaAttention", "MistralAttention", "Qwen2Attention", "Qwen3Attention", "GPT2Attention", "BertSelfAttention",
     "BertCrossAttention"}
)  # fmt: skip
IMPLEMENTATIONS = {"eager": INSIDE_EAGER, "sdpa": INSIDE}
"""What layers of these models call for transformers' own names."""
AUTO_CLASSES = (
    AutoModel, AutoModelForCausalLM, AutoModelForMaskedLM, AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
)  # fmt: skip


def attention_inside(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    scaling: float | None = None,
    sliding_window: int | None = None,
    is_causal: bool | None = None,
    **kwargs: Any,
) -> tuple[Tensor, Tensor | None]:
    """The attention function of these models: (B, N, maps, d), with head i's output in maps 2i and 2i+1.

    Raises:
        ValueError: an argument would change the result but is not supported, or the mask does not separate texts that
            ``cu_seq_lens_q`` names.
    """
    warn_of_weights(kwargs)
    refuse_unknown(kwargs, module)
    heads = module.differential
    assert isinstance(heads, DifferentialHeads)
    mask, is_causal, window = visible_keys(module, attention_mask, query, key, sliding_window, is_causal)
    refuse_mixed_texts(kwargs, mask, query)
    out = heads.step(
        query, key, value, mask, is_causal=is_causal, sliding_window=window,
        scale=query.shape[-1] ** -0.5 if scaling is None else scaling,
    )  # fmt: skip
    if out is None:
        out = differential_output(
            query, key, value, heads(), mask, halves=2, is_causal=is_causal, sliding_window=window, scaling=scaling
        )
        out = heads.finish(out)
    return split_halves(out.to(query.dtype)), None


def eager_inside(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    scaling: float | None = None,
    sliding_window: int | None = None,
    is_causal: bool | None = None,
    **kwargs: Any,
) -> tuple[Tensor, Tensor]:
    """The same by the reference, and the signed weights (B, heads, N, M).

    Raises:
        ValueError: an argument would change the result but is not supported.
    """
    refuse_unknown(kwargs, module)
    heads = module.differential
    assert isinstance(heads, DifferentialHeads)
    mask, is_causal, window = visible_keys(module, attention_mask, query, key, sliding_window, is_causal)
    refuse_mixed_texts(kwargs, mask, query)
    out, weights = differential_attention(
        query, key, join_halves(value), heads(), attn_mask=mask, is_causal=is_causal, sliding_window=window,
        scale=scaling, impl="reference", return_weights=True,
    )  # fmt: skip
    return split_halves(heads.finish(out.transpose(1, 2)).to(query.dtype)), weights


class LayerConfig:
    """The model's configuration as its attention layers see it: with the function that subtracts, whatever the name.

    The layers would otherwise call the function of their own module for "eager", and PyTorch's for "sdpa".
    """

    def __init__(self, config: PreTrainedConfig) -> None:
        self.whole = config

    @property
    def _attn_implementation(self) -> str:
        name = self.whole._attn_implementation
        _refuse_other_functions(name)
        return IMPLEMENTATIONS.get(name, name)

    def __getattr__(self, name: str) -> Any:
        if name == "whole":  # not there yet while a copy is made
            raise AttributeError(name)
        return getattr(self.whole, name)


class WithDifferentialHeads(PreTrainedModel):
    """Mixin that adds differential heads to a model class of transformers."""

    _keep_in_fp32_modules_strict: ClassVar = ["lambda_q1", "lambda_k1", "lambda_q2", "lambda_k2"]

    def __init__(self, config: PreTrainedConfig, *args: Any, **kwargs: Any) -> None:
        super().__init__(config, *args, **kwargs)
        for module in list(self.modules()):
            if type(module).__name__ in ATTENTION_CLASSES:
                width = int(getattr(module, "head_dim", None) or module.attention_head_size)
                module.differential = DifferentialHeads(width, module.layer_idx, config.head_norm_eps)
                module.config = LayerConfig(config)

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        if isinstance(module, DifferentialHeads):
            module.reset_lambda()
        else:
            super()._init_weights(module)

    @guard_torch_init_functions()
    def initialize_weights(self) -> None:
        """Draw what no checkpoint has given; heads first, whose λ the model inside knows nothing of."""
        for module in list(self.modules()):
            if isinstance(module, DifferentialHeads):
                self._initialize_weights(module)
        super().initialize_weights()

    @classmethod
    def is_custom_code(cls) -> bool:
        """False: the architecture draws its initial values as it does without differential attention."""
        return False

    def get_correct_attn_implementation(self, requested_attention: str | None, is_init_check: bool = False) -> str:
        """
        Raises:
            ValueError: the implementation is flash or flex attention or another's, which would treat every map as a
                separate head.
        """
        requested = INSIDE if requested_attention is None else requested_attention
        _refuse_other_functions(requested)
        return super().get_correct_attn_implementation(requested, is_init_check)

    def save_pretrained(self, save_directory: str | os.PathLike[str], **kwargs: Any) -> None:
        """
        Raises:
            ValueError: ``portable``, which only the decoder of this package has.
        """
        refuse_portable(kwargs)
        super().save_pretrained(save_directory, **kwargs)

    def init_continuous_batching(self, *args: Any, **kwargs: Any) -> Any:
        """
        Raises:
            ValueError: always, because continuous batching would ignore λ.
        """
        refuse_continuous_batching(self.config._attn_implementation, is_v1=True)


def _refuse_other_functions(name: str) -> None:
    if name not in (INSIDE, INSIDE_EAGER, *IMPLEMENTATIONS) and not name.startswith(REPLACEMENT_PREFIX):
        raise ValueError(
            f"differential attention in other architectures cannot run with attn_implementation={name!r}; choose "
            f"{INSIDE} or eager"
        )


def register_models(base: type[PreTrainedConfig], kind: type[PreTrainedConfig]) -> dict[str, type[PreTrainedModel]]:
    """Register the differential form ``kind`` with every Auto class that has models for configuration ``base``.

    Returns:
        Its models by name. They count as part of the configuration's module, where ``pickle`` looks for them.
    """
    found = {}
    for auto in AUTO_CLASSES:
        mapping = auto._model_mapping
        if base in mapping and kind not in mapping:
            model = mapping[base]
            space = {"config_class": kind, "__module__": kind.__module__}
            differential = type(f"Differential{model.__name__}", (WithDifferentialHeads, model), space)
            auto.register(kind, differential)
            if auto is AutoModelForCausalLM:
                register_causal_name(differential)
        if kind in mapping:
            found[mapping[kind].__name__] = mapping[kind]
    return found


AttentionInterface.register(INSIDE, attention_inside)
AttentionInterface.register(INSIDE_EAGER, eager_inside)
AttentionMaskInterface.register(INSIDE, antiphase_mask)
AttentionMaskInterface.register(INSIDE_EAGER, antiphase_mask)
