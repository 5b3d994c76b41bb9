"""A model to measure: a local folder or a Hub name, with its tokenizer and, where it was trained here, its settings."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from safetensors import SafetensorError
from transformers import AutoConfig, AutoModel, AutoModelForCausalLM, PreTrainedModel, PreTrainedTokenizerBase
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

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
            named = AutoConfig.from_pretrained(name, trust_remote_code=False).architectures or []
            kind = kind if set(named) & set(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.values()) else AutoModel
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
