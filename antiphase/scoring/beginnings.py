"""Common beginnings of prompts, and whether later tokens of a model see all of them."""

from __future__ import annotations

from collections.abc import Sequence

from transformers import PreTrainedModel

from antiphase.interface import REPLACEMENT_PREFIX


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


def has_window(model: PreTrainedModel) -> bool:
    """Whether any layer of a model has a sliding window."""
    config = model.config.get_text_config()
    kinds = getattr(config, "layer_types", None)
    return bool(getattr(config, "sliding_window", None)) and (not kinds or "sliding_attention" in kinds)


def attends_fully(model: PreTrainedModel) -> bool:
    """Whether a token's attention, in every layer, depends on all tokens before it and on nothing else.

    No: calibrated attention, windows, chunks, and attention that depends on the number of cached tokens
    (``attn_temperature_tuning`` of Llama 4).
    """
    config = model.config.get_text_config()
    is_full = set(getattr(config, "layer_types", None) or ()) <= {"full_attention"} and not has_window(model)
    is_own = model.config._attn_implementation.startswith(REPLACEMENT_PREFIX)
    return is_full and not is_own and not getattr(config, "attn_temperature_tuning", False)
