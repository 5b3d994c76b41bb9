"""Tensors divided over processes as safetensors files: each process writes its part, any number of processes read all.

These are PyTorch's distributed checkpoints in their safetensors storage. Their default storage is not used, because it
is unpickled when it is read.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor
from torch import distributed as dist
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader, HuggingFaceStorageWriter
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save
from torch.distributed.tensor import DTensor
from transformers import PreTrainedModel

from antiphase.base.errors import InputError
from antiphase.base.records import writing
from antiphase.lab.training.sharding import whole
from antiphase.models.model_card import write_model_card
from antiphase.models.sources.failures import first_line

EXPORTED_BYTES = 2 << 30
"""Size of a file of an exported model, which one process holds in memory."""


def write_parts(folder: Path, tensors: Mapping[str, Tensor], group: dist.ProcessGroup) -> None:
    """Write this process's parts; equal tensors of several processes are written by one of them.

    Raises:
        OSError: one of the processes could not write.
    """
    writer = HuggingFaceStorageWriter(str(folder), save_distributed=True)
    try:
        save(dict(tensors), storage_writer=writer, process_group=group)
    except CheckpointException as error:
        raise next(iter(error.failures.values()))[0] from None  # of the first process that failed, not of all together


def own_files(folder: Path, rank: int) -> list[Path]:
    """The files that the process of this rank has written; the storage numbers processes from 1."""
    return sorted(folder.glob(f"shard-{rank + 1:05}-*.safetensors"))


def stored(folder: Path) -> dict[str, tuple[torch.Size, torch.dtype]]:
    """Shape and dtype of every tensor in a folder of such files, or of ordinary safetensors files, by name.

    Raises:
        InputError: a file is no safetensors file, or its header does not say what it is a part of.
    """
    try:
        found: dict[str, Any] = HuggingFaceStorageReader(str(folder)).read_metadata().state_dict_metadata
    except (SafetensorError, ValueError, LookupError, TypeError, AttributeError, RuntimeError) as error:
        raise InputError(f"{folder} is damaged: a file of weights cannot be read ({first_line(error)})") from None
    return {name: (one.size, one.properties.dtype) for name, one in found.items()}


def read_parts(folder: Path, tensors: Mapping[str, Tensor]) -> None:
    """Fill this process's parts of the tensors, in place, from such files or from ordinary ones."""
    reader = HuggingFaceStorageReader(str(folder))
    load(dict(tensors), storage_reader=reader, no_dist=not dist.is_initialized())


def staged(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """A copy of this process's parts in the memory of the CPU, which training does not change."""
    return {name: _copied(tensor) for name, tensor in tensors.items()}


def _copied(tensor: Tensor) -> Tensor:
    if not isinstance(tensor, DTensor):
        return tensor.detach().to("cpu", copy=True)
    part = tensor.to_local().detach().to("cpu", copy=True)
    # from_local would move the copy back to the device of the mesh
    return DTensor(part, tensor._spec, requires_grad=False)


def export(model: PreTrainedModel, folder: Path, rank: int, count: int) -> None:
    """Write a divided model in Hugging Face's format, in files that the processes assemble and write in turn."""
    tensors = {name: parameter.detach() for name, parameter in model.named_parameters()}  # tied ones once
    files: list[list[str]] = [[]]
    size = 0
    for name, tensor in tensors.items():
        if files[-1] and size + tensor.nbytes > EXPORTED_BYTES:
            files.append([])
            size = 0
        files[-1].append(name)
        size += tensor.nbytes
    names = [
        "model.safetensors" if len(files) == 1 else f"model-{number:05}-of-{len(files):05}.safetensors"
        for number in range(1, len(files) + 1)
    ]
    with writing(folder):
        for turn, (file, inside) in enumerate(zip(names, files, strict=True)):
            mine = rank == turn % count
            held = {}
            for name in inside:
                full = whole(tensors[name])
                if mine:
                    held[name] = full.cpu().contiguous()
            if mine:
                save_file(held, folder / file, metadata={"format": "pt"})
        if rank == 0:
            if len(files) > 1:
                total = {"total_size": sum(tensor.nbytes for tensor in tensors.values())}
                places = {name: file for file, inside in zip(names, files, strict=True) for name in inside}
                index = {"metadata": total, "weight_map": places}
                (folder / "model.safetensors.index.json").write_text(json.dumps(index, indent=2) + "\n")
            write_description(model, folder)


def write_description(model: PreTrainedModel, folder: Path) -> None:
    """What ``save_pretrained`` writes besides weights."""
    model.config.architectures = [type(model).__name__.removeprefix("FSDP")]
    model.config.dtype = str(model.dtype).removeprefix("torch.")
    model.config.save_pretrained(folder)
    if model.can_generate():
        model.generation_config.save_pretrained(folder)
    write_model_card(model, folder)
