"""Models that carry a state from token to token, which a cache of keys and values does not hold."""

from __future__ import annotations

import inspect

from transformers import DynamicCache, PreTrainedModel
from transformers.cache_utils import DynamicLayer


def carries_state(model: PreTrainedModel) -> bool:
    """Whether a model has a state beside its cache of keys and values, or instead of one (Mamba, RWKV, Jamba, LSTM).

    Such a model may ignore the state if several tokens follow a cache, so it reads a text at once.
    """
    if model._is_stateful or "past_key_values" not in inspect.signature(model.forward).parameters:
        return True
    return not all(isinstance(layer, DynamicLayer) for layer in DynamicCache(config=model.config).layers)


def check_no_state(model: PreTrainedModel) -> None:
    """
    Raises:
        ValueError: answers cannot be scored after a prompt that was read once, because the model carries a state.
    """
    if carries_state(model):
        raise ValueError(
            f"models of type {model.config.model_type} carry a state from token to token, so answers to a prompt "
            "cannot be scored"
        )
