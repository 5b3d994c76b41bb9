"""Initial weights that depend on nothing but the seed and each parameter's name.

Two models that share a parameter's name and shape start with equal values there, whatever else they have. That is
what makes a comparison of two kinds of attention fair.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import torch
from torch import Tensor, nn

from antiphase.layers.attention import AttentionLayer
from antiphase.layers.lambdas import LAMBDA_STD
from antiphase.layers.marks import first_weight
from antiphase.models.start import embedding_std, linear_spread
from antiphase.models.transformer import AntiphasePreTrainedModel
from antiphase.randomness import keyed_generator

M = TypeVar("M", bound=nn.Module)


@torch.no_grad()
def initialize(model: AntiphasePreTrainedModel, seed: int) -> None:
    """Fill every parameter in place from a generator keyed by ``seed`` and the parameter's name.

    Matrices begin as the configuration's ``initializer`` says (``start.py``), λ vectors N(0, 0.1²), norms at one, those
    of heads at ``head_norm_init``, what variants add at zero.
    """
    owners = {f"{path}.{name}": module for path, module in model.named_modules() for name in module._parameters}
    for name, parameter in model.named_parameters():
        owner, last = owners[name], name.rpartition(".")[2]
        if isinstance(owner, nn.RMSNorm):
            parameter.fill_(first_weight(owner))
        elif isinstance(owner, AttentionLayer) and last in owner.zero_at_start:
            parameter.zero_()
        else:
            shape, size = _spread(model, owner)
            parameter.copy_(drawn(parameter.shape, shape, size, seed=seed, name=name))


def _spread(model: AntiphasePreTrainedModel, owner: nn.Module) -> tuple[str, float]:
    """Shape and size of the values that the parameters of a module begin with."""
    if isinstance(owner, nn.Linear):
        return linear_spread(model.config, owner)
    return "normal", embedding_std(model.config) if isinstance(owner, nn.Embedding) else LAMBDA_STD


def drawn(shape: torch.Size, kind: str, size: float, *, seed: int, name: str) -> Tensor:
    """Values that depend on the seed, the name and nothing else; fp32, on the CPU.

    ``kind`` "normal": of standard deviation ``size``; "uniform": between -``size`` and ``size``.
    """
    values = torch.empty(shape, dtype=torch.float32)
    generator = keyed_generator(seed, name)
    if kind == "uniform":
        return values.uniform_(-size, size, generator=generator)
    return values.normal_(0.0, size, generator=generator)


def seeded(build: Callable[[], M], seed: int) -> M:
    """The model that ``build`` makes, its initial weights a function of the seed; torch's generators stay as they are.

    For models whose initial values are their own; it keeps no two kinds equal where they could be.
    """
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return build()
