"""Llama, DiffLlama and microsoft/unilm ⇄ antiphase, and exact upcycling of softmax models to differential V2.

Public code has three conventions for V1. unilm interleaves the maps of a head (2i, 2i+1), as here, and rotates
neighbouring channels; DiffLlama keeps all first maps before all second ones and has a head norm without weight; here
maps are interleaved and channels are rotated by halves, as in Llama.

A conversion consists of a configuration and one recipe per tensor of the result, which reads the source tensors that it
needs. So a checkpoint is converted tensor by tensor and is never in memory as a whole.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, DiffLlamaConfig, LlamaConfig, PreTrainedConfig, PreTrainedModel

from antiphase.errors import InputError
from antiphase.models.configuration import AntiphaseConfig
from antiphase.models.start import INITIALIZATION
from antiphase.models.variants import own_fields
from antiphase.reading.models import ORIGIN, check_shapes, check_tensors

Format = Literal["antiphase", "llama", "diffllama"]
Read = Callable[[str], Tensor]
"""Returns a tensor of the source by name."""
Recipe = Callable[[Read], Tensor]
HEAD, EMBEDDING = "lm_head.weight", "model.embed_tokens.weight"

SIZES = (
    "vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads",
    "head_dim", "max_position_embeddings", "rope_parameters", "rms_norm_eps", "initializer_range",
    "tie_word_embeddings", "use_cache", "pad_token_id", "bos_token_id", "eos_token_id", "dtype",
)  # fmt: skip
"""Fields with the same meaning in all three configurations."""
UNSUPPORTED_FIELDS = {"hidden_act": "silu", "attention_bias": False, "mlp_bias": False, "attention_dropout": 0.0}
"""Fields of Llama and DiffLlama that no configuration here can express, with the only value that can be converted."""


@dataclass(frozen=True)
class Conversion:
    """The result's configuration, and a recipe for each of its tensors."""

    config: PreTrainedConfig
    recipes: Mapping[str, Recipe]


def plan_conversion(
    config: PreTrainedConfig,
    *,
    to: Format = "antiphase",
    attention_type: str | None = None,
    control: bool = False,
) -> Conversion:
    """The conversion of a checkpoint with this configuration.

    Args:
        config: configuration of a ``LlamaForCausalLM``, ``MistralForCausalLM``, ``DiffLlamaForCausalLM`` or
            ``AntiphaseForCausalLM``.
        to: format of the result; Llama and DiffLlama load in transformers without this package.
        attention_type: "differential_v2" upcycles a softmax model: every head becomes a pair, and the outputs do not
            change. "dex" adds the differential extension (2505.16333) to every head of a softmax model, initially
            without effect.
        control: upcycle to softmax attention of the same capacity instead, with twice the query heads.

    Raises:
        InputError: the target format cannot express something; the message names the field.
    """
    read_as = {
        "antiphase": _identity, "llama": _from_llama, "mistral": _from_llama, "diffllama": _from_diffllama
    }  # fmt: skip
    if config.model_type not in read_as:
        raise InputError(f"SOURCE is a model of type {config.model_type!r}; {', '.join(read_as)} can be converted")
    if getattr(config, "quantization_config", None) is not None:
        raise InputError("SOURCE is quantized (quantization_config in its config.json); convert the full weights")
    steps: list[Callable[[Any], Conversion]] = [read_as[config.model_type]]
    if attention_type not in (None, "differential_v2", "dex"):
        raise InputError(f"--attention-type must be differential_v2 or dex, got {attention_type!r}")
    if control and attention_type != "differential_v2":
        raise InputError("--control needs --attention-type differential_v2")
    if (attention_type is not None or to != "antiphase") and config.model_type == "antiphase" and own_fields(config):
        result_name = f"--to {to}" if attention_type is None else f"--attention-type {attention_type}"
        raise InputError(f"{result_name} has no place for what SOURCE sets in {', '.join(own_fields(config))}")
    if attention_type is not None:
        steps.append(_extended if attention_type == "dex" else partial(_upcycled, control=control))
    if to != "antiphase":
        steps.append({"llama": _to_llama, "diffllama": _to_diffllama}[to])
    result = steps[0](config)
    for step in steps[1:]:
        after = step(result.config)
        result = Conversion(after.config, _composed(after.recipes, result.recipes))
    if (origin := getattr(config, ORIGIN, None)) is not None:
        setattr(result.config, ORIGIN, origin)
    return result


def convert_model(
    model: PreTrainedModel, *, to: Format = "antiphase", attention_type: str | None = None, control: bool = False
) -> PreTrainedModel:
    """Convert a model to another format in memory; arguments and errors as for ``plan_conversion``."""
    conversion = plan_conversion(model.config, to=to, attention_type=attention_type, control=control)
    state = model.state_dict()
    if model.config.tie_word_embeddings:
        check_tied(state.__getitem__, type(model).__name__)
        del state[HEAD]
    shapes = {name: tensor.shape for name, tensor in state.items()}
    check_shapes(shapes, tensor_shapes(model.config), type(model).__name__)
    result = AutoModelForCausalLM.from_config(conversion.config, dtype=model.dtype)
    result.load_state_dict(
        {name: recipe(state.__getitem__) for name, recipe in conversion.recipes.items()}, strict=False
    )
    if model.generation_config is not None:
        result.generation_config = copy.deepcopy(model.generation_config)
    return result.train(model.training)


def tensor_shapes(config: PreTrainedConfig) -> dict[str, torch.Size]:
    """Name and shape of every tensor in a checkpoint of the configuration's model, without a tied head."""
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    shapes = {name: tensor.shape for name, tensor in model.state_dict().items()}
    if config.tie_word_embeddings:
        del shapes[HEAD]
    return shapes


def attention_from_unilm(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """A layer of microsoft/unilm's ``MultiheadDiffAttn`` as the state dict of an attention layer here.

    The layer must have been trained with the flash variants of that code, which follow the paper. With grouped keys,
    the plain variant gives both maps of a head the same key, which no model here does.

    Args:
        state: ``q_proj.weight``, ``k_proj.weight``, ``v_proj.weight``, ``out_proj.weight``, ``subln.weight`` and the
            four λ vectors, of any dtype.

    Raises:
        InputError: a tensor is missing or unexpected, or the shapes do not fit together; the message names the tensor.
    """
    vectors = [f"lambda_{which}" for which in ("q1", "k1", "q2", "k2")]
    names = [*(f"{name}.weight" for name in ("q_proj", "k_proj", "v_proj", "out_proj", "subln")), *vectors]
    where, whole = "the state dict of MultiheadDiffAttn", "whole layer"
    check_tensors(where, whole=whole, missing=set(names) - set(state), surplus=set(state) - set(names))
    width = len(state["lambda_q1"])
    embed, keys = state["q_proj.weight"].shape[1], state["v_proj.weight"].shape[0]
    expected = {
        "q_proj.weight": (len(state["q_proj.weight"]), embed), "k_proj.weight": (keys, embed),
        "v_proj.weight": (keys, embed), "out_proj.weight": (embed, len(state["q_proj.weight"])),
        "subln.weight": (2 * width,), **dict.fromkeys(vectors, (width,)),
    }  # fmt: skip
    check_shapes({name: tensor.shape for name, tensor in state.items()}, expected, where, whole=whole)
    for name in ("q_proj.weight", "k_proj.weight"):
        if len(state[name]) % (2 * width):
            raise InputError(
                f"{name} has {len(state[name])} rows, which do not divide into pairs of maps of width {width}"
            )
    renamed = {"out_proj.weight": "o_proj.weight", "subln.weight": "head_norm.weight"}
    rotated = ("q_proj.weight", "k_proj.weight")
    return {
        renamed.get(name, name): _by_halves(tensor, width) if name in rotated else _lambda_in_full(name, tensor)
        for name, tensor in state.items()
    }


def check_tied(read: Read, where: str) -> None:
    """
    Raises:
        InputError: the configuration ties the head to the embedding, but the head has other values.
    """
    if not torch.equal(read(HEAD), read(EMBEDDING)):
        raise InputError(
            f"{where}: {HEAD} differs from {EMBEDDING}, though tie_word_embeddings is true in its config.json; set it "
            "to false there if the head is meant to be the model's own"
        )


# ------------------------------------------------------------------------------------------ from other formats


def _identity(config: AntiphaseConfig) -> Conversion:
    return Conversion(config, {name: partial(_take, name) for name in tensor_shapes(config)})


def _from_llama(config: PreTrainedConfig) -> Conversion:
    """Llama, or Mistral with its window: the softmax model here has the same tensors under the same names."""
    _refuse_fields(config)
    window = config.sliding_window if config.model_type == "mistral" else None
    ours = AntiphaseConfig(attention_type="softmax", sliding_window=window, **_shared(config))
    return _identity(ours)


def _from_diffllama(config: DiffLlamaConfig) -> Conversion:
    _refuse_fields(config)
    ours = AntiphaseConfig(attention_type="differential", head_norm_eps=config.rms_norm_eps, **_shared(config))
    recipes = dict(_identity(ours).recipes)
    for name in recipes:
        if name.endswith(("q_proj.weight", "k_proj.weight", "v_proj.weight")):
            recipes[name] = partial(_permuted, name, partial(_interleaved, width=ours.head_dim))
        elif name.endswith("head_norm.weight"):
            recipes[name] = partial(_ones_like_o_proj, name, 2 * ours.head_dim)
        else:
            recipes[name] = partial(_permuted, name, partial(_lambda_in_full, name))
    return Conversion(ours, recipes)


def _upcycled(config: AntiphaseConfig, *, control: bool) -> Conversion:
    """Every softmax head becomes a pair of equal maps, and the output projection compensates.

    V2: λ = sigmoid(0) = 1/2 and 2·Wo, so the pair gives 2·(o - o/2) Wo. Control: 2·Wo and -Wo. Both leave the model's
    function unchanged and give the pair +2 and -1 times the old head's gradient; only V2 can then subtract per token.
    """
    if config.attention_type != "softmax":
        raise InputError(
            f"--attention-type differential_v2 upcycles softmax models; SOURCE has {config.attention_type} attention"
        )
    fields = _shared(config) | {"num_attention_heads": 2 * config.num_attention_heads}
    ours = AntiphaseConfig(
        attention_type="softmax" if control else "differential_v2",
        sliding_window=config.sliding_window, layer_types=config.layer_types, **_start(config), **fields,
    )  # fmt: skip
    recipes = dict(_identity(ours).recipes)
    width = config.head_dim
    for name in recipes:
        if name.endswith("q_proj.weight"):
            recipes[name] = partial(_permuted, name, partial(_repeated, width=width))
        elif name.endswith("o_proj.weight"):
            recipes[name] = partial(_permuted, name, partial(_two_and_minus_one, width=width) if control else _doubled)
        elif name.endswith("lambda_proj.weight"):
            recipes[name] = partial(_no_lambda, name, config.num_attention_heads)
    return Conversion(ours, recipes)


def _extended(config: AntiphaseConfig) -> Conversion:
    """DEX on every head; its matrix and λ start at zero, so the model's function does not change."""
    if config.attention_type != "softmax":
        raise InputError(f"--attention-type dex extends softmax models; SOURCE has {config.attention_type} attention")
    heads = list(range(config.num_attention_heads))
    ours = AntiphaseConfig(
        attention_type="softmax", sliding_window=config.sliding_window, layer_types=config.layer_types,
        dex_heads=[heads] * config.num_hidden_layers, **_start(config), **_shared(config),
    )  # fmt: skip
    recipes = dict(_identity(ours).recipes)
    for name in recipes:
        if name.endswith(("dex_weight", "dex_lambda")):
            shape = (1,) if name.endswith("dex_lambda") else (config.head_dim, config.head_dim)
            recipes[name] = partial(_zeros_of_extension, name, shape)
    return Conversion(ours, recipes)


# ------------------------------------------------------------------------------------------ to other formats


def _to_llama(config: AntiphaseConfig) -> Conversion:
    if config.attention_type != "softmax":
        raise InputError(f"--to llama takes softmax models; SOURCE has {config.attention_type} attention")
    _refuse_window(config, "llama")
    if config.hidden_size % config.num_attention_heads:
        raise InputError(
            f"--to llama: in transformers' Llama num_attention_heads ({config.num_attention_heads}) must divide "
            f"hidden_size ({config.hidden_size})"
        )
    theirs = LlamaConfig(**_shared(config))
    recipes = {name: partial(_take, name) for name in tensor_shapes(theirs)}
    return Conversion(theirs, recipes | _folded_embedding(config, "llama"))


def _to_diffllama(config: AntiphaseConfig) -> Conversion:
    """The head norm's weight is folded into the output projection, because DiffLlama's norm has none."""
    if config.attention_type != "differential":
        raise InputError(f"--to diffllama takes differential V1 models; SOURCE has {config.attention_type} attention")
    _refuse_window(config, "diffllama")
    if config.head_norm_eps != config.rms_norm_eps:
        raise InputError(
            f"--to diffllama: its head norm shares rms_norm_eps, here head_norm_eps ({config.head_norm_eps:g}) and "
            f"rms_norm_eps ({config.rms_norm_eps:g}) differ"
        )
    theirs = DiffLlamaConfig(**_shared(config))
    recipes: dict[str, Recipe] = {}
    for name in tensor_shapes(theirs):
        if name.endswith(("q_proj.weight", "k_proj.weight", "v_proj.weight")):
            recipes[name] = partial(_permuted, name, partial(_by_map, width=config.head_dim))
        elif name.endswith("o_proj.weight"):
            recipes[name] = partial(_with_head_norm, name)
        else:
            recipes[name] = partial(_take, name)
    return Conversion(theirs, recipes | _folded_embedding(config, "diffllama"))


def _shared(config: PreTrainedConfig) -> dict[str, Any]:
    return {name: getattr(config, name) for name in SIZES}


def _start(config: AntiphaseConfig) -> dict[str, Any]:
    return {name: getattr(config, name) for name in INITIALIZATION}


def _folded_embedding(config: AntiphaseConfig, to: str) -> dict[str, Recipe]:
    """The embeddings with their multiplier folded in, which is impossible if the head is tied to them.

    Raises:
        InputError: the embeddings have a multiplier and are tied to the head.
    """
    if config.embedding_multiplier == 1.0:
        return {}
    if config.tie_word_embeddings:
        raise InputError(
            f"--to {to}: SOURCE multiplies its embeddings by embedding_multiplier ({config.embedding_multiplier:.3g}), "
            f"which {to} cannot express while tie_word_embeddings makes them the head as well"
        )
    return {EMBEDDING: partial(_permuted, EMBEDDING, partial(torch.mul, config.embedding_multiplier))}


def _refuse_fields(config: PreTrainedConfig) -> None:
    for name, value in UNSUPPORTED_FIELDS.items():
        if getattr(config, name, value) != value:
            raise InputError(
                f"SOURCE has {name}={getattr(config, name)!r} in its config.json, which has no counterpart here; only "
                f"{value!r} can be converted"
            )
    _refuse_rope(config)


def _refuse_rope(config: PreTrainedConfig) -> None:
    kind = (config.rope_parameters or {}).get("rope_type", "default")
    if kind in ("dynamic", "longrope"):
        raise InputError(
            f"SOURCE has rope_type {kind!r}, which extends beyond max_position_embeddings; models here refuse longer "
            "sequences, so it cannot be converted"
        )


def _refuse_window(config: AntiphaseConfig, to: str) -> None:
    if "sliding_attention" in config.layer_types:
        raise InputError(f"--to {to}: SOURCE has a sliding_window ({config.sliding_window}), which {to} cannot express")


def _composed(later: Mapping[str, Recipe], earlier: Mapping[str, Recipe]) -> dict[str, Recipe]:
    """Recipes that read the tensors made by ``earlier`` recipes."""

    def through(recipe: Recipe, read: Read) -> Tensor:
        return recipe(lambda name: earlier[name](read))

    return {name: partial(through, recipe) for name, recipe in later.items()}


# ------------------------------------------------------------------------------------------ recipes


def _take(name: str, read: Read) -> Tensor:
    return read(name)


def _permuted(name: str, change: Callable[[Tensor], Tensor], read: Read) -> Tensor:
    return change(read(name)).contiguous()


def _interleaved(rows: Tensor, *, width: int) -> Tensor:
    """Reorder maps from (all first, all second) to pairs: (maps · d, hidden)."""
    return rows.unflatten(0, (2, -1, width)).transpose(0, 1).flatten(0, 2)


def _by_map(rows: Tensor, *, width: int) -> Tensor:
    """The inverse of ``_interleaved``."""
    return rows.unflatten(0, (-1, 2, width)).transpose(0, 1).flatten(0, 2)


def _by_halves(rows: Tensor, width: int) -> Tensor:
    """Reorder the rotary channels of each map from neighbours (even, odd) to halves."""
    return rows.unflatten(0, (-1, width // 2, 2)).transpose(1, 2).flatten(0, 2).contiguous()


def _repeated(rows: Tensor, *, width: int) -> Tensor:
    """Every head's rows twice in a row."""
    return rows.unflatten(0, (-1, width)).repeat_interleave(2, dim=0).flatten(0, 1)


def _doubled(columns: Tensor) -> Tensor:
    """
    Raises:
        InputError: doubling a weight overflows the dtype.
    """
    doubled = 2 * columns
    if bool((doubled.isinf() & columns.isfinite()).any()):
        raise InputError(
            f"SOURCE has output weights (o_proj) too large for {columns.dtype} when doubled; save it in bfloat16 first"
        )
    return doubled


def _two_and_minus_one(columns: Tensor, *, width: int) -> Tensor:
    """Every head's columns times 2, then times -1: (hidden, heads · d) to (hidden, 2 · heads · d)."""
    heads = columns.unflatten(1, (-1, 1, width))
    return torch.cat([_doubled(heads), -heads], dim=2).flatten(1)


def _lambda_in_full(name: str, tensor: Tensor) -> Tensor:
    """λ vectors are kept in fp32, whatever the dtype of the other tensors."""
    is_vector = name.rpartition(".")[2].startswith("lambda_")
    return tensor.float() if is_vector and tensor.dtype != torch.float64 else tensor


def _with_head_norm(name: str, read: Read) -> Tensor:
    columns, weight = read(name), read(name.replace("o_proj", "head_norm"))
    folded = columns.double().unflatten(1, (-1, len(weight))) * weight.double()
    return folded.flatten(1).to(columns.dtype)


def _ones_like_o_proj(name: str, width: int, read: Read) -> Tensor:
    return torch.ones(width, dtype=read(name.replace("head_norm", "o_proj")).dtype)


def _zeros_of_extension(name: str, shape: tuple[int, ...], read: Read) -> Tensor:
    dtype = read(name.replace(name.rpartition(".")[2], "o_proj.weight")).dtype
    return torch.zeros(shape, dtype=torch.float32 if name.endswith("dex_lambda") else dtype)


def _no_lambda(name: str, heads: int, read: Read) -> Tensor:
    keys = read(name.replace("lambda_proj", "k_proj"))
    return torch.zeros(heads, keys.shape[1], dtype=keys.dtype)
