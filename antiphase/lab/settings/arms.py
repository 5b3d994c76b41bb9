"""Arms of comparisons that have a name: what each changes in a model, for its sizes.

They are the arms of the experiments on differential attention; a preset takes one by naming it in ``compare.arms``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from antiphase.base.errors import InputError
from antiphase.lab.settings.schema import ModelSettings

Changes = dict[str, Any]
"""Fields of the model."""
Arm = Callable[[ModelSettings], Changes]
"""The fields that an arm sets; an InputError says why a model of these sizes cannot have it."""


def key_maps(model: ModelSettings) -> int:
    """Key maps of a softmax or V1 layer."""
    return model.num_key_value_heads or model.num_attention_heads


def map_width(model: ModelSettings) -> int:
    """Width of a map."""
    return model.head_dim or model.hidden_size // model.num_attention_heads


def softmax(**more: Any) -> Arm:
    """Softmax attention, with further fields."""
    return lambda model: {"attention_type": "softmax", "num_key_value_heads": key_maps(model), **more}


def differential(**more: Any) -> Arm:
    """Differential attention V1, with further fields."""
    return lambda model: {"attention_type": "differential", "num_key_value_heads": key_maps(model), **more}


def half_the_heads(**more: Any) -> Arm:
    """Softmax attention with half the heads, twice as wide, and further fields."""

    def changes(model: ModelSettings) -> Changes:
        maps, keys = model.num_attention_heads, key_maps(model)
        if maps % 2 or keys % 2:
            raise InputError("model.num_attention_heads and model.num_key_value_heads must be even to be halved")
        return {
            "attention_type": "softmax", "num_attention_heads": maps // 2, "num_key_value_heads": keys // 2,
            "head_dim": 2 * map_width(model), **more,
        }  # fmt: skip

    return changes


def rival(kind: str) -> Arm:
    """Softmax attention with another rule, of as many parameters."""
    return lambda model: softmax()(model) | {"attention_type": kind}


def grouped_v2(model: ModelSettings) -> Changes:
    """V2 whose heads share second maps in pairs, with a gate: the small form of Motif-3's attention."""
    noise = model.num_attention_heads // 4
    return {
        "attention_type": "differential_v2", "num_noise_heads": noise, "num_key_value_heads": noise,
        "head_dim": map_width(model), "output_gate": True,
    }  # fmt: skip


def _v2(model: ModelSettings) -> Changes:
    return {"attention_type": "differential_v2", "num_key_value_heads": None, "head_dim": map_width(model)}


def _gated(model: ModelSettings) -> Changes:
    """Gated softmax (2505.06708), whose MLP is narrower by the gate's parameters."""
    gate, matrices = model.num_attention_heads * map_width(model), 3 if model.gated_mlp else 2
    width = model.intermediate_size - round(gate / matrices)
    if width < 1:
        raise InputError(
            f"model.intermediate_size ({model.intermediate_size}) is too small to compensate for a gate's parameters"
        )
    return softmax(output_gate=True)(model) | {"intermediate_size": width}


ARMS: dict[str, Arm] = {
    "S": softmax(),
    "SW": half_the_heads(head_norm=True),  # the paper's own control of the norm (2410.05258, table 6)
    "V1": differential(),
    "V1+": differential(second_map="added"),
    "V0": differential(second_map="none"),
    "V1f": differential(lambda_form="fixed"),
    "V1n": differential(head_norm=False),
    "V2": _v2,
    "G": _gated,
    "GD": grouped_v2,
    "S1": rival("softmax_one"),
    "SP": rival("softpick"),
    "C": rival("cog"),
    "X": rival("exclusive"),
}
"""The named arms."""
