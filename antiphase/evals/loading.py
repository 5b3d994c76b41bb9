"""A model to measure: a local folder or a Hub name, with its tokenizer and, where it was trained here, its settings."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from safetensors import SafetensorError
from transformers import AutoModelForCausalLM, PreTrainedModel, PreTrainedTokenizerBase

from antiphase.config import RunSettings, load_preset
from antiphase.data.tokenization import load_tokenizer
from antiphase.errors import InputError


@dataclass(frozen=True)
class LoadedModel:
    """A causal language model in evaluation mode."""

    name: str
    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    settings: RunSettings | None
    """Of the training run, where the folder holds ``run.yaml``."""


def load_model(name: str, *, device: str = "cpu") -> LoadedModel:
    """Load any causal language model of Hugging Face; code in its repository is never run.

    Raises:
        InputError: there is none under this name, or it cannot be loaded.
    """
    folder = Path(name)
    if folder.is_dir() and not (folder / "config.json").is_file():
        raise InputError(f"MODEL {name}: this folder holds no model (config.json is missing); give a finished run")
    try:
        model = AutoModelForCausalLM.from_pretrained(name, trust_remote_code=False)
    except (OSError, ValueError, KeyError, SafetensorError) as error:
        reason = next((line.strip() for line in str(error).split("\n") if line.strip()), type(error).__name__)
        raise InputError(f"MODEL {name}: no causal language model could be loaded ({reason.rstrip('.')})") from error
    settings = folder / "run.yaml"
    return LoadedModel(
        name=name,
        model=model.to(device).eval(),
        tokenizer=load_tokenizer(name, flag="MODEL"),
        settings=load_preset(str(settings)).run if settings.is_file() else None,
    )
