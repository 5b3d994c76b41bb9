"""Checkpoints that survive any stop: written beside, renamed when whole, weights in safetensors."""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from antiphase.errors import InputError

FOLDER = "checkpoint"
WEIGHTS = "weights.safetensors"
STATE = "state.pt"


@dataclass
class Progress:
    """Where a run stands."""

    step: int
    """Steps done."""
    seconds: float
    """Time of the training steps so far, over all sittings, evaluations not counted."""
    tokens: int
    """Tokens trained on."""
    curve: list[dict[str, Any]]
    """Evaluations so far."""


def save_checkpoint(folder: Path, model: nn.Module, optimizer: torch.optim.Optimizer, progress: Progress) -> None:
    """Replace the run's checkpoint. At any moment the old or the new one is whole on disk."""
    final, fresh, old = folder / FOLDER, folder / f".{FOLDER}.new", folder / f".{FOLDER}.old"
    shutil.rmtree(fresh, ignore_errors=True)
    fresh.mkdir(parents=True)
    save_file(own_tensors(model), fresh / WEIGHTS)
    torch.save({"optimizer": optimizer.state_dict(), "progress": vars(progress)}, fresh / STATE)
    for name in (WEIGHTS, STATE):
        with open(fresh / name, "rb") as file:
            os.fsync(file.fileno())
    if final.exists():  # else a stop between the two renames left the old one alone, and it is still the only whole one
        shutil.rmtree(old, ignore_errors=True)
        final.rename(old)
    fresh.rename(final)
    shutil.rmtree(old, ignore_errors=True)


def has_checkpoint(folder: Path) -> bool:
    """Whether a run goes on from its own weights."""
    return _whole_checkpoint(folder) is not None


def _whole_checkpoint(folder: Path) -> Path | None:
    return next((path for path in (folder / FOLDER, folder / f".{FOLDER}.old") if (path / STATE).is_file()), None)


def load_checkpoint(folder: Path, model: nn.Module, optimizer: torch.optim.Optimizer) -> Progress | None:
    """Restore model and optimizer in place; None where the run has no checkpoint yet.

    Raises:
        InputError: the checkpoint is of a model of another shape.
    """
    source = _whole_checkpoint(folder)
    if source is None:
        return None
    weights = load_file(source / WEIGHTS)
    expected = own_tensors(model)
    if weights.keys() != expected.keys() or any(weights[n].shape != expected[n].shape for n in expected):
        raise InputError(
            f"{source} holds a model of another shape; give the settings it was made with, or another --output"
        )
    with torch.no_grad():
        for name, tensor in expected.items():
            tensor.copy_(weights[name])
    state = torch.load(source / STATE, weights_only=True, map_location="cpu")
    optimizer.load_state_dict(state["optimizer"])
    return Progress(**state["progress"])


def own_tensors(model: nn.Module) -> dict[str, Tensor]:
    """Parameters by name, tied ones once."""
    return {name: parameter.data for name, parameter in model.named_parameters()}
