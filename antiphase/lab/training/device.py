"""Device and precision of a run."""

from __future__ import annotations

from typing import Any

import torch

from antiphase.base.errors import InputError, named
from antiphase.lab.settings.flags import DEVICE_MAPS
from antiphase.lab.settings.presets import TrainingSettings
from antiphase.ops.shapes import has_bf16_instructions


def choose_device(name: str, *, field: str = "device") -> torch.device:
    """The device that ``--device`` names.

    Raises:
        InputError: the device is unknown or not available.
    """
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    at = named(field, name)
    try:
        device = torch.device(name)
    except RuntimeError:
        raise InputError(f"{at} is not a device; use auto, cpu, cuda or cuda:0") from None
    if device.type == "cuda" and not torch.cuda.is_available():
        raise InputError(f"{at}: this machine has no CUDA device that torch can use; use {named(field)} cpu")
    try:
        torch.zeros(1, device=device).item()
    except (RuntimeError, AssertionError):  # torch knows the device type, but the machine has no such device
        raise InputError(f"{at}: torch cannot use this device here; use auto, cpu, cuda or cuda:0") from None
    return device


def loading_options(settings: Any) -> dict[str, Any]:
    """Arguments of ``load_model`` from the settings ``device``, ``dtype`` and ``device_map``.

    Raises:
        InputError: a device is unknown or not available.
    """
    spread = settings.device_map
    if spread is not None and spread not in DEVICE_MAPS:
        choose_device(spread, field="device_map")
    return {"device": str(choose_device(settings.device)), "dtype": settings.dtype, "device_map": spread}


def autocast_dtype(training: TrainingSettings, device: torch.device) -> torch.dtype | None:
    """bf16 if requested, or under ``auto`` if the processor has bf16 instructions; None means the weights' dtype."""
    if training.precision in ("float32", "float64"):
        return None
    if training.precision == "bfloat16" or device.type == "cuda":
        return torch.bfloat16
    return torch.bfloat16 if has_bf16_instructions() else None
