"""Models that carry a state from token to token, which a cache of keys and values does not hold."""

from __future__ import annotations

import inspect

from transformers import DynamicCache, PreTrainedModel, cache_utils

from antiphase.attention.caches import cache_name

KEYED = tuple(
    getattr(cache_utils, name)
    for name in ("DynamicLayer", "DynamicSlidingWindowLayer", "DynamicIndexedLayer", "DummyLayer")
    if hasattr(cache_utils, name)  # the last one is not there in transformers before 5.20
)
"""Layers of caches that hold nothing but keys and values; a layer of a class that extends one may hold a state too."""


def carries_state(model: PreTrainedModel) -> bool:
    """Whether a model has a state beside its cache of keys and values, or instead of one (Mamba, RWKV, Jamba, LSTM).

    Such a model may ignore the state if several tokens follow a cache, so it reads a text at once.
    """
    if model._is_stateful or cache_name(model) not in inspect.signature(model.forward).parameters:
        return True
    return any(type(layer) not in KEYED for layer in DynamicCache(config=model.config).layers)


def check_no_state(model: PreTrainedModel) -> None:
    """
    Raises:
        ValueError: a prompt cannot be read before its answers, as calibration needs it, because the model carries a
            state.
    """
    if carries_state(model):
        raise ValueError(
            f"models of type {model.config.model_type} carry a state from token to token, so calibrated attention "
            "cannot read a prompt before its answers; the model as it is can be measured"
        )
