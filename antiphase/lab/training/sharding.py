"""Weights divided over processes by FSDP2 (``fully_shard``), block by block.

Each process keeps its part of every weight, gradient and optimizer state; a block's weights are whole only while it
computes (Zhao et al., 2304.11277).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor
from transformers import PreTrainedModel


def shard(model: PreTrainedModel, mesh: DeviceMesh, precision: torch.dtype | None) -> None:
    """Divide the model's weights in place over the dimension ``shard`` of the mesh, with copies over ``copies``.

    With a low ``precision``, matrices of the blocks are rounded to it before they are gathered, as autocast would round
    them afterwards. Other weights are gathered in fp32, because autocast computes norms, λ and embeddings in fp32.
    Gradients are added in fp32.
    """
    if mesh.size(0) == 1:
        grid = mesh["shard"]
    else:
        grid = mesh if mesh.ndim == 2 else mesh["copies", "shard"]
    for block in blocks(model):
        if precision is not None:
            rounded = MixedPrecisionPolicy(param_dtype=precision, reduce_dtype=torch.float32, cast_forward_inputs=False)
            matrices: list[nn.Module] = [module for module in block.modules() if isinstance(module, nn.Linear)]
            fully_shard(matrices, mesh=grid, mp_policy=rounded)
        fully_shard(block, mesh=grid)
    fully_shard(model, mesh=grid)


def blocks(model: PreTrainedModel) -> Iterator[nn.Module]:
    """The blocks of a transformer, from the first to the last; a recurrent network has none."""
    base: Any = model.base_model
    yield from getattr(base, "layers", ())


def accumulate(objective: nn.Module, *, is_last: bool) -> None:
    """Whether the next backward pass is the last of its step, which adds gradients up over the copies of the model.

    Within a copy they are added up in every backward pass, so that no process ever holds all of them.
    """
    for module in objective.modules():
        if isinstance(module, FSDPModule):
            module.set_requires_all_reduce(is_last, recurse=False)
            module.set_is_last_backward(is_last)


def at_rest(model: PreTrainedModel) -> None:
    """Divide what a forward pass without a backward pass has left whole, before the model's parameters are used."""
    if isinstance(model, FSDPModule):
        model.reshard()


def whole(value: Tensor) -> Tensor:
    """The tensor of which this process holds a part, in every process; other tensors as they are."""
    return value.full_tensor() if isinstance(value, DTensor) else value


def own_part(value: Tensor) -> Tensor:
    """The part of a tensor that this process holds; other tensors as they are."""
    return value.to_local() if isinstance(value, DTensor) else value


@contextmanager
def gathered(module: nn.Module) -> Iterator[None]:
    """Within the block, a divided module's own weights are whole in every process."""
    if not isinstance(module, FSDPModule):
        yield
        return
    module.unshard()
    try:
        yield
    finally:
        module.reshard()
