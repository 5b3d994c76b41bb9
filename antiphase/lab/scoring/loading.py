"""Loads a model to measure: a local folder or a Hub name, with its tokenizer and, if trained here, its settings."""

from __future__ import annotations

import copy
import hashlib
import json
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from transformers import (
    AutoModel,
    AutoModelForCausalLM,
    AutoModelForMaskedLM,
    AutoModelForQuestionAnswering,
    AutoModelForSeq2SeqLM,
    AutoModelForSequenceClassification,
    AutoModelForTextEncoding,
    AutoModelForTokenClassification,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES, MODEL_FOR_MASKED_LM_MAPPING_NAMES

from antiphase.base.errors import InputError, named
from antiphase.base.folders.contents import check_loaded
from antiphase.base.records import DEQUANTIZED
from antiphase.lab.scoring.probes import is_causal
from antiphase.lab.settings.presets import RunSettings, kept_run
from antiphase.lab.text.tokenization import openings
from antiphase.models.sources.models import ORIGIN, origin_of, read_config, read_model
from antiphase.models.sources.tokenizers import check_fixed, load_tokenizer

HEADS = (
    AutoModelForCausalLM, AutoModelForSeq2SeqLM, AutoModelForMaskedLM, AutoModelForSequenceClassification,
    AutoModelForTokenClassification, AutoModelForQuestionAnswering, AutoModelForTextEncoding,
)  # fmt: skip
"""Auto classes of checkpoints that are not AutoModel's; the matching one has all of the checkpoint's weights."""
IRRELEVANT_FIELDS = ("_name_or_path", "transformers_version")
"""Fields of a configuration that do not affect results."""


@dataclass(frozen=True)
class LoadedModel:
    """A causal language model in evaluation mode."""

    name: str
    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    settings: RunSettings | None
    """Settings of the training run, if the folder contains ``run.yaml``."""
    chat: bool = False
    """Whether prompts go through the model's chat template."""


def wrap_model(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> LoadedModel:
    """Wrap a model that is already loaded, under the name from which it was loaded, or that of its class.

    Raises:
        InputError: it is no model of transformers, or the tokenizer draws tokens at random.
    """
    if not isinstance(getattr(model, "config", None), PreTrainedConfig):  # adapters are models of another class
        raise InputError(
            f"a model of transformers is needed, got {type(model).__name__}",
            "of a model of your own, antiphase.attention.maps.layer_maps(layer, hidden_states) has a layer's maps",
        )
    if not callable(tokenizer):
        raise InputError(f"a tokenizer of transformers is needed, got {type(tokenizer).__name__}")
    if model.device.type == "meta" and not hasattr(model, "hf_device_map"):
        raise InputError(f"this {type(model).__name__} is on the meta device, without weights", "load them first")
    check_fixed(tokenizer, "tokenizer")
    return LoadedModel(model.config.name_or_path or type(model).__name__, model, tokenizer, None)


def load_model(
    name: str, *, device: str = "cpu", with_head: bool = True, dtype: str | None = None, device_map: str | None = None
) -> LoadedModel:
    """Load any Hugging Face causal language model; code in its repository is never run.

    Args:
        name: a local folder, a GGUF file, or a name on the Hub.
        device: where the model goes, unless there is a ``device_map``.
        with_head: False loads any model, including encoders.
        dtype, device_map: as for ``read_model``.

    Raises:
        InputError: the model does not exist, cannot be loaded or is incomplete (``read_model``), is not the one that
            its run wrote, or a causal language model attends to later tokens.
    """
    if with_head:
        model, tokenizer = read_model(
            name, lambda config: _causal_class(name, config), dtype=dtype, device_map=device_map
        )
    else:
        model, tokenizer = read_model(
            name, lambda config: _class_of(name, config), kind="model", dtype=dtype, device_map=device_map
        )
    check_loaded(name, "model")
    settings = Path(name) / "run.yaml"
    run = kept_run(settings, field="model") if settings.is_file() else None
    placed = model if device_map is not None else model.to(device)
    loaded = LoadedModel(name=name, model=placed.eval(), tokenizer=tokenizer, settings=run)
    if with_head and not is_causal(loaded.model):
        raise InputError(
            f"{named('model', name)} is not a causal language model: its logits depend on the tokens that follow; "
            "give a decoder"
        )
    return loaded


def read_without_weights(name: str) -> tuple[PreTrainedConfig, PreTrainedTokenizerBase]:
    """Configuration and tokenizer of a model that reads text, for checks before its weights are read.

    Raises:
        InputError: there is none, it cannot be used, or it reads images or sound.
    """
    config = read_config(name, field="model")
    _class_of(name, config)
    return config, load_tokenizer(name, field="model")


def openings_of(loaded: LoadedModel) -> dict[str, dict[str, list[str]]]:
    """Part of a record's configuration: the tokens before what the model has read."""
    return {"opening": openings(loaded.tokenizer)}


def origins(models: Iterable[LoadedModel | str]) -> dict[str, dict[str, str]]:
    """Part of a record's configuration: the quantizations that the weights of models went through, if any."""
    found = {}
    for model in models:
        if isinstance(model, LoadedModel):
            name, origin = model.name, getattr(model.model.config, ORIGIN, None)
        else:
            name, origin = model, origin_of(model)
        if origin is not None:
            found[name] = origin
    return {DEQUANTIZED: found} if found else {}


def _causal_class(name: str, config: PreTrainedConfig) -> type[AutoModelForCausalLM]:
    """The class of causal language models, unless the model is an encoder, or an encoder–decoder such as BART."""
    held = config.architectures or []
    has_encoder = config.model_type in MODEL_FOR_MASKED_LM_MAPPING_NAMES
    if has_encoder and held and not set(held) & set(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.values()):
        raise InputError(
            f"{named('model', name)} has the class {held[0]}, which is no causal language model; give a decoder"
        )
    return AutoModelForCausalLM


@contextmanager
def refused_by_model(name: str, *, field: str = "model") -> Iterator[None]:
    """Turn errors of a model (unsupported calls, results that are not finite) into input errors that name it."""
    try:
        yield
    except InputError:
        raise
    except ValueError as error:
        raise InputError(f"{named(field, name)}: {error}") from error


def digest(loaded: LoadedModel) -> str:
    """SHA-256 of everything a result depends on: all weights and buffers, the configuration, and the tokenizer.

    It identifies a measurement, so it does not depend on the model's location or device.
    """
    hashed = hashlib.sha256()
    for name, tensor in sorted(loaded.model.state_dict().items()):
        hashed.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        hashed.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    config = {name: value for name, value in loaded.model.config.to_dict().items() if name not in IRRELEVANT_FIELDS}
    tokenizer = loaded.tokenizer
    words = tokenizer.backend_tokenizer.to_str() if tokenizer.is_fast else tokenizer.get_vocab()
    written = [config, words, tokenizer.special_tokens_map, tokenizer.chat_template]
    hashed.update(json.dumps(written, sort_keys=True, default=str).encode())
    return hashed.hexdigest()


def _class_of(name: str, config: PreTrainedConfig) -> Any:
    """The Auto class with which a checkpoint has all of its weights.

    Raises:
        InputError: the model reads images or sound.
    """
    found = next(filter(partial(_holds, config), HEADS), AutoModel)
    if type(config) in found._model_mapping:
        reads = found._model_mapping[type(config)].main_input_name
        if reads != "input_ids":
            what = {"pixel_values": "images", "input_values": "sound", "input_features": "sound"}.get(
                reads, "other data"
            )
            raise InputError(
                f"{named('model', name)} is of type {config.model_type}, which reads {what} and no text; give a "
                f"model of text, or use antiphase.attention_statistics(model, {reads}=...) in Python"
            )
    return found


def _holds(config: Any, auto: Any) -> bool:
    """Whether a checkpoint's weights are those of the Auto class's model for its configuration."""
    if type(config) not in auto._model_mapping:
        return False
    return auto._model_mapping[type(config)].__name__ in (config.architectures or [])


def untrained(model: PreTrainedModel, seed: int) -> PreTrainedModel:
    """The same architecture with random weights."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        fresh = AutoModelForCausalLM.from_config(copy.deepcopy(model.config))
    return fresh.to(model.device, model.dtype).eval()
