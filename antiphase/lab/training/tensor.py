"""Heads and channels of the MLP divided over processes (Shoeybi et al., 1909.08053, section 3).

Every process has the same tokens and, of each projection, the part for its heads; its output is one term of a sum over
the processes. Parameters are DTensors, so that sharding, norms of gradients and checkpoints know what a process holds;
a forward pass computes with their local parts.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed._functional_collectives import all_reduce, wait_tensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.distributed_c10d import GroupName
from torch.distributed.tensor import DTensor, Partial, Placement, Replicate, Shard, distribute_tensor
from transformers import PreTrainedModel

from antiphase.lab.training.sharding import blocks
from antiphase.models.tensor_plan import COLUMNS, ROWS, divides_mlp

PLACEMENTS: dict[str, Placement] = {COLUMNS: Shard(0), ROWS: Shard(1)}
"""What a process holds of a weight (outputs, inputs)."""


def divide_heads(model: PreTrainedModel, mesh: DeviceMesh) -> None:
    """Divide weights in place over the processes of a mesh of one dimension, by the plan of the model's configuration.

    All processes have equal weights before. Embeddings, norms, λ vectors, the head and MLPs that the plan leaves out
    stay whole.
    """
    plan = {f"{model.base_model_prefix}.{name}": style for name, style in model.config.base_model_tp_plan.items()}
    divided: dict[int, nn.Parameter] = {}
    module: Any
    for name, module in model.named_modules():
        style = plan.get(re.sub(r"\.\d+\.", ".*.", name), "")
        parameters = list(module.named_parameters(recurse=False))
        for key, parameter in parameters:
            if id(parameter) not in divided:  # tied ones are divided once
                is_whole = style == ROWS and key == "bias"
                placement = Replicate() if is_whole else PLACEMENTS.get(style, Replicate())
                part = distribute_tensor(parameter.detach(), mesh, [placement], src_data_rank=None)
                divided[id(parameter)] = nn.Parameter(part, requires_grad=parameter.requires_grad)
            module.register_parameter(key, divided[id(parameter)])
        if parameters:
            module.forward = _with_own_parts(
                module, module.forward, give_terms=".self_attn" in name or style == ROWS,
                shares=mesh.size() if style == ROWS else 1,
            )  # fmt: skip
    group = mesh.get_group().group_name
    block: Any
    for block in blocks(model):
        for half in (block.self_attn, block.mlp) if divides_mlp(model.config) else (block.self_attn,):
            half.forward = _summed(half.forward, group)


def _summed(forward: Callable[..., Any], group: str) -> Callable[..., Any]:
    """A forward pass (B, N, hidden) to (B, N, hidden) of which each process computes a term."""

    def whole(hidden_states: Tensor, *arguments: Any, **named: Any) -> Any:
        found = forward(_Spread.apply(hidden_states, group), *arguments, **named)
        if isinstance(found, tuple):
            return _Sum.apply(found[0], group), *found[1:]
        return _Sum.apply(found, group)

    return whole


def _with_own_parts(
    module: Any, forward: Callable[..., Any], *, give_terms: bool, shares: int
) -> Callable[..., Any]:  # fmt: skip
    def computed(*arguments: Any, **named: Any) -> Any:
        with own_parts(module, give_terms=give_terms):
            if shares > 1 and module._parameters.get("bias") is not None:
                module._parameters["bias"] = module._parameters["bias"] / shares  # the sum of all terms has it once
            return forward(*arguments, **named)

    return computed


@contextmanager
def own_parts(module: Any, *, give_terms: bool = False) -> Iterator[None]:
    """Within the block, a module's own parameters are what this process holds of them.

    It begins within the forward pass of the module that has the parameters, after ``fully_shard`` has gathered them.

    Args:
        give_terms: gradients of whole parameters are terms of a sum, because each process has its own heads, or its
            share of a bias.
    """
    held = {key: one for key, one in module._parameters.items() if isinstance(one, DTensor)}
    for key, parameter in held.items():
        is_term = give_terms and parameter.placements == (Replicate(),)
        module._parameters[key] = parameter.to_local(grad_placements=[Partial()] if is_term else parameter.placements)
    try:
        yield
    finally:
        module._parameters.update(held)


class _Spread(torch.autograd.Function):
    """The same tensor in all processes, each of which gives a term of its gradient."""

    @staticmethod
    def forward(ctx: Any, value: Tensor, group: str) -> Tensor:
        ctx.group = group
        return value.view_as(value)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return _added(gradient, ctx.group), None


class _Sum(torch.autograd.Function):
    """The sum of the processes' terms, whose gradient all of them have."""

    @staticmethod
    def forward(ctx: Any, value: Tensor, group: str) -> Tensor:
        return _added(value, group)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return gradient, None


def _added(value: Tensor, group: str) -> Tensor:
    return wait_tensor(all_reduce(value.contiguous(), "sum", GroupName(group)))
