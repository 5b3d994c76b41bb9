"""Other architectures → antiphase, antiphase → Llama and DiffLlama, and exact upcycling of softmax models.

Public code has three conventions for V1. unilm interleaves the maps of a head (2i, 2i+1), as here, and rotates
neighbouring channels; DiffLlama keeps all first maps before all second ones and has a head norm without weight; here
maps are interleaved and channels are rotated by halves, as in Llama.

A conversion consists of a configuration and one recipe per tensor of the result, which reads the source tensors that it
needs. So a checkpoint is converted tensor by tensor and is never in memory as a whole.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, DiffLlamaConfig, LlamaConfig, PreTrainedConfig, PreTrainedModel

from antiphase.base.errors import InputError, named
from antiphase.layers.lambdas import lambda_init
from antiphase.layers.mlp import LEARNED
from antiphase.models.block_fields import departures, of_block
from antiphase.models.configuration import AntiphaseConfig
from antiphase.models.recipes import (
    EMBEDDING,
    HEAD,
    Conversion,
    Read,
    Recipe,
    by_halves,
    by_map,
    changed,
    composed,
    doubled,
    drawn_once,
    head_norm_there,
    in_full,
    no_lambda,
    repeated,
    take,
    tensor_shapes,
    two_and_minus_one,
    unchanged,
    widened,
    with_head_norm,
    with_zeros,
    zeros_of_extension,
)
from antiphase.models.source_formats import ARCHITECTURES, SIZES, embedding_there, read_as_ours
from antiphase.models.sources.models import ORIGIN, check_shapes, check_tensors
from antiphase.models.start import INITIALIZATION
from antiphase.models.variants import own_fields

Format = Literal["antiphase", "llama", "diffllama"]
HeadSizes = Sequence[Sequence[float]]
LLAMA_FIELDS = ("hidden_act", "attention_bias", "mlp_bias")
"""Fields of blocks that Llama has under the same names."""
DIFFLLAMA_FIELDS = ("hidden_act", "attention_bias")


def plan_conversion(
    config: PreTrainedConfig,
    *,
    to: Format = "antiphase",
    attention_type: str | None = None,
    control: bool = False,
    head_sizes: HeadSizes | None = None,
    dtype: torch.dtype | None = None,
) -> Conversion:
    """The conversion of a checkpoint with this configuration.

    Args:
        config: configuration of an ``AntiphaseForCausalLM``, or of a causal language model of one of the
            ``ARCHITECTURES``: Llama, Mistral, DiffLlama, Qwen2, Qwen3, OLMo 2, EXAONE 4, Gemma, GPT-NeoX,
            StableLM, StarCoder2, diff-mlx, Motif.
        to: format of the result; Llama and DiffLlama load in transformers without this package.
        attention_type: "differential_v2" upcycles a softmax model: every head becomes a pair, and the outputs do not
            change. "differential" makes V1 of it, without a head norm, and the outputs do not change either. "dex" adds
            the differential extension (2505.16333) to every head of a softmax model, initially without effect.
        control: upcycle to softmax attention of the same capacity instead, with twice the query heads.
        head_sizes: for "differential", of every layer the mean RMS of each head's outputs on some text: the result has
            the head norm, which takes each token's own size away, so the outputs change.
        dtype: of the result's weights, to which Gemma rounds the factor of its embeddings; None means that of the
            configuration.

    Raises:
        InputError: the target format cannot express something; the message names the field.
    """
    known, refused = ("antiphase", *ARCHITECTURES), partial(InputError, field="source")
    if config.model_type not in known:
        raise refused(f" is a model of type {config.model_type!r}", f"{', '.join(known)} can be converted")
    if getattr(config, "quantization_config", None) is not None:
        raise refused(" is quantized (quantization_config in its config.json)", "convert the full weights")
    upcycles: dict[str, Callable[[Any], Conversion]] = {
        "differential_v2": partial(_upcycled, control=control),
        "differential": partial(_upcycled_to_v1, head_sizes=head_sizes),
        "dex": _extended,
    }
    if attention_type not in (None, *upcycles):
        raise InputError(f" must be one of {', '.join(upcycles)}, got {attention_type!r}", field="attention_type")
    if control and attention_type != "differential_v2":
        raise InputError(f" needs {named('attention_type')} differential_v2", field="control")
    steps: list[Callable[[Any], Conversion]] = []
    if attention_type is not None:
        steps.append(upcycles[attention_type])
    if to != "antiphase":
        steps.append({"llama": _to_llama, "diffllama": _to_diffllama}[to])
    result = unchanged(config) if config.model_type == "antiphase" else read_as_ours(config, dtype=dtype)
    for step in steps:
        after = step(result.config)
        result = Conversion(after.config, composed(after.recipes, result.recipes))
    if (origin := getattr(config, ORIGIN, None)) is not None:
        setattr(result.config, ORIGIN, origin)
    return result


def convert_model(
    model: PreTrainedModel,
    *,
    to: Format = "antiphase",
    attention_type: str | None = None,
    control: bool = False,
    head_sizes: HeadSizes | None = None,
) -> PreTrainedModel:
    """Convert a model to another format in memory; arguments and errors as for ``plan_conversion``."""
    conversion = plan_conversion(
        model.config, to=to, attention_type=attention_type, control=control, head_sizes=head_sizes, dtype=model.dtype
    )  # fmt: skip
    state = model.state_dict()
    if model.config.tie_word_embeddings:
        check_tied(state.__getitem__, type(model).__name__, embedding_there(model.config))
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
    changes = dict.fromkeys(rotated, partial(by_halves, width=width)) | dict.fromkeys(vectors, in_full)
    return {
        renamed.get(name, name): changes[name](tensor) if name in changes else tensor for name, tensor in state.items()
    }


def check_tied(read: Read, where: str, embedding: str = EMBEDDING) -> None:
    """
    Raises:
        InputError: the configuration ties the head to the embedding, but the head has other values.
    """
    if not torch.equal(read(HEAD), read(embedding)):
        raise InputError(
            f"{where}: {HEAD} differs from {embedding}, though tie_word_embeddings is true in its config.json",
            "set it to false there if the head is meant to be the model's own",
        )


# ------------------------------------------------------------------------------------------ upcycling


def _upcycled(config: AntiphaseConfig, *, control: bool) -> Conversion:
    """Every softmax head becomes a pair of equal maps, and the output projection compensates.

    V2: λ = sigmoid(0) = 1/2 and 2·Wo, so the pair gives 2·(o - o/2) Wo. Control: 2·Wo and -Wo. Both leave the model's
    function unchanged and give the pair +2 and -1 times the old head's gradient; only V2 can then subtract per token.
    """
    _refuse_other(config, "softmax", named("attention_type", "differential_v2"), "upcycles softmax models")
    ours = AntiphaseConfig(
        attention_type="softmax" if control else "differential_v2",
        **_fields(config) | {"num_attention_heads": 2 * config.num_attention_heads},
    )
    recipes = dict(unchanged(ours).recipes)
    width = config.head_dim
    for name in recipes:
        if name.endswith(("q_proj.weight", "q_proj.bias")) or (config.whole_qk_norm and "q_norm." in name):
            recipes[name] = partial(changed, name, partial(repeated, width=width))
        elif name.endswith("o_proj.weight"):
            recipes[name] = partial(changed, name, partial(two_and_minus_one, width=width) if control else doubled)
        elif name.endswith("lambda_proj.weight"):
            recipes[name] = partial(no_lambda, name, config.num_attention_heads)
    return Conversion(ours, recipes)


def _upcycled_to_v1(config: AntiphaseConfig, *, head_sizes: HeadSizes | None) -> Conversion:
    """Every softmax head becomes a V1 head, whose second map begins as its first and whose second half of values as 0.

    So A₁ - λA₂ = (1 - λ)A with λ = λinit. Without a head norm the output projection divides by 1 - λinit. With one,
    that factor has no effect, and a head's outputs have the RMS (1 - λinit)·√2 over the half that is not 0: the output
    projection gives each head its mean size back.
    """
    _refuse_other(config, "softmax", named("attention_type", "differential"), "upcycles softmax models")
    sizes = {name: 2 * getattr(config, name) for name in ("num_attention_heads", "num_key_value_heads")}
    form = {"head_norm": False, "head_scale": False} if head_sizes is None else {}
    ours = AntiphaseConfig(attention_type="differential", **_fields(config) | sizes | form)
    recipes = dict(unchanged(ours).recipes)
    width = config.head_dim
    parts = ("q_proj.", "k_proj.", *(("q_norm.", "k_norm.") if config.whole_qk_norm else ()))
    for name in recipes:
        layer = int(name.split(".")[2]) if name.startswith("model.layers.") else 0
        own = 1 - lambda_init(layer)
        if any(part in name for part in parts):
            recipes[name] = partial(changed, name, partial(repeated, width=width))
        elif "v_proj." in name:
            recipes[name] = partial(changed, name, partial(with_zeros, width=width))
        elif name.endswith("o_proj.weight"):
            factors = [1 / own] * config.num_attention_heads
            if head_sizes is not None:
                factors = [size * 0.5**0.5 / own for size in head_sizes[layer]]
            recipes[name] = partial(changed, name, partial(widened, width=width, factors=factors))
        elif name.endswith("head_norm.weight"):
            recipes[name] = partial(head_norm_there, name, width)
        elif ".lambda_" in name:
            recipes[name] = partial(drawn_once, name, width, layer)
    return Conversion(ours, recipes)


def _extended(config: AntiphaseConfig) -> Conversion:
    """DEX on every head; its matrix and λ start at zero, so the model's function does not change."""
    _refuse_other(config, "softmax", named("attention_type", "dex"), "extends softmax models")
    heads = list(range(config.num_attention_heads))
    ours = AntiphaseConfig(
        attention_type="softmax", dex_heads=[heads] * config.num_hidden_layers, **_fields(config)
    )  # fmt: skip
    recipes = dict(unchanged(ours).recipes)
    for name in recipes:
        if name.endswith(("dex_weight", "dex_lambda")):
            shape = (1,) if name.endswith("dex_lambda") else (config.head_dim, config.head_dim)
            recipes[name] = partial(zeros_of_extension, name, shape)
    return Conversion(ours, recipes)


# ------------------------------------------------------------------------------------------ to other formats


def _to_llama(config: AntiphaseConfig) -> Conversion:
    _refuse_other(config, "softmax", named("to", "llama"), "takes softmax models")
    _refuse_window(config, "llama")
    _refuse_block(config, "llama", LLAMA_FIELDS)
    if config.hidden_size % config.num_attention_heads:
        raise InputError(
            f"{named('to')} llama: in transformers' Llama num_attention_heads ({config.num_attention_heads}) must "
            f"divide hidden_size ({config.hidden_size})"
        )
    theirs = LlamaConfig(**_shared(config, *LLAMA_FIELDS))
    return Conversion(theirs, {**unchanged(theirs).recipes, **_folded_embedding(config, "llama")})


def _to_diffllama(config: AntiphaseConfig) -> Conversion:
    """The head norm's weight is folded into the output projection, because DiffLlama's norm has none."""
    _refuse_other(config, "differential", named("to", "diffllama"), "takes differential V1 models")
    _refuse_window(config, "diffllama")
    _refuse_block(config, "diffllama", DIFFLLAMA_FIELDS)
    if config.head_norm_eps != config.rms_norm_eps:
        raise InputError(
            f"{named('to')} diffllama: its head norm shares rms_norm_eps, here head_norm_eps "
            f"({config.head_norm_eps:g}) and rms_norm_eps ({config.rms_norm_eps:g}) differ",
            f"train with {named('settings')} model.head_norm_eps={config.rms_norm_eps:g} for a model that can be "
            "converted",
        )
    theirs = DiffLlamaConfig(**_shared(config, *DIFFLLAMA_FIELDS))
    recipes: dict[str, Recipe] = {}
    for name in tensor_shapes(theirs):
        if {"q_proj", "k_proj", "v_proj"} & set(name.split(".")):
            recipes[name] = partial(changed, name, partial(by_map, width=config.head_dim))
        elif name.endswith("o_proj.weight"):
            recipes[name] = partial(with_head_norm, name)
        else:
            recipes[name] = partial(take, name)
    return Conversion(theirs, recipes | _folded_embedding(config, "diffllama"))


def _shared(config: PreTrainedConfig, *also: str) -> dict[str, Any]:
    return {name: getattr(config, name) for name in (*SIZES, *also)}


def _fields(config: AntiphaseConfig) -> dict[str, Any]:
    """All fields but those of the kind of attention."""
    return _shared(config, "sliding_window", "layer_types", *INITIALIZATION) | of_block(config)


def _folded_embedding(config: AntiphaseConfig, to: str) -> dict[str, Recipe]:
    """The embeddings with their multiplier folded in, which is impossible if the head is tied to them.

    Raises:
        InputError: the embeddings have a multiplier and are tied to the head.
    """
    if config.embedding_multiplier == 1.0:
        return {}
    if config.tie_word_embeddings:
        raise InputError(
            f"{named('to', to)}: {named('source')} multiplies its embeddings by embedding_multiplier "
            f"({config.embedding_multiplier:.3g}), which {to} cannot express while tie_word_embeddings makes them the "
            "head as well"
        )
    return {EMBEDDING: partial(changed, EMBEDDING, partial(torch.mul, config.embedding_multiplier))}


def _refuse_window(config: AntiphaseConfig, to: str) -> None:
    if "sliding_attention" in config.layer_types:
        raise _inexpressible(to, f"has a sliding_window ({config.sliding_window})")


def _refuse_block(config: AntiphaseConfig, to: str, kept: tuple[str, ...]) -> None:
    if config.hidden_act in LEARNED:
        kept = tuple(name for name in kept if name != "hidden_act")
    for name, value in departures(config, without=kept).items():
        raise _inexpressible(to, f"has {name}={value!r}")


def _refuse_other(config: AntiphaseConfig, kind: str, form: str, known: str) -> None:
    if config.attention_type != kind:
        raise InputError(f"{form} {known}, not {config.attention_type}")
    if fields := own_fields(config):
        raise InputError(f"{form} has no place for what the model has in {', '.join(fields)}")


def _inexpressible(to: str, what: str) -> InputError:
    return InputError(f"{named('to', to)}: {named('source')} {what}, which {to} cannot express")
