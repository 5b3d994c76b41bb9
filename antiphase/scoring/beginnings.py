"""Common beginnings of prompts, and what a model's attention says about reading them apart from the rest."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from transformers import PreTrainedModel

from antiphase.interface import REPLACEMENT_PREFIX

LENGTH_DEPENDENT = {"dynamic", "longrope"}
"""Types of RoPE whose frequencies depend on the number of tokens that are read."""


def shared_beginning(prompts: Sequence[Sequence[int]]) -> int:
    """Number of tokens that all prompts begin with, leaving at least one token of each."""
    shortest = min(map(len, prompts)) - 1
    first = prompts[0]
    for prompt in prompts[1:]:
        while prompt[:shortest] != first[:shortest]:
            low, high = 0, shortest - 1
            while low < high:
                middle = (low + high + 1) // 2
                low, high = (middle, high) if prompt[:middle] == first[:middle] else (low, middle - 1)
            shortest = low
    return max(0, shortest)


def counts_padding(model: PreTrainedModel) -> bool:
    """Whether padding between tokens changes what a model computes for later ones.

    It counts as distance in windows and in MPT's ALiBi, and as length where RoPE depends on it.
    """
    config = model.config.get_text_config()
    kinds = getattr(config, "layer_types", None)
    windows = bool(getattr(config, "sliding_window", None)) and (not kinds or "sliding_attention" in kinds)
    local = "local" in (getattr(config, "attention_layers", None) or ())  # GPT-Neo
    by_index = bool(getattr(getattr(config, "attn_config", None), "alibi", False))  # MPT
    return windows or local or by_index or depends_on_length(model)


def depends_on_length(model: PreTrainedModel) -> bool:
    """Whether a token's keys depend on how many tokens are read with it, because RoPE does."""
    found: dict[str, Any] = getattr(model.config.get_text_config(), "rope_parameters", None) or {}
    by_layers = [one for one in found.values() if isinstance(one, dict)]
    return any(one.get("rope_type") in LENGTH_DEPENDENT for one in by_layers or [found])


def is_read_in_parts(model: PreTrainedModel) -> bool:
    """Whether a prompt's beginning may be read before the rest: no if attention is calibrated or depends on length."""
    return not (model.config._attn_implementation.startswith(REPLACEMENT_PREFIX) or depends_on_length(model))


def attends_fully(model: PreTrainedModel) -> bool:
    """Whether a token's attention, in every layer, depends on all tokens before it and on nothing else.

    No: calibrated attention, what counts padding, chunks, and attention that depends on the number of cached tokens
    (``attn_temperature_tuning`` of Llama 4).
    """
    config = model.config.get_text_config()
    is_full = set(getattr(config, "layer_types", None) or ()) <= {"full_attention"} and not counts_padding(model)
    return is_full and is_read_in_parts(model) and not getattr(config, "attn_temperature_tuning", False)
