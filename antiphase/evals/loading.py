"""A model to measure: a local folder or a Hub name, with its tokenizer and, where it was trained here, its settings."""

from __future__ import annotations

import copy
import hashlib
import json
import logging
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
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
    AutoModelForMaskedLM,
    AutoModelForQuestionAnswering,
    AutoModelForSeq2SeqLM,
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from antiphase.config import RunSettings, load_preset
from antiphase.data.tokenization import load_tokenizer
from antiphase.errors import InputError
from antiphase.models.checkpoints import is_finite

HEADS = (
    AutoModelForCausalLM, AutoModelForSeq2SeqLM, AutoModelForMaskedLM, AutoModelForSequenceClassification,
    AutoModelForTokenClassification, AutoModelForQuestionAnswering,
)  # fmt: skip
"""What a checkpoint without a causal head may be; loaded as what it is, it has all of its weights."""
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


def at_hand(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> LoadedModel:
    """A model that a script holds already, by the name that it was loaded with."""
    return LoadedModel(model.config.name_or_path or "model", model, tokenizer, None)


def load_model(name: str, *, device: str = "cpu", with_head: bool = True) -> LoadedModel:
    """Load any causal language model of Hugging Face; code in its repository is never run.

    ``with_head`` False: any model, encoders too.

    Raises:
        InputError: there is none under this name, it cannot be loaded, or it is not whole (``read_weights``); a causal
            language model that looks ahead.
    """
    folder = Path(name)
    if folder.is_dir() and not (folder / "config.json").is_file():
        raise InputError(f"MODEL {name}: this folder holds no model (config.json is missing); give a finished run")
    words = "causal language model" if with_head else "model"
    with loading(f"MODEL {name}: no {words} could be loaded"):
        kind = AutoModelForCausalLM
        if not with_head:
            config = AutoConfig.from_pretrained(name, trust_remote_code=False)
            kind = next(filter(partial(_holds, config), HEADS), AutoModel)
        model = read_weights(kind, name)
    settings = folder / "run.yaml"
    loaded = LoadedModel(
        name=name,
        model=model.to(device).eval(),
        tokenizer=load_tokenizer(name, flag="MODEL"),
        settings=load_preset(str(settings)).run if settings.is_file() else None,
    )
    if with_head and _looks_ahead(loaded.model):
        raise InputError(
            f"MODEL {name} is no causal language model: its logits depend on the tokens that follow; give a decoder"
        )
    return loaded


@contextmanager
def loading(failure: str) -> Iterator[None]:
    """What a library says of a checkpoint that it cannot read, as an input error that begins with ``failure``."""
    try:
        yield
    except InputError:
        raise
    except (OSError, ValueError, KeyError, SafetensorError) as error:
        reason = next((line.strip() for line in str(error).split("\n") if line.strip()), type(error).__name__)
        raise InputError(f"{failure} ({reason.rstrip('.')})") from error


def read_weights(auto: Any, name: str, *, flag: str = "MODEL", whole: str = "whole model") -> PreTrainedModel:
    """The model of a checkpoint, on the CPU, with every weight taken from it: transformers draws what is missing.

    One pass over the weights looks for those that are not finite, at several GB/s.

    Args:
        auto: class of transformers that makes the model.
        flag: what the name was given with, for messages.
        whole: what a checkpoint without missing tensors is called.

    Raises:
        InputError: tensors that the checkpoint lacks, has in another shape, or, in a model of this package, too many;
            weights that are not finite. It names the first of them.
        OSError, ValueError, KeyError, SafetensorError: what transformers cannot read.
    """
    logger = logging.getLogger("transformers.modeling_utils")
    logger.addFilter(_is_no_report)
    try:
        model, notes = auto.from_pretrained(
            name, trust_remote_code=False, output_loading_info=True, ignore_mismatched_sizes=True
        )
    finally:
        logger.removeFilter(_is_no_report)
    refused = f"{flag} {name} is no {whole}"
    if notes["missing_keys"]:
        raise InputError(f"{refused}: it has no weights for {_listed(notes['missing_keys'])}")
    if notes["mismatched_keys"]:
        (tensor, found, expected), *_ = sorted(notes["mismatched_keys"])
        more = _listed([one for one, *_ in notes["mismatched_keys"]]).removeprefix(tensor)
        raise InputError(f"{refused}: {tensor} has the shape {tuple(found)}, expected {tuple(expected)}{more}")
    if notes["unexpected_keys"] and _is_own(model):  # others may carry heads that this class has not
        raise InputError(f"{refused}: its configuration has no place for {_listed(notes['unexpected_keys'])}")
    if broken := [key for key, weight in model.named_parameters() if not is_finite(weight)]:
        raise InputError(f"{refused}: NaN or infinite weights in {_listed(broken)}")
    return model


def _is_no_report(line: logging.LogRecord) -> bool:
    """Not the list of what a checkpoint lacks: here that is an error, told in one sentence."""
    return "LOAD REPORT" not in line.getMessage()


def _listed(names: Iterable[str]) -> str:
    """The first of some tensors, and how many more there are."""
    first, *others = sorted(names)
    return f"{first} and {len(others)} more" if others else first


def _is_own(model: PreTrainedModel) -> bool:
    """Whether the checkpoint was written by exactly this class of this package."""
    return type(model).__module__.startswith("antiphase.") and type(model).__name__ in (
        model.config.architectures or []
    )


@torch.no_grad()
def _looks_ahead(model: PreTrainedModel) -> bool:
    """Whether a token's logits depend on what follows it: a loss of them would be the loss of what is in view."""
    ids = torch.tensor([[0, 1, 0, 1], [0, 1, 0, 0]], device=model.device)
    both = model(input_ids=ids, use_cache=False).logits[:, :-1].float()  # (2, 3, vocabulary)
    first, second = both[:, both.isfinite().all(0)]
    rounding = max(1e-4, 8 * torch.finfo(model.dtype).eps)  # rows of a batch may take other kernels
    return bool(((first - second).abs() > rounding * first.abs().amax()).any()) if len(first) else False


@contextmanager
def refused_by_model(name: str, *, flag: str = "MODEL") -> Iterator[None]:
    """What a model cannot do, or computes without a result, as an input error that names it."""
    try:
        yield
    except InputError:
        raise
    except ValueError as error:
        raise InputError(f"{flag} {name}: {error}") from error


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


def untrained(model: PreTrainedModel, seed: int) -> PreTrainedModel:
    """The same architecture with fresh weights."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        fresh = AutoModelForCausalLM.from_config(copy.deepcopy(model.config))
    return fresh.to(model.device, model.dtype).eval()
