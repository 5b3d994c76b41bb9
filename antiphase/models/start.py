"""Initialization: the fields of a configuration that control it, their checks, and the resulting distributions.

Two initializations are published for decoders of this kind. GPT-2's draws every matrix from N(0, 0.02²). That of
microsoft/unilm (YOCO, by the authors of 2410.05258) draws embeddings from N(0, 1/hidden_size), multiplied by
√hidden_size in the forward pass, so that the residual stream starts at RMS 1, and linear layers from U(±1/√fan_in).
"""

from __future__ import annotations

import math
from typing import Any

from torch import nn
from transformers import PreTrainedConfig

from antiphase.base.errors import InputError, nearest
from antiphase.layers.marks import writes_residual

INITIALIZERS = ("normal", "fan_in")
DEPTH = "depth"
"""Stands for a ``residual_init_scale`` of 1/√(2·layers), as in GPT-2."""
INITIALIZATION = ("initializer", "embedding_range", "embedding_multiplier", "residual_init_scale", "head_norm_init")
"""Fields of the initialization. The multiplier is also part of the forward pass; the others only set initial values."""


def check_initialization(config: Any, *, has_head_norm: bool) -> None:
    """
    Raises:
        InputError: a value is out of range, or this model does not use the field; the message names it.
    """
    if config.initializer not in INITIALIZERS:
        known = " or ".join(INITIALIZERS)
        raise InputError(
            f"initializer must be {known}, got {config.initializer!r}{nearest(str(config.initializer), INITIALIZERS)}"
        )
    for name in ("embedding_range", "embedding_multiplier"):
        value = getattr(config, name)
        if value is not None and not (_is_number(value) and 0 < value < math.inf):
            raise InputError(f"{name} must be a number above 0, got {value!r}")
    scale = config.residual_init_scale
    if scale != DEPTH and not (_is_number(scale) and 0 <= scale < math.inf):
        raise InputError(f"residual_init_scale must be a number of at least 0, or {DEPTH!r}, got {scale!r}")
    weight = config.head_norm_init
    if not _is_number(weight) or not math.isfinite(weight):
        raise InputError(f"head_norm_init must be a number, got {weight!r}")
    if weight != 1.0 and not has_head_norm:
        raise InputError(f"head_norm_init ({weight:g}) cannot be used without head_norm")


def default_multiplier(initializer: str, hidden_size: int) -> float:
    """Default multiplier of the embeddings; with N(0, 1/hidden_size), the residual stream starts at RMS 1."""
    return hidden_size**0.5 if initializer == "fan_in" else 1.0


def embedding_std(config: Any) -> float:
    """Standard deviation of the initial embeddings."""
    if config.embedding_range is not None:
        return float(config.embedding_range)
    return float(config.hidden_size**-0.5 if config.initializer == "fan_in" else config.initializer_range)


def linear_distribution(config: Any, layer: nn.Linear) -> tuple[str, float]:
    """Distribution and scale of a linear layer's initial weights: ("normal", standard deviation) or ("uniform", bound).

    Marked layers are scaled by ``residual_init_scale``.
    """
    scale = 1.0
    if writes_residual(layer):
        given = config.residual_init_scale
        scale = (2 * config.num_hidden_layers) ** -0.5 if given == DEPTH else given
    if config.initializer == "fan_in":
        return "uniform", scale * layer.in_features**-0.5
    return "normal", scale * config.initializer_range


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def padding_token(config: PreTrainedConfig) -> int | None:
    """The token whose embedding is not trained: that of padding, unless it also begins or ends texts."""
    ends = config.eos_token_id if isinstance(config.eos_token_id, list) else [config.eos_token_id]
    return None if config.pad_token_id in (config.bos_token_id, *ends) else config.pad_token_id
