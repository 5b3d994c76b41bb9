"""The model of a run: its configuration, and its weights, which are random or those it starts from."""

from __future__ import annotations

import importlib.util
from contextlib import nullcontext
from typing import Any

import torch
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerBase

from antiphase.attention.interface import TRITON
from antiphase.base.errors import InputError, named, renamed
from antiphase.lab.settings.presets import RunSettings, TrainingSettings
from antiphase.lab.text.tokenization import id_count
from antiphase.lab.training.device import choose_device
from antiphase.lab.training.distributed import mesh_sizes, process_count
from antiphase.lab.training.sharding import blocks, gathered
from antiphase.lab.training.tensor import own_parts
from antiphase.lab.training.trained import check_trained
from antiphase.layers.differential import DifferentialAttentionV1
from antiphase.layers.exchange import check_heads
from antiphase.layers.functions import DIFFERENTIAL
from antiphase.layers.registry import LAYERS, PROJECTIONS, QUERY_KEY_NORMS, attention_layers, variant_fields
from antiphase.layers.softmax import SoftmaxAttention
from antiphase.models.block_fields import BLOCK, ROTATED
from antiphase.models.checkpoints import Checkpoint
from antiphase.models.configuration import AntiphaseConfig
from antiphase.models.initialization import initialize, seeded
from antiphase.models.sources.models import ORIGIN
from antiphase.models.sources.tokenizers import load_tokenizer
from antiphase.models.tensor_plan import divides_mlp
from antiphase.models.transformer import AntiphaseForCausalLM
from antiphase.ops.implementations import why_no_kernels

RECURRENT = "antiphase_recurrent"
"""Model type for ``model.kind`` rnn or lstm; transformers knows its classes."""


LISTED = 3
"""Differences from a first model whose values are told; of more, only the names."""
STRUCTURE = (
    "attention_type", "vocab_size", "hidden_size", "num_hidden_layers", "intermediate_size", "num_attention_heads",
    "num_key_value_heads", "head_dim", "rope_parameters", "rms_norm_eps", "head_norm_eps", "tie_word_embeddings",
    "layer_types", "sliding_window", "embedding_multiplier", *BLOCK,
    *(name for name in variant_fields() if name != "dex_steps"),
)  # fmt: skip
"""Fields that must agree for weights to be interchangeable; ``rope_parameters`` may change for longer sequences."""


def layers_of(model: PreTrainedModel) -> list[list[nn.Parameter]]:
    """Parameters of each layer, in order, without embeddings, the final norm and the head."""
    base: Any = model.base_model
    if hasattr(base, "parameters_by_layer"):
        found: list[list[nn.Parameter]] = base.parameters_by_layer()
        return found
    return [list(layer.parameters()) for layer in base.layers]


def check_settings(settings: RunSettings, tokenizer: PreTrainedTokenizerBase, *, begins: bool = True) -> None:
    """Check settings before anything is written or computed.

    ``begins``: whether the run has no checkpoint yet, so that its initial weights are needed.

    Raises:
        InputError: a size is invalid, the mesh does not fit the processes, a device is not available, or an extra is
            not installed.
    """
    mesh_sizes(settings.training, process_count())
    if begins:
        _start(settings, tokenizer)
    config = model_config(settings, tokenizer)
    check_mesh(config, settings.training)
    if settings.training.trained != "all":
        with torch.device("meta"):
            check_trained(AutoModelForCausalLM.from_config(config), settings.training)
    device = choose_device(settings.training.device)
    if settings.training.attn_implementation == TRITON and settings.model.attention_type != "softmax":
        reason = why_no_kernels(device)
        if reason is not None:
            raise InputError(f"training.attn_implementation={TRITON}: {reason}")
    if settings.training.tensorboard and importlib.util.find_spec("tensorboard") is None:
        raise InputError("training.tensorboard needs the extra: pip install 'antiphase[tensorboard]'")


def check_mesh(config: PreTrainedConfig, training: TrainingSettings) -> None:
    """
    Raises:
        InputError: the mesh does not divide heads or channels, or the kind of attention cannot be divided.
    """
    context, tensor = training.mesh.context, training.mesh.tensor
    if tensor > 1:
        if config.base_model_tp_plan is None:
            raise InputError(
                "training.mesh.tensor cannot divide layers with sinks, softmax_one, softpick, cog, lambda_form=head, "
                "dex_heads, num_noise_heads, whole_qk_norm or pairs across keys; remove it, or use training.mesh.shard"
            )
        if divides_mlp(config) and config.intermediate_size % tensor:
            raise InputError(
                f"training.mesh.tensor={tensor} does not divide model.intermediate_size ({config.intermediate_size}); "
                "change one of them"
            )
    if context * tensor > 1:
        sizes = [f"training.mesh.{name}" for name, size in (("context", context), ("tensor", tensor)) if size > 1]
        if (why := why_undivided(config, context, tensor)) is not None:
            raise InputError(f"{' and '.join(sizes)}: {why}; lower it, or change the number of heads")


def why_undivided(config: PreTrainedConfig, context: int, tensor: int = 1) -> str | None:
    """Why so many processes cannot divide the heads of the layers, or None if they can."""
    form = LAYERS[config.attention_type].attention_form
    heads = config.num_attention_heads // (2 if form in DIFFERENTIAL else 1)
    groups = config.num_key_value_heads // (2 if form == "differential" else 1)
    if heads % tensor or groups % tensor:
        return f"{tensor} processes do not divide {heads} heads with {groups} value heads"
    try:
        check_heads(heads // tensor, groups // tensor, context)
    except ValueError as error:
        return str(error)
    return None


def starting_model(settings: RunSettings, tokenizer: PreTrainedTokenizerBase) -> PreTrainedModel:
    """The model at the start of a run, with the fp32 weights of ``training.start_from`` or random ones from its seed.

    Raises:
        InputError: sizes or vocabularies do not fit, or the folder has no such model.
    """
    model = build_model(settings, tokenizer, seed=settings.training.seed)
    checkpoint = _start(settings, tokenizer)
    if checkpoint is not None:
        if (origin := getattr(checkpoint.config, ORIGIN, None)) is not None:
            setattr(model.config, ORIGIN, origin)
        with torch.no_grad():
            for name in checkpoint.model_tensors:
                model.get_parameter(name).copy_(checkpoint.read(name))
    return model


def check_dex(model: PreTrainedModel) -> None:
    """Check that a model with DEX can learn it: its λ and its matrix start at zero, where neither has a gradient.

    Raises:
        InputError: they are zero, and λ is not annealed.
    """
    for layer in attention_layers(model):
        if not isinstance(layer, SoftmaxAttention) or layer.dex_heads is None or layer.dex_steps >= 2:
            continue
        if not bool(layer.dex_weight.any() or layer.dex_lambda.any()):
            raise InputError(
                f"model.dex_steps must be at least 2, got {layer.dex_steps}: without annealing, DEX's λ and matrix "
                "stay at zero"
            )


def fitted(model: PreTrainedModel, training: TrainingSettings) -> PreTrainedModel:
    """The model with the attention function, dtype, recomputation and compilation that the settings ask for."""
    if training.precision == "float64":
        model.double()
    if training.attn_implementation is not None:
        model.set_attn_implementation(training.attn_implementation)
    if training.gradient_checkpointing:
        model.gradient_checkpointing_enable()
    if training.compile:
        for block in blocks(model):
            block.forward = torch.compile(block.forward)  # hooks stay outside
    return model


def _start(settings: RunSettings, tokenizer: PreTrainedTokenizerBase) -> Checkpoint | None:
    """The checkpoint that the run starts from, checked against its settings; None means random weights.

    Raises:
        InputError: it is not a complete model of this package, or its configuration or vocabulary differs; the message
            names the field or the tensor.
    """
    folder = settings.training.start_from
    if folder is None:
        return None
    config = model_config(settings, tokenizer)
    with renamed({"source": "training.start_from"}):
        checkpoint = Checkpoint(folder)
        found = checkpoint.config
        if not isinstance(found, AntiphaseConfig):
            raise InputError(
                f"{named('source', folder)}: a model of type {found.model_type!r}; give what this writes: antiphase "
                f"convert {folder} NEW --to antiphase"
            )
        checkpoint.check()
    is_longer = config.max_position_embeddings > found.max_position_embeddings
    compared = [name for name in STRUCTURE if not (name == "rope_parameters" and is_longer)]
    pairs = [(name, getattr(found, name), getattr(config, name)) for name in compared]
    differing = [f"its {name} is {has}, this run's is {wanted}" for name, has, wanted in pairs if has != wanted]
    if len(differing) > LISTED:
        names = ", ".join(name for name, has, wanted in pairs if has != wanted)
        differing = [f"it has another {names}"]
    if differing:
        raise InputError(f"training.start_from {folder}: {'; '.join(differing)}; --start-from takes all of them over")
    if (checkpoint.folder / "tokenizer.json").is_file():
        words = load_tokenizer(str(checkpoint.folder), field="training.start_from").get_vocab()
        if words != tokenizer.get_vocab():
            raise InputError(
                f"training.start_from {folder}: its tokenizer has other words than this run's; name it with "
                "data.tokenizer, or give the data settings that it was trained with"
            )
    return checkpoint


def build_model(settings: RunSettings, tokenizer: PreTrainedTokenizerBase, *, seed: int) -> PreTrainedModel:
    """A randomly initialized model of the run's sizes for the tokenizer; equal seeds give equal shared weights.

    Raises:
        InputError: a size is invalid; the message names the field.
    """
    config = model_config(settings, tokenizer)
    if not isinstance(config, AntiphaseConfig):
        other: PreTrainedModel = seeded(lambda: AutoModelForCausalLM.from_config(config), seed)
        return other.train()
    model = AntiphaseForCausalLM(config)
    initialize(model, seed)
    return model.train()


def model_config(settings: RunSettings, tokenizer: PreTrainedTokenizerBase) -> PreTrainedConfig:
    """The configuration of the run's sizes for the tokenizer.

    Raises:
        InputError: a size is invalid; the message names the field.
    """
    return sized_config(
        settings, vocab_size=id_count(tokenizer), pad_token_id=tokenizer.pad_token_id,
        bos_token_id=tokenizer.bos_token_id, eos_token_id=tokenizer.eos_token_id,
    )  # fmt: skip


def sized_config(settings: RunSettings, **words: Any) -> PreTrainedConfig:
    """The configuration for a vocabulary of which only the size and the special tokens are known."""
    chosen: dict[str, Any] = dict(vars(settings.model))
    kind, rows = chosen.pop("kind"), chosen.pop("vocab_size")
    if rows is not None:
        if rows < words["vocab_size"]:
            raise InputError(f"model.vocab_size ({rows}) is less than the tokenizer's {words['vocab_size']} tokens")
        words["vocab_size"] = rows
    if kind != "transformer":
        sizes = {name: chosen[name] for name in ("hidden_size", "num_hidden_layers", "tie_word_embeddings")}
        return AutoConfig.for_model(RECURRENT, cell=kind, embedding_size=chosen["hidden_size"], **sizes, **words)
    rope = {"rope_type": "default", "rope_theta": chosen.pop("rope_theta"), ROTATED: chosen.pop(ROTATED)}
    chosen["rope_parameters"] = rope
    longest = max([settings.data.sequence_length, *settings.evaluation.lengths])
    chosen["max_position_embeddings"] = chosen["max_position_embeddings"] or longest
    return AntiphaseConfig(**chosen, **words)


def attention_only(model: PreTrainedModel) -> int:
    """Number of parameters that a softmax model of the same size lacks: λ, head norms, and those that variants add."""
    return sum(
        parameter.numel()
        for layer in attention_layers(model)
        for name, parameter in layer.named_parameters()
        if not name.startswith((*PROJECTIONS, *QUERY_KEY_NORMS))
    )


def lambdas(model: PreTrainedModel) -> list[float] | None:
    """The factor with which each layer subtracts its second map (mean over heads); None for softmax attention and V2.

    If the model is divided over processes, all of them must call this.
    """
    found = []
    with torch.no_grad():
        for block in blocks(model):
            layers = [module for module in block.modules() if isinstance(module, DifferentialAttentionV1)]
            with gathered(block) if layers else nullcontext():
                for layer in layers:
                    with own_parts(layer):
                        found.append(layer.lam().mean().item())
    return found or None
