"""Runs a model without the second map of its heads (λ = 0), or with the two maps of each head exchanged."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import contextmanager
from typing import Literal

import torch
from torch import Tensor
from transformers import PreTrainedModel

from antiphase.attention.calls import AttentionCall, Pairing, kind_of
from antiphase.attention.hooks import transformed
from antiphase.layers.functions import differential_output

Form = Literal["removed", "exchanged"]
"""A1 V, or (A2 - λ A1) V, instead of (A1 - λ A2) V; what follows in the layer stays."""


def has_second_map(model: PreTrainedModel) -> bool:
    """Whether a layer of the model subtracts one map from another, or adds it; V1's control without it does neither."""
    pairs = any(kind_of(module).pairing is not Pairing.NONE for module in model.modules())
    return pairs and getattr(model.config, "second_map", None) != "none"


@contextmanager
def second_map(model: PreTrainedModel, form: Form, layers: Collection[int]) -> Iterator[None]:
    """Within the block, the second maps of some layers are removed, or exchanged with the first ones.

    Args:
        layers: the model's numbers of the layers.

    Raises:
        ValueError: the model has no second map, does not use transformers' interface, or has unsupported arguments.
    """
    if not has_second_map(model):
        raise ValueError(f"{type(model).__name__} has no second map, so it cannot be {form}")
    with transformed(model, _SecondMap(form, frozenset(layers)), layers=layers):
        yield


class _SecondMap:
    """Computes the heads' outputs of the chosen layers with the changed maps."""

    def __init__(self, form: Form, layers: frozenset[int]) -> None:
        self.form, self.layers = form, layers

    def __call__(self, call: AttentionCall) -> Tensor:
        if call.layer not in self.layers:
            return call.own()[0]
        if call.kind.pairing is Pairing.HALVES:  # the layer itself subtracts these outputs
            first, second = call.own()[0].chunk(2, dim=2)
            return torch.cat([first, torch.zeros_like(second)] if self.form == "removed" else [second, first], dim=2)
        if call.lam is None:
            raise ValueError(f"layer {call.layer} has no second map, so it cannot be {self.form}")
        call.refuse_unread()
        query, key, lam = call.query, call.key, call.lam
        if self.form == "removed":
            lam = torch.zeros_like(lam)
        else:
            query = _exchanged(query)
            key = _exchanged(key) if call.kind.key_maps == 2 else key
        return differential_output(
            query, key, call.value, lam, call.mask, halves=call.kind.key_maps, is_causal=call.is_causal,
            sliding_window=call.sliding_window, scaling=call.scale,
        )  # fmt: skip


def _exchanged(maps: Tensor) -> Tensor:
    """Neighbouring maps of (B, maps, ., .) in each other's place."""
    return maps.unflatten(1, (-1, 2)).flip(2).flatten(1, 2)
