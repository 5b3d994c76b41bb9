"""Weights in 8 and 4 bits through torchao, as users quantize models, and the cost in quality."""

from __future__ import annotations

import copy
from dataclasses import dataclass

import torch
from torch import nn
from transformers import PreTrainedModel

from antiphase.base.errors import InputError
from antiphase.lab.measures.quantization import check_weights

GROUP = 32
"""Largest number of weights that share a scale in 4 bits; the largest divisor of a row's width up to this is used."""
SMALLEST_GROUP = 8
"""With smaller groups than this, a whole row shares one scale."""
FOUR = torch.int4  # type: ignore[attr-defined]  # torch's stubs lack it


@dataclass(frozen=True)
class Quantized:
    """A model with quantized linear layers."""

    model: PreTrainedModel
    share: float
    """Share of all weights that are quantized; embeddings, norms and λ are not."""
    groups: tuple[int, ...]
    """Numbers of weights that share a scale, over all layers; 0 means a whole row."""


def quantized_weights(model: PreTrainedModel, bits: int) -> Quantized:
    """A copy of the model whose ``nn.Linear`` layers hold integers; activations are not quantized.

    8 bits: symmetric, one scale per row. 4 bits: symmetric, one scale per group of at most ``GROUP`` weights. In models
    that do not use ``nn.Linear`` (GPT-2), most weights stay unquantized; see ``share``.

    Raises:
        InputError: as for ``check_weights``, or there is no linear layer.
    """
    check_weights(bits)
    from torchao.quantization import Int8WeightOnlyConfig, IntxWeightOnlyConfig, PerAxis, PerGroup, quantize_

    model = copy.deepcopy(model)
    linear = {name: layer for name, layer in model.named_modules() if isinstance(layer, nn.Linear)}
    if not linear:
        raise InputError("--weights: this model has no nn.Linear layer to quantize")
    before = sum(parameter.numel() for parameter in model.parameters())
    few = sum(layer.weight.numel() for layer in linear.values())
    tied = model.get_output_embeddings()
    if tied is not None and tied.weight is model.get_input_embeddings().weight:
        before += tied.weight.numel()  # the head's copy is quantized, the embedding's is not
    groups = {layer.in_features: 0 if bits == 8 else group_of(layer.in_features) for layer in linear.values()}
    for width, group in groups.items():

        def chosen(layer: nn.Module, name: str, width: int = width) -> bool:
            return isinstance(layer, nn.Linear) and layer.in_features == width

        config = (
            Int8WeightOnlyConfig()
            if bits == 8
            else IntxWeightOnlyConfig(weight_dtype=FOUR, granularity=PerGroup(group) if group else PerAxis(0))
        )
        quantize_(model, config, filter_fn=chosen)
    return Quantized(model, few / before, tuple(sorted(set(groups.values()))))


def group_of(width: int) -> int:
    """Number of weights in a row of ``width`` that share a scale in 4 bits; 0 means all of them."""
    return next((size for size in range(GROUP, SMALLEST_GROUP - 1, -1) if width % size == 0), 0)
