"""Settings of a run that goes on from a model's folder: its sizes and its tokenizer."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

from antiphase.config import ModelSettings
from antiphase.errors import InputError, naming
from antiphase.models.block_fields import ROTATED
from antiphase.models.checkpoints import Checkpoint
from antiphase.models.configuration import AntiphaseConfig

OF_RUNS = ("kind", "dex_steps", "rope_theta", ROTATED)
"""Settings of a run's model that are no field of a configuration, or do not belong to the weights."""


def model_settings(config: AntiphaseConfig, *, flag: str) -> dict[str, Any]:
    """``model.NAME`` of a run whose model has this configuration.

    Raises:
        InputError: the model's RoPE is scaled, which a run cannot set.
    """
    rope = config.rope_parameters
    if rope.get("rope_type", "default") != "default":
        raise InputError(f"{flag} has a RoPE of type {rope['rope_type']!r}; only a plain one can be trained further")
    names = [field.name for field in dataclasses.fields(ModelSettings) if field.name not in OF_RUNS]
    found = {name: getattr(config, name) for name in names}
    found |= {"rope_theta": rope["rope_theta"], ROTATED: rope.get(ROTATED, 1.0)}
    return {f"model.{name}": value for name, value in found.items()}


def overrides_from(folder: str, *, flag: str) -> list[str]:
    """``KEY=VALUE`` that make a preset's run go on from the model in ``folder``; ``flag`` names it in messages.

    Raises:
        InputError: it is no model of this package, or has settings that a run cannot have.
    """
    with naming({"SOURCE": flag}):
        config = Checkpoint(folder).config
    if not isinstance(config, AntiphaseConfig):
        raise InputError(f"{flag} {folder} is a model of type {config.model_type!r}; use antiphase convert first")
    settings = model_settings(config, flag=f"{flag} {folder}")
    settings |= {"training.start_from": folder, "data.tokenizer": folder}
    return [f"{key}={json.dumps(value, ensure_ascii=False)}" for key, value in settings.items()]
