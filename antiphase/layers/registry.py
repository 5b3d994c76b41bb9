"""Registry of the kinds of attention, which configurations, new models and checkpoints read."""

from __future__ import annotations

from collections.abc import Iterable

from torch import nn

from antiphase.layers.attention import AttentionLayer
from antiphase.layers.differential import DifferentialAttentionV1
from antiphase.layers.differential_v2 import DifferentialAttentionAcross, DifferentialAttentionV2
from antiphase.layers.rivals import CogAttention, ExclusiveAttention, SoftmaxOneAttention, SoftpickAttention
from antiphase.layers.softmax import SoftmaxAttention

ACROSS = "differential_v2_across"
"""V2 whose pairs read different keys: map i with map i + H (an ablation of V2, Microsoft, January 2026)."""
LAYERS: dict[str, type[AttentionLayer]] = {
    "softmax": SoftmaxAttention,
    "differential": DifferentialAttentionV1,
    "differential_v2": DifferentialAttentionV2,
    ACROSS: DifferentialAttentionAcross,
    "softmax_one": SoftmaxOneAttention,
    "softpick": SoftpickAttention,
    "cog": CogAttention,
    "exclusive": ExclusiveAttention,
}
"""Layer class by ``attention_type``."""
PROJECTIONS = ("q_proj", "k_proj", "v_proj", "o_proj")
"""Projections of every layer; all other parameters depend on the kind, except those of these norms."""
QUERY_KEY_NORMS = ("q_norm", "k_norm")


def variant_fields() -> tuple[str, ...]:
    """Options, over all kinds, in which a layer may depart from its published form."""
    general = {*AttentionLayer.options(), "initialize"}
    return tuple(dict.fromkeys(name for layer in LAYERS.values() for name in layer.options() if name not in general))


def attention_layers(model: nn.Module) -> Iterable[AttentionLayer]:
    """The attention layers of a model."""
    return (module for module in model.modules() if isinstance(module, AttentionLayer))


def set_training_step(model: nn.Module, step: int) -> None:
    """Set the training step in the layers that anneal something."""
    for layer in attention_layers(model):
        layer.at_step(step)
