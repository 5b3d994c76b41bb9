"""A model to measure: a local folder or a Hub name, with its tokenizer and, where it was trained here, its settings."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from transformers import (
    AutoConfig,
    AutoModel,
    AutoModelForCausalLM,
    AutoModelForSeq2SeqLM,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from antiphase.config import RunSettings, load_preset
from antiphase.data.tokenization import load_tokenizer
from antiphase.errors import InputError

NO_PART = ("_name_or_path", "transformers_version")
"""Fields of a configuration that no result depends on."""


@dataclass(frozen=True)
class LoadedModel:
    """A causal language model in evaluation mode."""

    name: str
    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    settings: RunSettings | None
    """Of the training run, where the folder holds ``run.yaml``."""


def load_model(name: str, *, device: str = "cpu", with_head: bool = True) -> LoadedModel:
    """Load any causal language model of Hugging Face; code in its repository is never run.

    ``with_head`` False: any model, encoders too.

    Raises:
        InputError: there is none under this name, or it cannot be loaded.
    """
    folder = Path(name)
    if folder.is_dir() and not (folder / "config.json").is_file():
        raise InputError(f"MODEL {name}: this folder holds no model (config.json is missing); give a finished run")
    try:
        kind = AutoModelForCausalLM
        if not with_head:
            config = AutoConfig.from_pretrained(name, trust_remote_code=False)
            kind = next(filter(partial(_holds, config), (AutoModelForCausalLM, AutoModelForSeq2SeqLM)), AutoModel)
        model = kind.from_pretrained(name, trust_remote_code=False)
    except (OSError, ValueError, KeyError, SafetensorError) as error:
        reason = next((line.strip() for line in str(error).split("\n") if line.strip()), type(error).__name__)
        words = "causal language model" if with_head else "model"
        raise InputError(f"MODEL {name}: no {words} could be loaded ({reason.rstrip('.')})") from error
    settings = folder / "run.yaml"
    return LoadedModel(
        name=name,
        model=model.to(device).eval(),
        tokenizer=load_tokenizer(name, flag="MODEL"),
        settings=load_preset(str(settings)).run if settings.is_file() else None,
    )


def digest(loaded: LoadedModel) -> str:
    """SHA-256 of what a result depends on: every weight and buffer, the configuration, and the tokenizer.

    By it a measurement is known again; where a model lies, and on which device, is no part of it.
    """
    hashed = hashlib.sha256()
    for name, tensor in sorted(loaded.model.state_dict().items()):
        hashed.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        hashed.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    config = {name: value for name, value in loaded.model.config.to_dict().items() if name not in NO_PART}
    tokenizer = loaded.tokenizer
    words = tokenizer.backend_tokenizer.to_str() if tokenizer.is_fast else tokenizer.get_vocab()
    written = [config, words, tokenizer.special_tokens_map, tokenizer.chat_template]
    hashed.update(json.dumps(written, sort_keys=True, default=str).encode())
    return hashed.hexdigest()


def _holds(config: Any, auto: Any) -> bool:
    """Whether a checkpoint's weights are those of the model that the Auto class makes of its configuration."""
    if type(config) not in auto._model_mapping:
        return False
    return auto._model_mapping[type(config)].__name__ in (config.architectures or [])
