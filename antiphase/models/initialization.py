"""Initial weights that depend on nothing but the seed and each parameter's name.

Two models that share a parameter's name and shape start with equal values there, whatever else they have. That is
what makes a comparison of two kinds of attention fair.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import torch
from torch import Tensor, nn

from antiphase.models.attention import LAMBDA_STD, ZERO_AT_START
from antiphase.models.transformer import AntiphasePreTrainedModel
from antiphase.randomness import keyed_generator

M = TypeVar("M", bound=nn.Module)


@torch.no_grad()
def initialize(model: AntiphasePreTrainedModel, seed: int) -> None:
    """Fill every parameter in place from a generator keyed by ``seed`` and the parameter's name.

    Matrices are N(0, initializer_range²), λ vectors N(0, 0.1²), norms one, what variants add zero.
    """
    norms = {id(module.weight) for module in model.modules() if isinstance(module, nn.RMSNorm)}
    for name, parameter in model.named_parameters():
        if id(parameter) in norms:
            parameter.fill_(1.0)
            continue
        last = name.rpartition(".")[2]
        if last in ZERO_AT_START:
            parameter.zero_()
            continue
        std = LAMBDA_STD if last.startswith("lambda_") else model.config.initializer_range
        parameter.copy_(normal(parameter.shape, std, seed=seed, name=name))


def normal(shape: torch.Size, std: float, *, seed: int, name: str) -> Tensor:
    """Normal values of ``shape`` that depend on the seed, the name and nothing else; fp32, on the CPU."""
    generator = keyed_generator(seed, name)
    return torch.empty(shape, dtype=torch.float32).normal_(0.0, std, generator=generator)


def seeded(build: Callable[[], M], seed: int) -> M:
    """The model that ``build`` makes, its initial weights a function of the seed; torch's generators stay as they are.

    For models whose initial values are their own (``classic.py``); it keeps no two kinds equal where they could be.
    """
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return build()
