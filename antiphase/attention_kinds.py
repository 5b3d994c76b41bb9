"""What kind of attention a layer computes, told from its module: softmax maps, or two subtracted, and where."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from antiphase.errors import InputError

DIFFERENTIAL = frozenset({"differential", "differential_v2"})
"""Values of ``config.attention_type`` whose layers subtract two maps."""


def is_differential(module: nn.Module) -> bool:
    """Whether a layer's configuration asks for two subtracted maps a head."""
    return getattr(module.config, "attention_type", None) in DIFFERENTIAL


def has_two_keys(module: nn.Module) -> bool:
    """Whether each map of a head has a key of its own, and values come in halves: V1, not V2."""
    return getattr(module.config, "attention_type", None) == "differential"


def subtracts_inside(module: nn.Module) -> bool:
    """Whether an attention layer was made differential by ``differential_config``: its function alone knows its λ."""
    return hasattr(module, "differential")


def subtracts_afterwards(module: nn.Module) -> bool:
    """Whether a layer subtracts what its attention function returned: DiffLlama's, map i + H from map i, after two
    calls with the same queries, one for each half of the values.
    """
    return hasattr(module, "lambda_init") and not is_differential(module)


def lambda_afterwards(module: nn.Module) -> Tensor:
    """λ of such a layer, 0-d."""
    first, second = (
        torch.exp((getattr(module, f"lambda_q{i}").float() * getattr(module, f"lambda_k{i}").float()).sum())
        for i in (1, 2)
    )
    return first - second + float(module.lambda_init)  # type: ignore[arg-type]  # a number in DiffLlama


def layer_number(module: nn.Module, calls: int) -> int:
    """The model's number of a layer, 0-based; how many were called before it, where it does not say."""
    number = getattr(module, "layer_idx", None)
    return calls if number is None else int(number)


def refuse_repeated(model: PreTrainedModel, layers: Sequence[int]) -> None:
    """Refuse a forward pass in which a layer attends more than once.

    Raises:
        ValueError: numbers of layers, in the order of their calls, of which one comes twice.
    """
    for number in set(layers):
        if layers.count(number) > 1:
            raise ValueError(
                f"layer {number} of {type(model).__name__} attends {layers.count(number)} times in a forward pass, "
                "which cannot be told apart"
            )


def refuse_unread(model: PreTrainedModel) -> None:
    """Refuse models whose calls of the attention function do not say enough to measure or change attention.

    ``probing.maps`` reads them; everything else that reads attention asks here, most of it by way of ``swapped``.

    Raises:
        InputError: a model of ``differential_config``, or an encoder and decoder.
    """
    kind = model.config.model_type
    if any(subtracts_inside(module) for module in model.modules()):
        raise InputError(
            f"attention of a {kind} model cannot be measured or changed yet: it subtracts one map from another inside "
            "its attention function, so that neither λ nor the maps can be read there; attention_maps (antiphase look) "
            "shows them, and models of AntiphaseConfig can be measured"
        )
    if model.config.is_encoder_decoder:
        raise InputError(
            f"attention of a {kind} model cannot be measured or changed: encoder and decoder number their layers "
            "alike, and which of them calls cannot be read; attention_maps (antiphase look) tells them apart"
        )
