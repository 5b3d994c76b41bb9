"""Crash-safe checkpoints: each is a folder written under a temporary name and renamed, with checksums of every file.

``checkpoint/step-N`` holds ``model.safetensors`` (parameters by name), ``optimizer.safetensors`` (state tensors as
NAME.STATE) and ``checkpoint.json``: progress, the optimizer's plain values, and the SHA-256 of all three. If processes
divide the weights, each has a file of its own instead, ``shard-NUMBER-*.safetensors``, with its parts of both. Either
kind is read by any number of processes, whether they divide the weights or not.
"""

from __future__ import annotations

import json
import math
import re
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from antiphase.base.errors import InputError, brief
from antiphase.base.files import reading
from antiphase.base.folders.contents import file_digest, hash_of
from antiphase.base.folders.ownership import written_beside
from antiphase.base.memory import peak_memory
from antiphase.base.typed import build
from antiphase.lab.training.distributed import Processes, alone
from antiphase.lab.training.divided_files import read_parts, stored
from antiphase.lab.training.sharding import own_part
from antiphase.lab.training.stages import Stage
from antiphase.models.sources.failures import first_line
from antiphase.models.sources.models import is_finite

FOLDER = "checkpoint"
MODEL = "model.safetensors"
OPTIMIZER = "optimizer.safetensors"
MANIFEST = "checkpoint.json"
FORMAT = 2
DIVIDED = 3
"""Format of a checkpoint to which every process contributes files."""
SHARD = re.compile(r"shard-[\w.-]+")
KEPT = 2
"""Number of checkpoints that are kept."""
REPLACED = ".old"
"""Suffix of a checkpoint while another one of its step takes its place; until then it is one like the others."""
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
    precision: str
    """Dtype of matrix products, which ``training.precision: auto`` chooses by the machine."""
    run: str
    """Digest of the run (``run_folder.run_digest``)."""
    dequantized_from: str | None = None
    """The quantization that the weights which the run starts from went through, if any."""
    peak_memory: int | None = None
    """Largest resident set of the first process in bytes, over all sittings up to their last checkpoints."""
    peak_gpu_memory: int | None = None
    """Largest number of bytes that torch has allocated on the first process's GPU, likewise."""
    stages: list[Stage] = field(default_factory=list)
    """Those that have begun, of which the last one lasts; none without ``data.lengths``."""

    @property
    def page_length(self) -> int | None:
        """Tokens of a retrieval sequence now; None means those of a row."""
        return self.stages[-1].length if self.stages else None

    def note_memory(self, device: torch.device) -> None:
        """Raise the peaks to those of this process so far."""
        self.peak_memory = max(self.peak_memory or 0, peak_memory() or 0) or None
        if device.type == "cuda":
            self.peak_gpu_memory = max(self.peak_gpu_memory or 0, torch.cuda.max_memory_allocated(device))


@dataclass(frozen=True)
class OptimizerState:
    """What ``described`` tells of an optimizer besides its tensors."""

    values: dict[str, float]
    groups: list[dict[str, Any]]


@dataclass(frozen=True)
class Manifest:
    """What ``checkpoint.json`` holds."""

    format: int
    progress: Progress
    optimizer: OptimizerState
    files: dict[str, str]
    """SHA-256 by name."""


def save_checkpoint(folder: Path, model: nn.Module, optimizer: torch.optim.Optimizer, progress: Progress) -> None:
    """Add a checkpoint and delete all but the newest ``KEPT``. A complete checkpoint is on disk at any time.

    The files are read once more for their SHA-256, at 1 to 2 GB/s.
    """
    with added(folder, progress.step) as fresh:
        tensors, plain = described(model, optimizer)
        save_file(own_tensors(model), fresh / MODEL, metadata={"format": "pt"})
        save_file(tensors, fresh / OPTIMIZER, metadata={"format": "pt"})
        files = {name: file_digest(fresh / name) for name in (MODEL, OPTIMIZER)}
        tree = {"format": FORMAT, "progress": asdict(progress), "optimizer": plain, "files": files}
        (fresh / MANIFEST).write_bytes(sealed(tree))


def step_folder(folder: Path, step: int) -> Path:
    """The folder of a checkpoint."""
    return folder / FOLDER / f"step-{step:08}"


@contextmanager
def added(folder: Path, step: int) -> Iterator[Path]:
    """A folder to write a checkpoint to; it appears at the end, and only then are others deleted: all earlier ones but
    ``KEPT``, and those of this step or later ones, which are damaged, because the run resumed from an earlier one.

    Raises:
        Interrupted: another machine holds the folder by now; nothing was deleted.
    """
    final = step_folder(folder, step)
    aside = final.with_suffix(REPLACED)
    found = checkpoints(folder)
    before = [path for path in found if path.stem < final.name]
    with written_beside(final, aside=aside) as fresh:
        yield fresh
    for path in {aside, *found} - {final, *before[: KEPT - 1]}:
        if path.is_symlink() or path.is_file():  # never what it leads to
            path.unlink()
        elif path.exists():
            shutil.rmtree(path)


def checkpoints(folder: Path) -> list[Path]:
    """Folders of a run's checkpoints, newest first; one that another of its step replaces comes after that one."""
    return sorted((folder / FOLDER).glob("step-*"), key=lambda path: (path.stem, path.suffix != REPLACED), reverse=True)


def load_checkpoint(
    folder: Path,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    *,
    say: Callable[[str], None] = lambda message: None,
    group: Processes | None = None,
) -> Progress | None:
    """Restore model and optimizer in place from the newest intact checkpoint; None if the run has no checkpoint yet.

    Args:
        say: called with a message about each damaged checkpoint that is skipped.
        group: the processes of the run, all of which see the folder; None means this one alone.

    Raises:
        InputError: no checkpoint is intact, or the newest intact one belongs to another model or optimizer or has
            weights that are not finite.
    """
    group = alone() if group is None else group
    found = checkpoints(folder)
    damaged: list[str] = []
    for source in found:
        try:
            manifest = _read(source, group)
        except InputError as error:
            damaged.append(str(error))
            continue
        for message in damaged:
            say(f"{message}; training continues from {source.name}, and repeats the steps since then")
        plain = vars(manifest.optimizer)
        if manifest.format == FORMAT and group.mesh is None:
            _restore_model(source, model)
            _restore_optimizer(source, model, optimizer, plain)
        else:
            _restore_parts(source, model, optimizer, plain, group)
        return manifest.progress
    if damaged:
        whole = "" if len(damaged) == 1 else ", and so is the one before"
        raise InputError(f"{damaged[0]}{whole}; remove {folder / FOLDER} {AFRESH}")
    return None


def _read(source: Path, group: Processes) -> Manifest:
    """The manifest of an intact checkpoint; of several processes, each checks some of the files.

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
    manifest = _manifest(source, tree)
    names = list(manifest.files)
    states = torch.zeros(len(names), dtype=torch.int64, device=group.device)
    for place in range(group.rank, len(names), group.count):
        path = source / names[place]
        missing = not path.is_file()
        states[place] = 1 if missing else 2 * (file_digest(path) != manifest.files[names[place]])
    for name, state in zip(names, group.sum(states).tolist(), strict=True):
        if state:
            what = "is missing" if state == 1 else "is not what the run wrote"
            raise InputError(f"{source} is damaged: {name} {what}")
    return manifest


def _manifest(source: Path, tree: dict[str, Any]) -> Manifest:
    """
    Raises:
        InputError: the checksum of the tree is right, but it is no manifest of this version, or not of this checkpoint.
    """
    if tree.get("format") not in (FORMAT, DIVIDED):
        raise InputError(
            f"{source} is of format {brief(tree.get('format'))}, and this version reads {FORMAT} and {DIVIDED}"
        )
    try:
        manifest = build(Manifest, tree)
    except InputError as error:
        raise InputError(f"{source} is damaged: {error} in {MANIFEST}") from None
    names = set(manifest.files)
    is_whole = names == {MODEL, OPTIMIZER} if manifest.format == FORMAT else names and all(map(SHARD.fullmatch, names))
    is_this = is_whole and source.with_suffix("") == step_folder(source.parent.parent, manifest.progress.step)
    if not is_this or min(manifest.progress.seconds, manifest.progress.tokens) < 0:
        raise InputError(f"{source} is damaged: {MANIFEST} is of another checkpoint")
    return manifest


def _tensors(source: Path, name: str) -> dict[str, Tensor]:
    """
    Raises:
        InputError: the digest of the file is right, but it is no safetensors file.
    """
    try:
        return load_file(source / name)
    except SafetensorError as error:
        raise InputError(f"{source} is damaged: {name} is no safetensors file ({first_line(error)})") from None


def _restore_model(source: Path, model: nn.Module) -> None:
    weights, expected = _tensors(source, MODEL), own_tensors(model)
    _check_shapes(source, {name: (tensor.shape, tensor.dtype) for name, tensor in weights.items()}, expected)
    _check_finite(source, weights, alone())
    for name, tensor in expected.items():
        tensor.copy_(weights[name])


def _check_shapes(source: Path, kept: Mapping[str, tuple[Any, Any]], expected: Mapping[str, Tensor]) -> None:
    """
    Args:
        kept: shape and dtype of the checkpoint's weights.
        expected: the model's weights.
    """
    for name in {**expected, **kept}:
        own = expected.get(name)
        if own is None or kept.get(name) != (own.shape, own.dtype):
            raise InputError(
                f"{source} holds a model of another shape, {name} first; give the settings it was made with, or "
                "another --output"
            )


def _check_finite(source: Path, weights: Mapping[str, Tensor], group: Processes) -> None:
    broken = next((name for name, tensor in weights.items() if not is_finite(own_part(tensor))), None)
    if group.any(broken is not None):
        where = f", {broken} first" if broken else ""
        raise InputError(
            f"{source} holds NaN or infinite weights{where}: the run diverged; remove {source.parent} {AFRESH}"
        )


def _restore_parts(
    source: Path, model: nn.Module, optimizer: torch.optim.Optimizer, plain: dict[str, Any], group: Processes
) -> None:
    """Restore what this process holds from the files of any number of processes."""
    own, parameters = own_tensors(model), dict(model.named_parameters())
    weights: dict[str, tuple[Any, Any]] = {}
    tensors: dict[str, Tensor] = {}
    for name, (shape, dtype) in stored(source).items():
        parameter = parameters.get(name.rpartition(".")[0])
        if parameter is None:
            weights[name] = (shape, dtype)
        elif shape == parameter.shape:  # divided as its parameter is
            tensors[name] = torch.zeros_like(parameter, dtype=dtype, requires_grad=False)
        else:
            tensors[name] = torch.zeros(shape, dtype=dtype)
    _check_shapes(source, weights, own)
    _check_groups(source, described(model, optimizer)[1], plain, tensors)
    read_parts(source, {**own, **tensors})
    _check_finite(source, own, group)
    _check_states(source, parameters, tensors, group)
    _fill_optimizer(model, optimizer, plain, tensors)


def described(model: nn.Module, optimizer: torch.optim.Optimizer) -> tuple[dict[str, Tensor], dict[str, Any]]:
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


def _restore_optimizer(source: Path, model: nn.Module, optimizer: torch.optim.Optimizer, plain: dict[str, Any]) -> None:
    """Restore the optimizer from copies of the mapped tensors, as kernels may depend on torch's memory alignment."""
    tensors = {key: tensor.clone() for key, tensor in _tensors(source, OPTIMIZER).items()}
    _check_groups(source, described(model, optimizer)[1], plain, tensors)
    _check_states(source, dict(model.named_parameters()), tensors, alone())
    _fill_optimizer(model, optimizer, plain, tensors)


def _check_states(
    source: Path, parameters: Mapping[str, Tensor], states: Mapping[str, Tensor], group: Processes
) -> None:
    """
    Raises:
        InputError: a state of the optimizer is neither one number nor of its parameter's shape, is not finite, or has
            whole numbers.
    """

    def fits(key: str, state: Tensor) -> bool:
        is_like = state.shape in (parameters[key.rpartition(".")[0]].shape, ())
        return is_like and state.is_floating_point() and is_finite(own_part(state))

    wrong = next((key for key, state in states.items() if not fits(key, state)), None)
    if group.any(wrong is not None):
        where = f", {wrong} first" if wrong else ""
        raise InputError(f"{source} is damaged: the states of the optimizer do not fit{where}")


def _check_groups(source: Path, own: dict[str, Any], kept: dict[str, Any], states: Iterable[str]) -> None:
    """
    Args:
        states: names of the states that are tensors.
    """
    names = {name for group in own["groups"] for name in group["params"]}
    is_like = len(own["groups"]) == len(kept["groups"]) and all(map(_is_like, own["groups"], kept["groups"]))
    if not is_like or not {key.rpartition(".")[0] for key in (*kept["values"], *states)} <= names:
        raise InputError(
            f"{source} holds an optimizer with other groups of parameters; give the settings it was made with, or "
            "another --output"
        )


def _is_like(own: Mapping[str, Any], kept: Mapping[str, Any]) -> bool:
    """Whether a group holds the same parameters, and settings that the optimizer can take."""
    listed = kept.get("params")
    if not isinstance(listed, list) or set(map(str, listed)) != set(own["params"]):
        return False
    return all(_kind(own[key]) == _kind(value) for key, value in kept.items() if key in own and key != "params")


def _kind(value: Any) -> Any:
    """What a setting of an optimizer is; some are None, true or false."""
    if isinstance(value, bool | None):
        return bool
    if isinstance(value, int | float):
        return math.isfinite(value)
    return [_kind(one) for one in value] if isinstance(value, list | tuple) else type(value)


def _fill_optimizer(
    model: nn.Module, optimizer: torch.optim.Optimizer, plain: dict[str, Any], tensors: Mapping[str, Tensor]
) -> None:
    """Give the optimizer the states and groups of a checkpoint."""
    own = described(model, optimizer)[1]
    order = [name for group in own["groups"] for name in group["params"]]
    place = {name: index for index, name in enumerate(order)}
    state: dict[int, dict[str, Any]] = {}
    for key, value in {**plain["values"], **tensors}.items():
        name, _, kind = key.rpartition(".")
        state.setdefault(place[name], {})[kind] = value
    groups = []
    for kept, group in zip(plain["groups"], own["groups"], strict=True):
        settings = {key: tuple(value) if isinstance(group.get(key), tuple) else value for key, value in kept.items()}
        groups.append({**settings, "params": [place[name] for name in group["params"]]})
    optimizer.load_state_dict({"state": state, "param_groups": groups})


def sealed(tree: dict[str, Any]) -> bytes:
    """A manifest as JSON bytes, with a checksum of itself."""
    return (json.dumps({**tree, "sha256": hash_of(tree)}, indent=1) + "\n").encode()


def own_tensors(model: nn.Module) -> dict[str, Tensor]:
    """Parameters by name; tied ones occur once."""
    return {name: parameter.data for name, parameter in model.named_parameters()}
