"""Checkpoints that survive any stop: written beside, renamed when whole, weights in safetensors."""

from __future__ import annotations

import hashlib
import os
import shutil
import zipfile
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from antiphase.errors import InputError
from antiphase.models.checkpoints import is_finite

FOLDER = "checkpoint"
WEIGHTS = "weights.safetensors"
STATE = "state.pt"
AFRESH = "remove the folder to begin the run afresh, or choose another --output"


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
    """Replace the run's checkpoint. At any moment the old or the new one is whole on disk.

    The state keeps the SHA-256 of the weights, at 1 to 2 GB/s.
    """
    final, fresh, old = folder / FOLDER, folder / f".{FOLDER}.new", folder / f".{FOLDER}.old"
    shutil.rmtree(fresh, ignore_errors=True)
    fresh.mkdir(parents=True)
    save_file(own_tensors(model), fresh / WEIGHTS)
    state = {"optimizer": optimizer.state_dict(), "progress": vars(progress), "weights": _digest(fresh / WEIGHTS)}
    torch.save(state, fresh / STATE)
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
        InputError: the checkpoint is of a model of another shape, damaged, or holds weights that are not finite.
    """
    source = _whole_checkpoint(folder)
    if source is None:
        return None
    try:
        weights = load_file(source / WEIGHTS)
        state = _read_state(source / STATE)
    except (SafetensorError, OSError, RuntimeError, EOFError, ValueError, zipfile.BadZipFile, zlib.error) as error:
        raise InputError(f"{source} is damaged ({str(error).split('.')[0]}); {AFRESH}") from None
    if state.get("weights", kept := _digest(source / WEIGHTS)) != kept:  # older checkpoints have none
        raise InputError(f"{source} is damaged: {WEIGHTS} is not what the run wrote; {AFRESH}")
    expected = own_tensors(model)
    if weights.keys() != expected.keys() or any(weights[n].shape != expected[n].shape for n in expected):
        raise InputError(
            f"{source} holds a model of another shape; give the settings it was made with, or another --output"
        )
    if broken := next((name for name, tensor in weights.items() if not is_finite(tensor)), None):
        raise InputError(f"{source} holds NaN or infinite weights, {broken} first: the run diverged; {AFRESH}")
    with torch.no_grad():
        for name, tensor in expected.items():
            tensor.copy_(weights[name])
    optimizer.load_state_dict(state["optimizer"])
    return Progress(**state["progress"])


def _read_state(path: Path) -> dict[str, Any]:
    """What ``torch.save`` wrote; torch itself does not look at the checksums of its files."""
    with zipfile.ZipFile(path) as file:
        if broken := file.testzip():
            raise zipfile.BadZipFile(f"the checksum of {broken} in {path.name} is wrong")
    return dict(torch.load(path, weights_only=True, map_location="cpu"))


def _digest(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def own_tensors(model: nn.Module) -> dict[str, Tensor]:
    """Parameters by name, tied ones once."""
    return {name: parameter.data for name, parameter in model.named_parameters()}
