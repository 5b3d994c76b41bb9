"""Differential attention in transformers' attention interface: names, the attention function of a layer, and masks."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedConfig, PreTrainedModel
from transformers.masking_utils import causal_mask_function, eager_mask, sdpa_mask
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from antiphase.attention.caches import CACHE
from antiphase.layers.functions import (
    AttentionFunction,
    antiphase_attention,
    differential_output,
    eager_attention,
    refuse_mixed_texts,
    refuse_unknown,
    subtracting,
    triton_attention,
)
from antiphase.layers.masks import visible_keys

NAME = "antiphase"
TRITON = f"{NAME}_triton"
"""Like ``NAME``; differential layers raise an error where the fused kernels for CUDA devices do not run."""
INSIDE = f"{NAME}_inside"
"""The attention function of models of ``differential_config``; no other function knows their λ."""
INSIDE_EAGER = f"{INSIDE}_eager"
"""The same with the reference, which returns the weights."""
REPLACEMENT_PREFIX = f"{NAME}_replacement_"
"""Prefix of the names under which temporary replacements are registered."""
BUILT_IN = frozenset({"eager", "sdpa", "flex_attention", "flash_attention_2", "flash_attention_3", "flash_attention_4"})
"""Names of transformers' own implementations, which do not support a second map."""
CONTINUOUS = (
    "continuous batching (generate_batch) serves softmax and differential_v2 models; use generate for differential ones"
)


def differential_function(implementation: str) -> AttentionFunction:
    """The attention function of a differential layer for a given implementation.

    transformers' own functions would treat every map as a separate head and never subtract.

    Raises:
        ValueError: the implementation is for continuous batching, which silently ignores λ.
    """
    if implementation.startswith("paged|"):
        raise ValueError(CONTINUOUS)
    if implementation == "eager":
        return eager_attention
    if implementation in BUILT_IN:
        return antiphase_attention
    if not torch.compiler.is_compiling():
        require_lambda(implementation)
    return ALL_ATTENTION_FUNCTIONS[implementation]


def takes(implementation: str, argument: str) -> bool:
    """Whether an attention function has a parameter, instead of ignoring the argument.

    transformers' own functions count as having none: those that have ``s_aux`` take it on some devices only. Functions
    that this project swapped in pass everything on.
    """
    if implementation in (NAME, TRITON, "eager") or implementation.startswith(REPLACEMENT_PREFIX):
        return True
    function = ALL_ATTENTION_FUNCTIONS[implementation]
    return implementation not in BUILT_IN and argument in inspect.signature(function).parameters


def require_lambda(implementation: str) -> None:
    """Refuse a function of others for V1 layers, unless it has a parameter ``lam`` or was swapped in by this project.

    Raises:
        ValueError: the function does not know λ, so it would treat every map as a separate head.
    """
    if implementation in ALL_ATTENTION_FUNCTIONS and not takes(implementation, "lam"):
        raise ValueError(
            f"differential attention (V1) cannot run with attn_implementation={implementation!r}, which has no "
            "parameter lam for λ; choose antiphase or eager, or attention_type differential_v2"
        )


def refuse_continuous_batching(implementation: str, *, is_v1: bool) -> None:
    """
    Raises:
        ValueError: ``generate_batch`` could not serve the model, and would return nothing without a reason.
    """
    if CACHE == "cache":
        raise ValueError("continuous batching (generate_batch) needs transformers before 5.24; use generate")
    if is_v1:
        raise ValueError(CONTINUOUS)
    if implementation not in BUILT_IN:
        raise ValueError(
            f"continuous batching (generate_batch) cannot run with attn_implementation={implementation!r}; call "
            'set_attn_implementation("sdpa") first'
        )


def subtracting_function(implementation: str) -> AttentionFunction:
    """The attention function of a V2 layer for a given implementation.

    Any backend can compute the outputs of its maps. The project's own functions, ``eager`` and replaced functions
    subtract by themselves.
    """
    if implementation in (NAME, TRITON, "eager") or implementation.startswith(REPLACEMENT_PREFIX):
        return differential_function(implementation)
    return subtracting(ALL_ATTENTION_FUNCTIONS[implementation])


def heads_inside(
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
) -> tuple[Tensor, None]:
    """The heads' outputs (B, N, H, 2d) of a layer of ``differential_config``, before their norm.

    Raises:
        ValueError: a keyword argument would change the result but is not supported.
    """
    refuse_unknown(kwargs, module)
    mask, is_causal, window = visible_keys(module, attention_mask, query, key, sliding_window, is_causal)
    refuse_mixed_texts(kwargs, mask, query)
    return differential_output(
        query, key, value, differential_part(module)(), mask, halves=2, is_causal=is_causal, scaling=scaling,
        sliding_window=window,
    ), None  # fmt: skip


def differential_part(module: nn.Module) -> Any:
    """The module that ``differential_config`` adds to an attention layer: λ and the head norm."""
    return module.differential


def antiphase_mask(
    batch_size: int,
    q_length: int,
    kv_length: int,
    q_offset: int | Tensor = 0,
    kv_offset: int = 0,
    mask_function: Callable[..., Any] = causal_mask_function,
    attention_mask: Tensor | None = None,
    *,
    config: PreTrainedConfig | None = None,
    allow_is_causal_skip: bool = True,
    **kwargs: Any,
) -> Tensor | None:
    """The mask function registered as ``antiphase``: (B, 1, 1, M) for padding, instead of N×M, if plainly causal.

    Otherwise it is boolean (B, 1, N, M): for packed sequences, custom overlays, partly filled caches, and where the
    model reads the mask itself (``allow_is_causal_skip`` is false). Where layers may leave causality to the mask, or
    add it to their scores, it is whole and additive, as for transformers' eager attention.

    Raises:
        ValueError: the model does not use the attention interface.
    """
    if config is not None and not _is_made_for_sdpa(type(config)):
        return eager_mask(batch_size, q_length, kv_length, q_offset, kv_offset, mask_function, attention_mask, **kwargs)
    is_plain = (
        allow_is_causal_skip
        and mask_function is causal_mask_function
        and isinstance(q_offset, int)
        and kv_offset == 0
        and kv_length == q_offset + q_length
    )
    if not is_plain:
        return sdpa_mask(
            batch_size, q_length, kv_length, q_offset, kv_offset, mask_function, attention_mask,
            **{**kwargs, "allow_is_causal_skip": False},
        )  # fmt: skip
    if attention_mask is None:
        return None
    padding = attention_mask[:, :kv_length].bool()
    if not torch.compiler.is_compiling() and bool(padding.all()):
        return None
    return padding[:, None, None, :]


@torch.compiler.assume_constant_result
def _is_made_for_sdpa(config_class: type[PreTrainedConfig]) -> bool:
    """Whether layers of models with such a configuration take a boolean mask, and are causal themselves without one.

    That is what PyTorch's SDPA asks of them, and classes of models declare it. In others, the mask may be all that
    hides later tokens (PEGASUS-X, NLLB-MoE), or be taken for an additive one (DeepSeek V4).

    Raises:
        ValueError: none of these models uses the attention interface.
    """
    models = [model for model in _loaded_models(PreTrainedModel) if model.config_class is config_class]
    if models and not any(model._can_set_attn_implementation() for model in models):
        raise ValueError(
            f"models of type {config_class.model_type} compute attention in code of their own, so attn_implementation="
            f'"{NAME}" cannot run them; choose "eager"'
        )
    return bool(models) and all(model._supports_sdpa for model in models)


def _loaded_models(base: type[PreTrainedModel]) -> Iterator[type[PreTrainedModel]]:
    for model in base.__subclasses__():
        yield model
        yield from _loaded_models(model)


AttentionInterface.register(NAME, antiphase_attention)
AttentionInterface.register(TRITON, triton_attention)
AttentionMaskInterface.register(NAME, antiphase_mask)
AttentionMaskInterface.register(TRITON, antiphase_mask)
