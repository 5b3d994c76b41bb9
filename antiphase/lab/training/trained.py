"""Which parameters a run trains: all of them, λ alone, or low-rank adapters of the attention's projections with λ."""

from __future__ import annotations

import importlib.util
from typing import Any

from torch import nn
from transformers import PreTrainedModel

from antiphase.base.errors import InputError
from antiphase.lab.settings.presets import TrainingSettings
from antiphase.layers.registry import PROJECTIONS
from antiphase.models.initialization import seeded


def is_lambda(name: str) -> bool:
    """Whether a parameter of this name makes λ."""
    return any(part.startswith(("lambda_", "dex_lambda")) for part in name.split("."))


def check_trained(model: nn.Module, training: TrainingSettings) -> None:
    """
    Raises:
        InputError: the model has no λ to train alone, or the package for adapters is not installed.
    """
    if training.trained == "lambda" and not any(is_lambda(name) for name, _ in model.named_parameters()):
        raise InputError("training.trained=lambda needs a model that learns λ; this one has none")
    if training.trained == "lora" and importlib.util.find_spec("peft") is None:
        raise InputError("training.trained=lora needs the extra: pip install 'antiphase[lora]'")


def restrict(model: PreTrainedModel, training: TrainingSettings) -> Any | None:
    """Freeze what the run does not train. With ``lora``, returns peft's model around it, which can merge the adapters.

    Adapters (Hu et al., 2106.09685) have rank ``lora_rank``, α twice the rank, and random numbers from the run's seed.
    """
    if training.trained == "all":
        return None
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(is_lambda(name))
    if training.trained == "lambda":
        return None
    from peft import LoraConfig, get_peft_model

    rank = training.lora_rank
    chosen = LoraConfig(r=rank, lora_alpha=2 * rank, target_modules=[name.removesuffix(".") for name in PROJECTIONS])
    adapted = seeded(lambda: get_peft_model(model, chosen), training.seed)
    for name, parameter in model.named_parameters():
        if is_lambda(name):
            parameter.requires_grad_(True)  # peft freezes everything but its adapters
    return adapted
