"""How models of other architectures differ from those here: one table, from which conversions into them are made.

An architecture is described by its fields and by its tensors. Everything that the table does not name is equal in both;
a field whose value would change the function is refused by name.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from functools import partial
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedConfig

from antiphase.base.errors import InputError, named
from antiphase.layers.attention import check_counts
from antiphase.layers.differential import VECTORS
from antiphase.layers.lambdas import lambda_init
from antiphase.layers.mlp import ACTIVATIONS
from antiphase.models.block_fields import ROTATED
from antiphase.models.configuration import AntiphaseConfig
from antiphase.models.recipes import (
    EMBEDDING,
    Conversion,
    Recipe,
    by_halves,
    changed,
    head_norm_of,
    in_full,
    interleaved,
    take,
    tensor_shapes,
    third,
)

SIZES = (
    "vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads",
    "head_dim", "max_position_embeddings", "rope_parameters", "rms_norm_eps", "initializer_range",
    "tie_word_embeddings", "use_cache", "pad_token_id", "bos_token_id", "eos_token_id", "dtype",
)  # fmt: skip
"""Fields that every architecture has, with the same meaning."""
Change = Callable[[Tensor], Tensor]
UNSAID = ("head_dim",)
"""Those that some leave out."""
NO_DROPOUT: Mapping[str, tuple[Any, ...]] = {"attention_dropout": (0.0,)}


@dataclass(frozen=True)
class Architecture:
    """The differences of an architecture's configuration and tensors from those here."""

    attention_type: str | None = "softmax"
    """None: a field of its configuration, which is read from its tensors."""
    also: tuple[str, ...] = ()
    """Further fields that have the same meaning there and here."""
    renamed: Mapping[str, str | None] = field(default_factory=dict)
    """Its names of fields here, where they differ; None where it has none and the default here is its value."""
    implied: Mapping[str, Any] = field(default_factory=dict)
    """Fields here whose values every model of the architecture has."""
    computed: Mapping[str, Callable[[Any], Any]] = field(default_factory=dict)
    """Fields here that follow from several of its configuration, or have another form there."""
    only: Mapping[str, tuple[Any, ...]] = field(default_factory=lambda: NO_DROPOUT)
    """Its fields that nothing here expresses, with the values that can be converted."""
    rotates_part: bool = False
    """Its model in transformers heeds ``partial_rotary_factor``."""
    embeddings_scaled: bool = False
    """Embeddings are multiplied by √hidden_size, rounded to the dtype of the weights."""
    names: Mapping[str, str] = field(default_factory=dict)
    """Its names of parts of tensor names, by those here."""
    changes: Mapping[str, Callable[[int], Change]] = field(default_factory=dict)
    """How tensors change, given the width of a map, by a part of their names here."""
    older: Mapping[str, str] = field(default_factory=dict)
    """Beginnings of tensor names in older checkpoints: those of today."""
    unused: tuple[str, ...] = ()
    """Patterns of names of tensors that checkpoints hold and no model uses."""
    in_transformers: bool = True
    """Whether transformers has the model, whose tensors say what a checkpoint must hold; else the result's say it."""


QKV = "attention.query_key_value"
NORMS_AFTER = {
    "post_attention_layernorm": "post_feedforward_layernorm", "input_layernorm": "post_attention_layernorm"
}  # fmt: skip
"""Names of norms that follow attention and MLP, in the order in which they are replaced."""
ARCHITECTURES: Mapping[str, Architecture] = {
    "llama": Architecture(also=("hidden_act", "attention_bias", "mlp_bias")),
    "mistral": Architecture(also=("hidden_act", "sliding_window")),
    "diffllama": Architecture(
        attention_type="differential",
        also=("hidden_act", "attention_bias"),
        renamed={"head_norm_eps": "rms_norm_eps"},
        names={"head_norm": "o_proj"},
        changes={
            **dict.fromkeys(("q_proj", "k_proj", "v_proj"), lambda width: partial(interleaved, width=width)),
            "head_norm": lambda width: partial(head_norm_of, width=width),
            **dict.fromkeys(VECTORS, lambda width: in_full),
        },
    ),
    "qwen2": Architecture(also=("hidden_act", "sliding_window", "layer_types"), implied={"qkv_bias": True}),
    "qwen3": Architecture(
        also=("hidden_act", "attention_bias", "sliding_window", "layer_types"), implied={"use_qk_norm": True}
    ),
    "olmo2": Architecture(
        also=("hidden_act", "attention_bias"),
        implied={"use_qk_norm": True, "whole_qk_norm": True, "norm_position": "after"},
        names=NORMS_AFTER,
    ),
    "exaone4": Architecture(
        also=("hidden_act",), implied={"use_qk_norm": True, "norm_position": "after"}, names=NORMS_AFTER,
        only={**NO_DROPOUT, "sliding_window": (None,)},  # with windows, layers without have no positions
    ),
    "gemma": Architecture(
        also=("hidden_act", "attention_bias"),
        implied={"norm_type": "zero_centered_rms_norm"},
        only={**NO_DROPOUT, "use_bidirectional_attention": (None, False)},
        embeddings_scaled=True,
    ),
    "gpt_neox": Architecture(
        also=("hidden_act", "attention_bias", "use_parallel_residual"),
        renamed={"rms_norm_eps": "layer_norm_eps", "num_key_value_heads": None, "head_dim": None},
        implied={"norm_type": "layer_norm", "gated_mlp": False, "mlp_bias": True},
        rotates_part=True,
        only={**NO_DROPOUT, "hidden_dropout": (0.0,), "head_dim": (None,)},
        names={
            "model.embed_tokens": "gpt_neox.embed_in", "model.layers": "gpt_neox.layers",
            "model.norm": "gpt_neox.final_layer_norm", "self_attn.q_proj": QKV, "self_attn.k_proj": QKV,
            "self_attn.v_proj": QKV, "self_attn.o_proj": "attention.dense", "mlp.up_proj": "mlp.dense_h_to_4h",
            "mlp.down_proj": "mlp.dense_4h_to_h",
        },
        changes={
            "q_proj": lambda width: partial(third, index=0, width=width),
            "k_proj": lambda width: partial(third, index=1, width=width),
            "v_proj": lambda width: partial(third, index=2, width=width),
        },
        older={"embed_out.": "lm_head."},
        unused=("*attention.bias", "*attention.masked_bias"),
    ),
    "stablelm": Architecture(
        also=("hidden_act",),
        renamed={"rms_norm_eps": "layer_norm_eps", "qkv_bias": "use_qkv_bias"},
        implied={"norm_type": "layer_norm"},
        rotates_part=True,
        only={**NO_DROPOUT, "hidden_dropout": (0.0,), "qk_layernorm": (False,), "use_parallel_residual": (False,)},
    ),
    "starcoder2": Architecture(
        also=("hidden_act", "sliding_window"),
        renamed={"rms_norm_eps": "norm_epsilon", "attention_bias": "use_bias", "mlp_bias": "use_bias"},
        implied={"norm_type": "layer_norm", "gated_mlp": False},
        only={**NO_DROPOUT, "residual_dropout": (0.0,), "embedding_dropout": (0.0,)},
        names={"mlp.up_proj": "mlp.c_fc", "mlp.down_proj": "mlp.c_proj"},
    ),
    "diff_mlx": Architecture(
        attention_type=None,
        renamed={
            "head_norm_eps": "rms_eps",
            **dict.fromkeys(("initializer_range", "use_cache", "pad_token_id", "bos_token_id", "eos_token_id")),
        },
        computed={"rope_parameters": lambda config: {"rope_type": "default", "rope_theta": config.rope_base}},
        only={"tie_embeddings": (True,)},
        names={
            "model.embed_tokens": "model.tok_embed", "model.layers": "model.blocks",
            "model.norm.weight": "model.final_norm.scale", "input_layernorm.weight": "norm_attn.scale",
            "post_attention_layernorm.weight": "norm_mlp.scale", "self_attn.head_norm.weight": "attn.subln.scale",
            "self_attn": "attn", "mlp.gate_proj": "mlp.gate", "mlp.up_proj": "mlp.up", "mlp.down_proj": "mlp.down",
        },
        changes={
            **dict.fromkeys(("q_proj", "k_proj"), lambda width: partial(by_halves, width=width)),
            **dict.fromkeys(VECTORS, lambda width: in_full),
        },
        unused=("opt.*",),
        in_transformers=False,
    ),
    "Motif": Architecture(
        attention_type="differential",
        also=("hidden_act", "num_noise_heads"),
        renamed={"head_norm_eps": "attn_rms_norm_eps"},
        computed={
            "num_attention_heads": lambda config: config.maps,
            "head_dim": lambda config: config.head_dim or config.hidden_size // config.num_attention_heads,
            # the paper's schedule, a layer late: the first layer's value is that of depth -1
            "lambda_init": lambda config: [lambda_init(index - 1) for index in range(config.num_hidden_layers)],
        },
        only={
            **NO_DROPOUT, "use_bias": (False,), "use_sliding_window": (False,), "k_ratio": (1,), "expanded": (False,),
            "hidden_act": ("poly_norm", "silu", "gelu"),
        },
        names={"head_norm": "subln"},
        changes=dict.fromkeys(VECTORS, lambda width: in_full),
        in_transformers=False,
    ),
}  # fmt: skip
"""By the name of the model type in its configuration."""


def read_as_ours(config: PreTrainedConfig, *, dtype: torch.dtype | None = None) -> Conversion:
    """A model of another architecture as one of this package, with the same function.

    Args:
        dtype: of the result's weights; None means that of the configuration.

    Raises:
        InputError: the configuration has a value that cannot be expressed here; the message names the field.
    """
    kind = ARCHITECTURES[config.model_type]
    counts = ("hidden_size", "num_attention_heads", "num_hidden_layers")
    check_counts({name: getattr(config, name) for name in counts}, counts)
    refuse_values(config, {"hidden_act": tuple(ACTIVATIONS), "is_causal": (True,), **kind.only})
    share = (getattr(config, "rope_parameters", None) or {}).get(ROTATED, 1.0)
    if share != 1 and kind.in_transformers and not kind.rotates_part:
        raise InputError(f"{ROTATED} is {share}, but transformers rotates all of a {config.model_type}; set it to 1")
    fields: dict[str, Any] = dict(kind.implied)
    for name in dict.fromkeys([*SIZES, *kind.also, *kind.renamed]):
        theirs = kind.renamed.get(name, name)
        if theirs is not None and name not in kind.computed:
            fields[name] = getattr(config, theirs, None) if theirs in UNSAID else getattr(config, theirs)
    fields |= {name: compute(config) for name, compute in kind.computed.items()}
    if "sliding_attention" not in (fields.get("layer_types") or ["sliding_attention"]):
        fields["sliding_window"] = None  # no layer uses it
    if kind.embeddings_scaled:
        rounded = torch.tensor(config.hidden_size**0.5, dtype=dtype or config.dtype or torch.float32)
        fields["embedding_multiplier"] = rounded.item()
    ours = AntiphaseConfig(attention_type=kind.attention_type or config.attention_type, **fields)
    recipes: dict[str, Recipe] = {}
    for name in tensor_shapes(ours):
        change = next((of_width for part, of_width in kind.changes.items() if part in name.split(".")), None)
        source = name_there(config, name)
        recipes[name] = partial(take, source) if change is None else partial(changed, source, change(ours.head_dim))
    return Conversion(ours, recipes)


def shapes_there(config: PreTrainedConfig) -> dict[str, torch.Size]:
    """Name and shape of every tensor in a checkpoint with this configuration, without a tied head."""
    if ARCHITECTURES.get(config.model_type, Architecture()).in_transformers:
        return tensor_shapes(config)
    return {name_there(config, name): shape for name, shape in tensor_shapes(read_as_ours(config).config).items()}


def name_there(config: PreTrainedConfig, name: str) -> str:
    """The name that the tensor ``name`` of a model here has in a model with this configuration."""
    kind = ARCHITECTURES.get(config.model_type, Architecture())
    for ours, theirs in kind.names.items():
        name = name.replace(ours, theirs)
    return name


def embedding_there(config: PreTrainedConfig) -> str:
    """The name of the embeddings in a model with this configuration."""
    return name_there(config, EMBEDDING)


def current_names(config: PreTrainedConfig, stored: Mapping[str, Any]) -> dict[str, str]:
    """Names of stored tensors by those that the configuration's model gives them, without those that it never uses."""
    kind = ARCHITECTURES.get(config.model_type, Architecture())
    found: dict[str, str] = {}
    for name in stored:
        if any(fnmatchcase(name, pattern) for pattern in kind.unused):
            continue
        old = next((start for start in kind.older if name.startswith(start)), "")
        current = kind.older.get(old, "") + name.removeprefix(old)
        if current in found:
            raise InputError(
                f" has both {found[current]} and {name}, of which one is the other's older name", field="source"
            )
        found[current] = name
    return found


def refuse_values(config: PreTrainedConfig, allowed: Mapping[str, tuple[Any, ...]]) -> None:
    """
    Raises:
        InputError: a field has a value that nothing here expresses.
    """
    for name, values in allowed.items():
        if getattr(config, name, values[0]) not in values:
            only = ", ".join(repr(value) for value in values)
            raise InputError(
                f"{named('source')} has {name}={getattr(config, name)!r} in its config.json, which has no counterpart "
                "here",
                f"only {only} can be converted",
            )
