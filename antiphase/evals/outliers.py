"""Activation outliers (2410.05258, section 3.7, table 5): the largest attention logits and hidden states."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from antiphase.attention_kinds import subtracts_inside
from antiphase.calibration.lower import decoder_layers
from antiphase.errors import NonFiniteError
from antiphase.evals.scoring import TOKENS_AT_ONCE
from antiphase.ops.statistics import histogram_median, size_histogram
from antiphase.probing.statistics import attention_statistics

PLACES = (1, 2, 3, 10, 100)
"""Which of the largest values are told."""


def outliers(model: PreTrainedModel, input_ids: Tensor) -> list[dict[str, Any]]:
    """The largest |q·k| · scale over visible pairs and all maps, and the largest |hidden| after each layer.

    Args:
        input_ids: (B, N) without padding.

    Returns:
        rows with ``what`` (``attention logits``, ``hidden states``), ``layer`` (``all`` and each number), ``top``
        {place: value} and ``median`` (within 1 %). Of models of ``differential_config`` there are no attention logits:
        which map reads which key cannot be seen from outside of their attention function.

    Raises:
        NonFiniteError: a logit or hidden state that is not finite.
    """
    reads_logits = not any(subtracts_inside(module) for module in model.modules())
    largest = max(PLACES)
    logits: list[_Sizes] = []
    hidden: list[_Sizes] = []
    layers: list[int] = []
    at_once = max(1, TOKENS_AT_ONCE // input_ids.shape[1])
    for ids in input_ids.split(at_once):
        with _hidden_states(model, hidden):
            if not reads_logits:
                _forward(model, ids)
                continue
            found = attention_statistics(model, top=largest, histogram=True, input_ids=ids)
        layers = found.layers
        assert found.logit_histogram is not None
        for index, (tops, counts) in enumerate(zip(found.top_logits, found.logit_histogram, strict=True)):
            _merge(logits, index, _Sizes(tops.flatten(), counts.sum(0)))
    rows = []
    for what, by_layer, numbers in (
        *([("attention logits", logits, layers)] if reads_logits else []),
        ("hidden states", hidden, list(range(len(hidden)))),
    ):
        whole = _Sizes(torch.cat([one.top for one in by_layer]), torch.stack([one.counts for one in by_layer]).sum(0))
        for layer, sizes in [("all", whole), *zip(map(str, numbers), by_layer, strict=True)]:
            ordered = sizes.top.sort(descending=True).values
            top = {str(place): float(ordered[place - 1]) for place in PLACES if place <= len(ordered)}
            rows.append({"what": what, "layer": layer, "top": top, "median": histogram_median(sizes.counts)})
    return rows


@torch.no_grad()
def _forward(model: PreTrainedModel, input_ids: Tensor) -> None:
    model.base_model(input_ids=input_ids.to(model.device), use_cache=False)


@dataclass(frozen=True)
class _Sizes:
    """The largest of many numbers, and all of them by size, on the CPU."""

    top: Tensor
    counts: Tensor


def _merge(layers: list[_Sizes], index: int, more: _Sizes) -> None:
    """Add numbers to those of a layer."""
    if index == len(layers):
        layers.append(_Sizes(more.top[:0], torch.zeros_like(more.counts)))
    top = torch.cat([layers[index].top, more.top])
    layers[index] = _Sizes(top.topk(min(max(PLACES), len(top))).values, layers[index].counts + more.counts)


@contextmanager
def _hidden_states(model: PreTrainedModel, layers: list[_Sizes]) -> Iterator[None]:
    """Add what comes out of each layer within the block."""

    def look(index: int) -> Callable[..., None]:
        def add(module: nn.Module, args: Any, output: Any) -> None:
            sizes = (output[0] if isinstance(output, tuple) else output).detach().abs().float().flatten()
            top = sizes.topk(min(max(PLACES), len(sizes))).values
            if not bool(top[0].isfinite()):  # NaN counts as larger than any number
                raise NonFiniteError(f"its hidden states after layer {index} are NaN or infinite")
            _merge(layers, index, _Sizes(top.cpu(), size_histogram(sizes).cpu()))

        return add

    handles = [layer.register_forward_hook(look(index)) for index, layer in enumerate(decoder_layers(model))]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
