"""Magnitudes of attention logits and hidden states over texts, batch by batch.

A single largest value says little about a distribution. The kurtosis uses all values and does not depend on their
scale, so different models can be compared.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from antiphase.attention.statistics import attention_statistics
from antiphase.base.errors import NonFiniteError
from antiphase.calibration.lower_layers import decoder_layers
from antiphase.lab.measures.held_out import contents as contents
from antiphase.lab.measures.held_out import prepare as prepare
from antiphase.lab.measures.outliers import Outliers, OutlierSettings, Sizes
from antiphase.lab.measures.parts import UNSTORED, Parts
from antiphase.lab.pages.tables import mean_of_present
from antiphase.lab.scoring.likelihood import TOKENS_AT_ONCE
from antiphase.lab.scoring.loading import LoadedModel
from antiphase.lab.text.prepare import PreparedData
from antiphase.ops.statistics import histogram_median, kurtosis, power_sums, size_histogram

PLACES = (1, 2, 3, 10, 100)
"""Ranks of the largest values that are reported."""


def measure(loaded: LoadedModel, data: PreparedData, settings: OutlierSettings, parts: Parts = UNSTORED) -> Outliers:
    """Measure held-out windows."""
    return outliers(loaded.model, data.validation(settings.samples).input_ids, parts.report)


def outliers(
    model: PreTrainedModel, input_ids: Tensor, report: Callable[[int, int], None] = lambda done, count: None
) -> Outliers:
    """The largest |q·k| · scale over visible pairs and all maps, the largest |hidden| after each layer, and kurtoses.

    Args:
        input_ids: (B, N) without padding.
        report: called with the numbers of finished rows and of all.

    Raises:
        NonFiniteError: a logit or hidden state is not finite.
    """
    largest = max(PLACES)
    logits: list[_Sizes] = []
    hidden: list[_Sizes] = []
    layers: list[int] = []
    at_once = max(1, TOKENS_AT_ONCE // input_ids.shape[1])
    for batch, ids in enumerate(input_ids.split(at_once)):
        with _hidden_states(model, hidden):
            found = attention_statistics(model, top=largest, histogram=True, input_ids=ids)
        layers = found.layers
        assert found.logit_histogram is not None
        assert found.logit_powers is not None
        by_layer = zip(found.top_logits, found.logit_histogram, found.logit_powers, strict=True)
        for index, (tops, counts, powers) in enumerate(by_layer):
            _merge(logits, index, _Sizes(tops.flatten(), counts.sum(0), powers.sum(0), torch.zeros(0)))
        report(batch * at_once + len(ids), len(input_ids))
    rows = []
    for what, of_layers, numbers in (
        ("attention logits", logits, layers),
        ("hidden states", hidden, list(range(len(hidden)))),
    ):
        tops = torch.cat([one.top for one in of_layers])
        counts = torch.stack([one.counts for one in of_layers]).sum(0)
        tails = [one.tails() for one in of_layers]
        means = [mean_of_present(of_kind) for of_kind in zip(*tails, strict=True)]
        rows.append(Sizes(what, "all", *_largest(tops, counts), *means))
        for layer, sizes, own in zip(numbers, of_layers, tails, strict=True):
            rows.append(Sizes(what, str(layer), *_largest(sizes.top, sizes.counts), *own))
    return Outliers(sequences=len(input_ids), rows=rows)


def _largest(top: Tensor, counts: Tensor) -> tuple[dict[str, float], float]:
    """The largest values by rank, and the median."""
    ordered = top.sort(descending=True).values
    places = {str(place): float(ordered[place - 1]) for place in PLACES if place <= len(ordered)}
    return places, histogram_median(counts)


def channel_kurtosis(squares: Tensor) -> float:
    """E[s⁴] / E[s²]² over channels, from their sums of squares over tokens (d,); NaN if all are zero."""
    return float(squares.square().mean() / squares.mean().square())


@dataclass(frozen=True)
class _Sizes:
    """The largest of many numbers, a histogram of their magnitudes, and sums over them, on the CPU."""

    top: Tensor
    counts: Tensor
    powers: Tensor
    """(5,) fp64."""
    squares: Tensor
    """(d,) fp64, sums of squares by channel; empty if there are no channels."""

    def tails(self) -> tuple[float | None, float | None]:
        """Heaviness of the tails: kurtosis over values and over channels."""
        return kurtosis(self.powers), channel_kurtosis(self.squares) if len(self.squares) else None


def _merge(layers: list[_Sizes], index: int, more: _Sizes) -> None:
    """Add numbers to those of a layer."""
    if index == len(layers):
        layers.append(_Sizes(more.top[:0], *map(torch.zeros_like, (more.counts, more.powers, more.squares))))
    before = layers[index]
    top = torch.cat([before.top, more.top])
    layers[index] = _Sizes(
        top.topk(min(max(PLACES), len(top))).values, before.counts + more.counts, before.powers + more.powers,
        before.squares + more.squares,
    )  # fmt: skip


@contextmanager
def _hidden_states(model: PreTrainedModel, layers: list[_Sizes]) -> Iterator[None]:
    """Add the output of each layer within the block."""

    def look(index: int) -> Callable[..., None]:
        def add(module: nn.Module, args: Any, output: Any) -> None:
            hidden = (output[0] if isinstance(output, tuple) else output).detach()  # (B, N, d)
            sizes = hidden.abs().float().flatten()
            top = sizes.topk(min(max(PLACES), len(sizes))).values
            if not bool(top[0].isfinite()):  # NaN counts as larger than any number
                raise NonFiniteError(f"its hidden states after layer {index} are NaN or infinite")
            squares = hidden.double().square().flatten(0, -2).sum(0)
            found = top, size_histogram(sizes), power_sums(hidden), squares
            _merge(layers, index, _Sizes(*(part.cpu() for part in found)))

        return add

    handles = [layer.register_forward_hook(look(index)) for index, layer in enumerate(decoder_layers(model))]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
