"""Attention layers of Phi-4-mini-flash-reasoning as V1 layers here; its Mamba and gated memory units are not here."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from antiphase.base.errors import InputError
from antiphase.base.files import read_json
from antiphase.layers.attention import check_counts
from antiphase.layers.differential import VECTORS, DifferentialAttentionV1
from antiphase.layers.functions import eager_attention
from antiphase.models.sources.folders import local_folder, weight_files

COUNTS = ("hidden_size", "num_attention_heads", "num_key_value_heads", "num_hidden_layers", "sliding_window")


def phi4_flash_attention(folder: str, layer: int) -> DifferentialAttentionV1:
    """One attention layer of a checkpoint of microsoft/Phi-4-mini-flash-reasoning, with eager attention.

    It takes hidden states after the block's LayerNorm, and no positions. Odd layers have attention: those of the first
    half with a window; the one after the middle is full, and the later ones read its keys and values. These are called
    with the full layer's input as ``context`` and with a mask, because alone they do not hide later tokens.

    Example:
        >>> layer = phi4_flash_attention("Phi-4-mini-flash-reasoning", 17)
        >>> layer_maps(layer, hidden_states).maps.shape  # (heads, 2, N, N)

    Args:
        folder: with config.json, of which only the sizes and the window are read, and safetensors.
        layer: 0-based number in the model, where layers without attention count too.

    Raises:
        InputError: it is no folder of this model, its tensors are others, or the layer has no attention or
            tensors that have no place here.
    """
    found = local_folder(folder, "source")
    config = {} if found is None else read_json(found / "config.json", "source", "download the model once more")
    if found is None or config.get("model_type") != "phi4flash" or config.get("mb_per_layer", 2) != 2:
        remedy = "give that of a downloaded microsoft/Phi-4-mini-flash-reasoning"
        raise InputError("this is no folder of a Phi-4-mini-flash model", remedy, field="source", path=folder)
    check_counts({name: config.get(name) for name in COUNTS}, COUNTS)
    hidden, maps, key_maps, layers, window = (config[name] for name in COUNTS)
    full = layers // 2 + 1
    if layer % 2 == 0 or not 0 < layer < layers:
        raise InputError(f"layer {layer} has no attention", f"choose an odd one below {layers}", field="source")
    made = DifferentialAttentionV1(
        hidden, maps, num_key_value_heads=key_maps, layer_idx=layer, is_causal=layer <= full, bias=True,
        sliding_window=window if layer < full else None, attention=eager_attention, initialize=False,
    )  # fmt: skip
    stored = weight_files(found, folder, "source")

    own = f"model.layers.{layer}.attn."
    surplus = {name for name in stored.shapes if name.startswith(own)}

    def read(index: int, name: str, shape: tuple[int, ...]) -> Tensor:
        name = f"model.layers.{index}.attn.{name}"
        surplus.discard(name)
        if stored.shapes.get(name) != shape:
            found = f"has shape {stored.shapes[name]}, expected {shape}" if name in stored.shapes else "is missing"
            raise InputError(f"the tensor {name} {found}", field="source", path=folder)
        return stored.read(name)

    keys = key_maps * made.head_dim
    tensors = {}
    for kind, columns in (("weight", (hidden,)), ("bias", ())):
        query, *others = read(min(layer, full), f"Wqkv.{kind}", (hidden + 2 * keys, *columns)).split(
            [hidden, keys, keys]
        )
        if layer > full:
            query = read(layer, f"Wqkv.{kind}", (hidden, *columns))
        for name, tensor in zip("qkv", (query, *others), strict=True):
            tensors[f"{name}_proj.{kind}"] = tensor
        tensors[f"o_proj.{kind}"] = read(layer, f"out_proj.{kind}", (hidden, *columns))
    for name in VECTORS:
        tensors[name] = read(layer, f"inner_cross_attn.{name}", (made.head_dim,)).float()
    tensors["head_norm.weight"] = read(layer, "inner_cross_attn.subln.weight", (2 * made.head_dim,))
    if surplus:
        raise InputError(f"there is no place for the tensor {min(surplus)}", field="source", path=folder)
    made.load_state_dict(tensors, assign=True)
    if layer > full:
        made.register_forward_pre_hook(_require_context, with_kwargs=True)
    return made.requires_grad_(False)


def _require_context(layer: DifferentialAttentionV1, args: tuple[Any, ...], given: dict[str, Any]) -> None:
    if given.get("context") is None or given.get("attention_mask") is None:
        raise ValueError(
            f"layer {layer.layer_idx} reads the keys of the full layer: give that layer's input as context, and "
            "attention_mask, boolean (1, 1, N, M), True = may attend"
        )
