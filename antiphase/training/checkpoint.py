"""Crash-safe checkpoints: each is a folder written under a temporary name and renamed, with checksums of every file.

``checkpoint/step-N`` holds ``model.safetensors`` (parameters by name), ``optimizer.safetensors`` (state tensors as
NAME.STATE) and ``checkpoint.json``: progress, the optimizer's plain values, and the SHA-256 of all three.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from antiphase.errors import InputError
from antiphase.folders.contents import file_digest, hash_of
from antiphase.folders.ownership import written_beside
from antiphase.reading.files import reading
from antiphase.reading.models import is_finite

FOLDER = "checkpoint"
MODEL = "model.safetensors"
OPTIMIZER = "optimizer.safetensors"
MANIFEST = "checkpoint.json"
FORMAT = 2
"""Format 1 was ``weights.safetensors`` with ``state.pt``, written by ``torch.save``."""
KEPT = 2
"""Number of checkpoints that are kept."""
AFRESH = "to begin the run afresh, or choose another --output"


@dataclass
class Progress:
    """The progress of a run."""

    step: int
    """Number of finished steps."""
    seconds: float
    """Training time so far over all sittings, without evaluations."""
    tokens: int
    """Number of tokens trained on."""
    curve: list[dict[str, Any]]
    """Evaluations so far."""
    dequantized_from: str | None = None
    """The quantization that the weights which the run starts from went through, if any."""


def save_checkpoint(folder: Path, model: nn.Module, optimizer: torch.optim.Optimizer, progress: Progress) -> None:
    """Add a checkpoint and delete all but the newest ``KEPT``. A complete checkpoint is on disk at any time.

    The files are read once more for their SHA-256, at 1 to 2 GB/s.
    """
    home = folder / FOLDER
    final = home / f"step-{progress.step:08}"
    before = [path for path in checkpoints(folder) if path.name < final.name]
    with written_beside(final) as fresh:
        tensors, described = _described(model, optimizer)
        save_file(_own_tensors(model), fresh / MODEL, metadata={"format": "pt"})
        save_file(tensors, fresh / OPTIMIZER, metadata={"format": "pt"})
        files = {name: file_digest(fresh / name) for name in (MODEL, OPTIMIZER)}
        tree = {"format": FORMAT, "progress": vars(progress), "optimizer": described, "files": files}
        (fresh / MANIFEST).write_bytes(sealed(tree))
        for path in set(checkpoints(folder)) - set(before):  # damaged, because the run resumed from an earlier one
            shutil.rmtree(path)
    for path in before[KEPT - 1 :]:
        shutil.rmtree(path)


def checkpoints(folder: Path) -> list[Path]:
    """Folders of a run's checkpoints, newest first.

    Raises:
        InputError: the run has a checkpoint of format 1.
    """
    home = folder / FOLDER
    for old in (home, folder / f".{FOLDER}.old"):
        if (old / "state.pt").is_file():
            raise InputError(
                f"{old} was written by an early version of antiphase 0.1.0, whose state.pt is no longer opened; "
                f"finish the run with that version, or remove {old} {AFRESH}"
            )
    return sorted(home.glob("step-*"), reverse=True)


def load_checkpoint(
    folder: Path,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    *,
    say: Callable[[str], None] = lambda message: None,
) -> Progress | None:
    """Restore model and optimizer in place from the newest intact checkpoint; None if the run has no checkpoint yet.

    Args:
        say: called with a message about each damaged checkpoint that is skipped.

    Raises:
        InputError: no checkpoint is intact, or the newest intact one belongs to another model or optimizer or has
            weights that are not finite.
    """
    found = checkpoints(folder)
    damaged: list[str] = []
    for source in found:
        try:
            tree = _read(source)
        except InputError as error:
            damaged.append(str(error))
            continue
        for message in damaged:
            say(f"{message}; training continues from {source.name}, and repeats the steps since then")
        _restore_model(source, model)
        _restore_optimizer(source, model, optimizer, tree["optimizer"])
        return Progress(**tree["progress"])
    if damaged:
        whole = "" if len(damaged) == 1 else ", and so is the one before"
        raise InputError(f"{damaged[0]}{whole}; remove {folder / FOLDER} {AFRESH}")
    return None


def _read(source: Path) -> dict[str, Any]:
    """The manifest of an intact checkpoint.

    Raises:
        InputError: the checkpoint is damaged; the message names the file.
    """
    if not (source / MANIFEST).is_file():
        raise InputError(f"{source} is damaged: {MANIFEST} is missing")
    try:
        with reading(source / MANIFEST, ""):
            content = (source / MANIFEST).read_bytes()
        tree = json.loads(content)
        del tree["sha256"]
        if sealed(tree) != content:
            raise ValueError
    except (ValueError, KeyError, TypeError, RecursionError):
        raise InputError(f"{source} is damaged: {MANIFEST} is not what the run wrote") from None
    if tree["format"] != FORMAT:
        raise InputError(f"{source} is of format {tree['format']}, and this version reads {FORMAT}")
    for name, digest in tree["files"].items():
        if not (source / name).is_file():
            raise InputError(f"{source} is damaged: {name} is missing")
        if file_digest(source / name) != digest:
            raise InputError(f"{source} is damaged: {name} is not what the run wrote")
    return tree


def _restore_model(source: Path, model: nn.Module) -> None:
    weights, expected = load_file(source / MODEL), _own_tensors(model)
    for name in {**expected, **weights}:
        kept, own = weights.get(name), expected.get(name)
        if kept is None or own is None or (kept.shape, kept.dtype) != (own.shape, own.dtype):
            raise InputError(
                f"{source} holds a model of another shape, {name} first; give the settings it was made with, or "
                "another --output"
            )
    if broken := next((name for name, tensor in weights.items() if not is_finite(tensor)), None):
        raise InputError(
            f"{source} holds NaN or infinite weights, {broken} first: the run diverged; remove {source.parent} {AFRESH}"
        )
    for name, tensor in expected.items():
        tensor.copy_(weights[name])


def _described(model: nn.Module, optimizer: torch.optim.Optimizer) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The optimizer's tensors by parameter and state, and its other values: scalar states and parameter groups."""
    names: dict[Tensor, str] = {parameter: name for name, parameter in model.named_parameters()}
    tensors: dict[str, Tensor] = {}
    values: dict[str, Any] = {}
    for parameter, state in optimizer.state.items():
        for key, value in state.items():
            if isinstance(value, Tensor):
                tensors[f"{names[parameter]}.{key}"] = value.contiguous()
            else:
                values[f"{names[parameter]}.{key}"] = value
    groups = [{**group, "params": [names[one] for one in group["params"]]} for group in optimizer.param_groups]
    return tensors, {"values": values, "groups": groups}


def _restore_optimizer(
    source: Path, model: nn.Module, optimizer: torch.optim.Optimizer, described: dict[str, Any]
) -> None:
    """Restore the optimizer from copies of the mapped tensors, as kernels may depend on torch's memory alignment."""
    _, own = _described(model, optimizer)
    if [set(group["params"]) for group in own["groups"]] != [set(group["params"]) for group in described["groups"]]:
        raise InputError(
            f"{source} holds an optimizer with other groups of parameters; give the settings it was made with, or "
            "another --output"
        )
    order = [name for group in own["groups"] for name in group["params"]]
    place = {name: index for index, name in enumerate(order)}
    state: dict[int, dict[str, Any]] = {}
    tensors = {key: tensor.clone() for key, tensor in load_file(source / OPTIMIZER).items()}
    for key, value in {**described["values"], **tensors}.items():
        name, _, kind = key.rpartition(".")
        state.setdefault(place[name], {})[kind] = value
    groups = []
    for kept, group in zip(described["groups"], own["groups"], strict=True):
        plain = {key: tuple(value) if isinstance(group.get(key), tuple) else value for key, value in kept.items()}
        groups.append({**plain, "params": [place[name] for name in group["params"]]})
    optimizer.load_state_dict({"state": state, "param_groups": groups})


def sealed(tree: dict[str, Any]) -> bytes:
    """A manifest as JSON bytes, with a checksum of itself."""
    return (json.dumps({**tree, "sha256": hash_of(tree)}, indent=1) + "\n").encode()


def _own_tensors(model: nn.Module) -> dict[str, Tensor]:
    """Parameters by name; tied ones occur once."""
    return {name: parameter.data for name, parameter in model.named_parameters()}
