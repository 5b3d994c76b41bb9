"""Initial weights that depend only on the seed and each parameter's name.

Parameters with the same name and shape in two models therefore start with equal values, which makes a comparison of two
kinds of attention fair.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import torch
from torch import Tensor, nn

from antiphase.base.randomness import keyed_generator
from antiphase.layers.attention import AttentionLayer
from antiphase.layers.lambdas import LAMBDA_STD
from antiphase.layers.marks import first_weight
from antiphase.layers.mlp import PolyNorm
from antiphase.models.start import embedding_std, linear_distribution
from antiphase.models.transformer import AntiphasePreTrainedModel

M = TypeVar("M", bound=nn.Module)


@torch.no_grad()
def initialize(model: AntiphasePreTrainedModel, seed: int) -> None:
    """Fill every parameter in place from a generator keyed by ``seed`` and the parameter's name.

    Matrices follow the configuration's ``initializer`` (``start.py``) and λ vectors N(0, 0.1²); norms start at one,
    head norms at ``head_norm_init``, PolyNorm as published, and biases and parameters that variants add at zero.
    """
    owners = {f"{path}.{name}": module for path, module in model.named_modules() for name in module._parameters}
    for name, parameter in model.named_parameters():
        owner, last = owners[name], name.rpartition(".")[2]
        if isinstance(owner, PolyNorm):
            owner.reset_parameters()
        elif last == "bias":
            parameter.zero_()
        elif isinstance(owner, (nn.RMSNorm, nn.LayerNorm)):
            parameter.fill_(first_weight(owner))
        elif isinstance(owner, AttentionLayer) and last in owner.zero_at_start:
            parameter.zero_()
        else:
            shape, size = _distribution(model, owner)
            parameter.copy_(random_values(parameter.shape, shape, size, seed=seed, name=name))


def _distribution(model: AntiphasePreTrainedModel, owner: nn.Module) -> tuple[str, float]:
    """Distribution and scale of the initial values of a module's parameters."""
    if isinstance(owner, nn.Linear):
        return linear_distribution(model.config, owner)
    return "normal", embedding_std(model.config) if isinstance(owner, nn.Embedding) else LAMBDA_STD


def random_values(shape: torch.Size, kind: str, size: float, *, seed: int, name: str) -> Tensor:
    """Random values that depend only on the seed and the name; fp32, on the CPU.

    ``kind`` is "normal", with standard deviation ``size``, or "uniform", between -``size`` and ``size``.
    """
    values = torch.empty(shape, dtype=torch.float32)
    generator = keyed_generator(seed, name)
    if kind == "uniform":
        return values.uniform_(-size, size, generator=generator)
    return values.normal_(0.0, size, generator=generator)


def seeded(build: Callable[[], M], seed: int) -> M:
    """Build a model whose initial weights depend only on the seed; the state of torch's generators is restored.

    This is for models with their own initialization; unlike ``initialize``, it does not give shared parameters equal
    values.
    """
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return build()
