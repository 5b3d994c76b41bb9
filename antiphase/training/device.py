"""Device and precision of a run."""

from __future__ import annotations

import torch

from antiphase.config import TrainingSettings
from antiphase.errors import InputError


def choose_device(name: str) -> torch.device:
    """The device that ``--device`` names.

    Raises:
        InputError: the device is unknown or not available.
    """
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError:
        raise InputError(f"--device {name} is not a device; use auto, cpu, cuda or cuda:0") from None
    if device.type == "cuda" and not torch.cuda.is_available():
        raise InputError(f"--device {name}: this machine has no CUDA device that torch can use; use --device cpu")
    try:
        torch.zeros(1, device=device).item()
    except (RuntimeError, AssertionError):  # torch knows the device type, but the machine has no such device
        raise InputError(f"--device {name}: torch cannot use this device here; use auto, cpu, cuda or cuda:0") from None
    return device


def autocast_dtype(training: TrainingSettings, device: torch.device) -> torch.dtype | None:
    """bf16 if requested, or under ``auto`` if the processor has bf16 instructions; None means float32."""
    if training.precision == "float32":
        return None
    if training.precision == "bfloat16" or device.type == "cuda":
        return torch.bfloat16
    return torch.bfloat16 if torch.ops.mkldnn._is_mkldnn_bf16_supported() else None
