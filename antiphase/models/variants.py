"""The attention layer that the fields of a configuration select, and its departures from the published form."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from antiphase.base.errors import InputError, nearest
from antiphase.layers.attention import AttentionLayer
from antiphase.layers.registry import LAYERS, variant_fields

SET_BY_MODEL = ("is_causal", "bias", "output_bias", "qk_norm_eps", "context_size", "attention")
"""Options of a layer that its model sets, independent of configuration fields with these names."""


def own_fields(config: Any) -> list[str]:
    """Names of the fields in which a configuration departs from the published form."""
    published = _published(config)
    return [name for name in variant_fields() if name in published and option(config, name) != published[name]]


def option(config: Any, name: str) -> Any:
    """The value of a field in a configuration, or that of the published form if the field is None or missing."""
    given = getattr(config, name, None)
    return _published(config).get(name) if given is None else given


def _published(config: Any) -> dict[str, Any]:
    return LAYERS[config.attention_type].options()


def needs(config: Any) -> dict[str, str]:
    """Arguments of the attention function that layers of a configuration rely on (``AttentionLayer.needs``)."""
    kind = LAYERS[config.attention_type]
    return kind.needs({name: option(config, name) for name in kind.options()})


def layer_arguments(config: Any, layer_idx: int) -> dict[str, Any]:
    """Arguments of one layer. Its λ vectors stay zero until ``_init_weights`` or ``initialize`` draws all weights."""
    kind = LAYERS[config.attention_type]
    options = [name for name in kind.options() if name not in SET_BY_MODEL]
    if layer_idx >= len(config.layer_types):
        raise InputError(
            f"layer_types names {len(config.layer_types)} layers, num_hidden_layers is {config.num_hidden_layers}",
            "give both",
        )
    is_sliding = config.layer_types[layer_idx] == "sliding_attention"
    found = {"layer_idx": layer_idx, "sliding_window": config.sliding_window if is_sliding else None}
    if "initialize" in options:
        found["initialize"] = False
    for name in ("hidden_size", "num_attention_heads", *options):
        if name not in found and (value := getattr(config, name, None)) is not None:
            found[name] = value[layer_idx] if name in kind.by_layer and isinstance(value, list) else value
    return found


def check_layers(config: Any, **given: Any) -> None:
    """
    Args:
        given: values that replace fields of the configuration.

    Raises:
        InputError: ``attention_type`` is unknown, it does not use a given field, or a value is invalid; the message
            names the field.
    """
    kind = config.attention_type
    if not isinstance(kind, str) or kind not in LAYERS:
        known = ", ".join(LAYERS)
        raise InputError(f"attention_type must be one of {known}, got {kind!r}{nearest(str(kind), LAYERS)}")
    layer, count = LAYERS[kind], config.num_hidden_layers
    for name in variant_fields():
        value = getattr(config, name, None)
        if name not in layer.options() and value not in (None, False, 0):
            users = [other for other, their in LAYERS.items() if name in their.options()]
            if len(users) > 1:
                raise InputError(f"{name} must be left out in {kind}, got {value!r}")
            raise InputError(f"{name} needs attention_type={users[0]}, got {kind}")
    for name, what in layer.by_layer.items():
        value = getattr(config, name, None)
        if isinstance(value, list) and len(value) != count:
            raise InputError(f"{name} must list {what} for each of the {count} layers, got {value}")
    names = ("hidden_size", "num_attention_heads", *layer.options())
    given = {name: getattr(config, name, None) for name in names} | given
    for index in range(count):
        layer.check(given | {"layer_idx": index} | _of_layer(layer, given, index))


def _of_layer(layer: type[AttentionLayer], given: Mapping[str, Any], index: int) -> dict[str, Any]:
    return {name: given[name][index] for name in layer.by_layer if isinstance(given[name], list)}
