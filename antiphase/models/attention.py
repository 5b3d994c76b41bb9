"""The plain attention layers inside models of transformers: built from a configuration, with transformers' caches."""

from __future__ import annotations

from typing import Any

from torch import Tensor
from transformers import Cache, EncoderDecoderCache, PreTrainedConfig
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from antiphase.attention.caches import by_either_name
from antiphase.attention.interface import differential_function, subtracting_function
from antiphase.layers.attention import AttentionLayer
from antiphase.layers.functions import AttentionFunction, has_two_keys, is_differential
from antiphase.layers.functions import eager_attention as eager_attention_forward  # transformers' name for a module's
from antiphase.layers.registry import LAYERS
from antiphase.models.variants import layer_arguments


class _Configured(AttentionLayer):
    """A layer whose arguments and attention function come from a configuration.

    Attention functions of transformers expect the configuration as an attribute of the layer.
    """

    def __init__(self, config: PreTrainedConfig, layer_idx: int, **options: Any) -> None:
        super().__init__(**layer_arguments(config, layer_idx), **options)
        self.config = config

    @by_either_name
    def forward(self, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor | None]:
        return super().forward(*args, **kwargs)

    def attention_function(self) -> AttentionFunction:
        return function_for(self, self.config._attn_implementation)

    def _cached(self, key: Tensor, value: Tensor, earlier: Cache) -> tuple[Tensor, Tensor]:
        own = earlier.self_attention_cache if isinstance(earlier, EncoderDecoderCache) else earlier
        return own.update(key, value, self.layer_idx)

    def _keys_of_context(self, context: Tensor, earlier: Cache | None) -> tuple[Tensor, Tensor]:
        """Keys and values of the context, projected only once if there is a cache."""
        assert earlier is None or isinstance(earlier, EncoderDecoderCache)
        if earlier is not None and earlier.is_updated.get(self.layer_idx):
            kept = earlier.cross_attention_cache.layers[self.layer_idx]
            return kept.keys, kept.values
        key, value = super()._keys_of_context(context, None)
        if earlier is not None:
            key, value = earlier.cross_attention_cache.update(key, value, self.layer_idx)
            earlier.is_updated[self.layer_idx] = True
        return key, value


def function_for(layer: AttentionLayer, implementation: str) -> AttentionFunction:
    """The attention function of a layer for the name of an implementation."""
    if not is_differential(layer):
        return ALL_ATTENTION_FUNCTIONS.get_interface(implementation, eager_attention_forward)
    return differential_function(implementation) if has_two_keys(layer) else subtracting_function(implementation)


_CLASSES: dict[type[AttentionLayer], type[_Configured]] = {}


def attention_layer(config: PreTrainedConfig, layer_idx: int, **options: Any) -> AttentionLayer:
    """The attention layer of type ``config.attention_type``.

    ``options`` are those that no field of a configuration sets: ``is_causal``, ``bias``, ``output_bias``,
    ``qk_norm_eps``.
    """
    plain = LAYERS[config.attention_type]
    if plain not in _CLASSES:
        _CLASSES[plain] = type(plain.__name__, (_Configured, plain), {"__doc__": plain.__doc__, "__module__": __name__})
        globals()[plain.__name__] = _CLASSES[plain]  # so that models can be pickled
    return _CLASSES[plain](config, layer_idx, **options)
